// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/problem.hpp>

#include <string>
#include <vector>

namespace tool {

struct packer_info {
  std::string name;
  std::string what;
  bool static_cp;  ///< makes groups of the static CP size alone
};

[[nodiscard]] std::vector<packer_info> packers();

/// Errors: unknown_name with the nearest name and all that exist.
[[nodiscard]] dyncp::result<packer_info> find_packer(const std::string& name);

/// The plan that the packer of that name makes with the analytic cost model.
[[nodiscard]] dyncp::result<dyncp::planned> run_packer(const std::string& name,
                                                       const dyncp::problem& problem);

}  // namespace tool
