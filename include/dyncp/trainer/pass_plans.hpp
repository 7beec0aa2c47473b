// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/planner/async_planner.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/problem.hpp>

#include <cstdint>
#include <optional>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// Whether a pass without gradients (log-probs, evaluation of a reference) runs on a plan of its
/// own.
///
/// | reuse    | plan of the log-prob pass               | choose it when                          |
/// | -------- | --------------------------------------- | --------------------------------------- |
/// | if_equal | the training plan if the budgets agree, | the default: no second plan without need|
/// |          | else its own                            |                                         |
/// | never    | its own                                 | packers that price forward passes alone |
/// | always   | the training plan                       | log-probs must agree bit for bit with   |
/// |          |                                         | training (verl#6280), routing is        |
/// |          |                                         | replayed, or its budget does not matter |
enum class plan_reuse : std::int32_t { if_equal, never, always };

/// The plans of the two passes over one batch.
class pass_plans {
 public:
  pass_plans(planned training, std::optional<planned> log_probs)
      : training_(std::move(training)), log_probs_(std::move(log_probs)) {}

  [[nodiscard]] const planned& training() const noexcept { return training_; }
  [[nodiscard]] const planned& log_probs() const noexcept {
    return log_probs_ ? *log_probs_ : training_;
  }
  /// One plan serves both: log-probs come from packs, groups and kernels of the training pass.
  [[nodiscard]] bool shared() const noexcept { return !log_probs_; }

 private:
  planned training_;
  std::optional<planned> log_probs_;
};

/// Plans both passes over the sequences of `training`; `log_probs` differs from it in its limits,
/// its padding or its parallel sizes. Errors: those of the planner.
template <batch_planner Planner>
[[nodiscard]] result<pass_plans> plan_passes(const Planner& planner, const problem& training,
                                             const problem& log_probs,
                                             plan_reuse reuse = plan_reuse::if_equal) {
  auto first = planner.plan(training, plan_hint{});
  if (!first) return std::move(first).error();
  const bool equal = training.limits == log_probs.limits &&
                     training.parallel == log_probs.parallel &&
                     training.padding == log_probs.padding;
  if (reuse == plan_reuse::always || (reuse == plan_reuse::if_equal && equal)) {
    return pass_plans(std::move(*first), std::nullopt);
  }
  problem second = log_probs;
  second.sequences = training.sequences;
  auto own = planner.plan(second, plan_hint{});
  if (!own) return std::move(own).error();
  return pass_plans(std::move(*first), std::move(*own));
}

}  // namespace v0
}  // namespace dyncp
