// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/problem/problem.hpp>

#include <string>
#include <vector>

namespace compare {

/// One setting that all packers plan: several batches in the article's set, one in the others.
struct cell {
  std::string set;
  std::string name;   ///< unique in the set
  std::string trace;  ///< of tests/golden/peers.json; empty: nobody was recorded
  std::vector<dyncp::problem> batches;
  bool fluid = false;  ///< the fluid bound takes seconds
};

/// The default grid: the recorded cells of `traces` (files of lengths) and the batches after them,
/// corpora that the packer was not tuned on, other shapes of pipeline and batch, and the article's
/// setting.
[[nodiscard]] dyncp::result<std::vector<cell>> default_grid(const std::vector<std::string>& traces);

/// The default grid and every corpus by ranks, stages, limit and batch size: hours.
[[nodiscard]] dyncp::result<std::vector<cell>> full_grid(const std::vector<std::string>& traces);

}  // namespace compare
