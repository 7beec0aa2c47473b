// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/problem.hpp>

#include <vector>

namespace tool {

/// What can be said of a plan from a file, valid or not.
struct evaluation {
  std::vector<dyncp::violation> violations;
  bool timed = false;  ///< false: its breaches leave no meaning to times
  dyncp::plan_statistics statistics;
  std::vector<std::vector<double>> forward_s;   ///< by micro-batch and group, in the plan's order
  std::vector<std::vector<double>> backward_s;

  [[nodiscard]] bool valid() const noexcept { return violations.empty(); }
};

/// Errors: overflow for a plan too large to simulate or with times over the range of ticks.
[[nodiscard]] dyncp::result<evaluation> evaluate(const dyncp::plan& plan,
                                                 const dyncp::problem& problem);

}  // namespace tool
