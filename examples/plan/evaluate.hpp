// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <cstdint>
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

/// A plan with the time of every operation.
struct simulation {
  dyncp::priced_plan priced;
  dyncp::timeline time;
};

/// Requires a plan that `evaluate` can time.
[[nodiscard]] simulation simulate(const dyncp::plan& plan, const dyncp::problem& problem);

/// What can be simulated in a minute or two and in the memory of a workstation.
/// Errors: overflow for so many ranks, stages and micro-batches that it would take longer.
[[nodiscard]] dyncp::result<void> check_size(std::int64_t micro_batches,
                                             const dyncp::parallel_spec& parallel);

/// Errors: overflow for a plan too large to simulate or with times over the range of ticks.
[[nodiscard]] dyncp::result<evaluation> evaluate(const dyncp::plan& plan,
                                                 const dyncp::problem& problem);

}  // namespace tool
