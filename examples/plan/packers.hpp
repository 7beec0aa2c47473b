// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/problem.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tool {

struct packer_info {
  std::string name;
  std::string what;
  bool static_cp;  ///< holds no sequence longer than a group of the static CP size
  bool main;       ///< shown by `compare` when nothing is said
};

/// Every packer, `dynamic_cp` first.
[[nodiscard]] std::vector<packer_info> packers();

/// Parameters of single packers; 0: theirs.
struct packer_parameters {
  std::int64_t pack_tokens = 0;         ///< of the packers that fill packs to a number of tokens
  std::int64_t micro_batch_size = 0;    ///< of padded_bshd
};

/// Errors: unknown_name with the nearest name and all that exist.
[[nodiscard]] dyncp::result<packer_info> find_packer(const std::string& name);

/// The plan that the packer of that name makes with the analytic cost model; parameters that it
/// does not have are ignored.
[[nodiscard]] dyncp::result<dyncp::planned> run_packer(const std::string& name,
                                                       const dyncp::problem& problem,
                                                       const packer_parameters& parameters = {});

}  // namespace tool
