// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/contain.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/packers/plan_hint.hpp>
#include <dyncp/planner/async_planner.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The plans of iterations that follow each other: made ahead on a thread, or when they are asked
/// for. What a `data_iterator` plans with.
///
/// Determinism: as `async_planner`. Thread safety: belongs to one thread; plans may be made on
/// another one.
template <batch_planner Planner>
class plan_source {
 public:
  /// `ahead`: iterations planned before the one that is asked for; 0: no thread, `get` plans.
  plan_source(Planner planner, std::int32_t ahead, bool warm_start)
      : ahead_(std::max(0, ahead)), warm_start_(warm_start),
        thread_(std::make_unique<async_planner<Planner>>(
            std::move(planner), async_planner_options{ahead_ + 1, warm_start})) {}

  /// Has an iteration planned ahead, unless it is already or there is no room.
  void prepare(std::int64_t iteration, problem prob) {
    if (ahead_ > 0 && !asked(iteration)) ask(iteration, std::move(prob));
  }

  /// An iteration that is being planned, or is planned and was not taken.
  [[nodiscard]] bool asked(std::int64_t iteration) const {
    return std::find(asked_.begin(), asked_.end(), iteration) != asked_.end();
  }

  /// The plan of `prob`; of the one given to `prepare` where that was called. Errors: those of the
  /// planner; callback_failed for what it throws.
  [[nodiscard]] result<planned> get(std::int64_t iteration, const problem& prob) {
    if (ahead_ <= 0) return plan_here(prob);
    if (!asked(iteration) && !ask(iteration, prob)) {
      cancel();  // plans of later iterations fill the queue
      ask(iteration, prob);
    }
    auto made = thread_->take(iteration);
    std::erase(asked_, iteration);
    last_wait_s_ = thread_->report().last_wait_s;
    return made;
  }

  /// Throws away what was made and not taken, and what a warm start has learned.
  void cancel() {
    thread_->cancel();
    asked_.clear();
    hint_ = {};
  }

  [[nodiscard]] const Planner& planner() const noexcept { return thread_->planner(); }
  /// What the last `get` waited, or took to plan.
  [[nodiscard]] double last_wait_s() const noexcept { return last_wait_s_; }
  [[nodiscard]] double waited_s() const { return here_s_ + thread_->report().waited_s; }
  [[nodiscard]] double planning_s() const { return here_s_ + thread_->report().planning_s; }

 private:
  bool ask(std::int64_t iteration, problem prob) {
    if (!thread_->submit(iteration, std::move(prob))) return false;
    asked_.push_back(iteration);
    return true;
  }

  [[nodiscard]] result<planned> plan_here(const problem& prob) {
    const auto begin = std::chrono::steady_clock::now();
    auto made = contain("the planner", [&] {
      return planner().plan(prob, warm_start_ ? hint_ : plan_hint{});
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    last_wait_s_ = took.count();
    here_s_ += took.count();
    hint_ = made ? made->hint : plan_hint{};
    return made;
  }

  std::int32_t ahead_;
  bool warm_start_;
  std::unique_ptr<async_planner<Planner>> thread_;
  std::vector<std::int64_t> asked_;
  plan_hint hint_;  // of plans made without a thread
  double last_wait_s_ = 0;
  double here_s_ = 0;
};

}  // namespace v0
}  // namespace dyncp
