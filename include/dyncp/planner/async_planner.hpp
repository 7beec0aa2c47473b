// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/contain.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/packers/plan_hint.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// What plans one batch: `planner`, or a type of the caller's with the same two members.
template <class P>
concept batch_planner = std::movable<P> && requires(const P& p, const problem& prob,
                                                    const plan_hint& hint) {
  { p.plan(prob, hint) } -> std::same_as<result<planned>>;
  p.cost();
};

struct async_planner_options {
  std::int32_t depth = 2;   ///< plans made or being made that nobody has taken, at most
  bool warm_start = false;  ///< each plan starts from the hint of the one submitted before it
  bool own_thread = true;   ///< false: `take` plans, as where the system gives no thread
};

/// What planning has cost so far. Seconds of the steady clock.
struct async_planner_report {
  std::int64_t planned = 0;    ///< with success
  std::int64_t failed = 0;
  std::int64_t cancelled = 0;  ///< thrown away before anyone took them
  double planning_s = 0;       ///< of the planning thread
  double waited_s = 0;         ///< of `take`, all calls together; 0 when planning keeps ahead
  double last_wait_s = 0;      ///< of the last `take`
  std::int32_t waiting = 0;    ///< calls of `take` that sleep now, until a plan is made elsewhere
};

/// Plans ahead of the trainer on a thread of its own, in the order of submission.
///
///   dyncp::async_planner ahead{planner, {.depth = 2}};
///   ahead.submit(0, first);
///   ahead.submit(1, second);       // planned while iteration 0 trains
///   auto plan = ahead.take(0);     // waits only if it is not ready
///
/// An error belongs to the iteration that it arose in and is returned by its `take`; later
/// iterations are planned all the same. What the planner throws becomes `callback_failed`. The
/// thread starts with the first `submit`; where the system gives none, `take` plans by itself.
///
/// Determinism: plans are those of the planner called in order, whatever the timing. Thread
/// safety: submit, take and cancel may be called concurrently; construction and destruction not.
template <batch_planner Planner>
class async_planner {
 public:
  explicit async_planner(Planner planner, const async_planner_options& options = {})
      : planner_(std::move(planner)), options_(options) {}
  async_planner(const async_planner&) = delete;
  async_planner& operator=(const async_planner&) = delete;

  /// Drops what is not begun, waits for the plan in progress and throws it away.
  ~async_planner() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      drop_all();
    }
    work_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// Queues a batch; false, and nothing is queued, if `depth` plans are waiting to be taken or the
  /// iteration is among them.
  [[nodiscard]] bool submit(std::int64_t iteration, problem prob) {
    {
      const std::lock_guard lock(mutex_);
      if (static_cast<std::int64_t>(jobs_.size()) >= options_.depth) return false;
      if (find(iteration) != jobs_.end()) return false;
      jobs_.push_back({iteration, ++tickets_, std::move(prob), state::queued, std::nullopt});
      start();
    }
    work_.notify_one();
    return true;
  }

  /// The plan of a submitted iteration; waits until it is made.
  ///
  /// Errors: that of the planner for this iteration; callback_failed; not_found for an iteration
  /// that was not submitted or was taken; cancelled when `cancel` came first.
  [[nodiscard]] result<planned> take(std::int64_t iteration) {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    report_.last_wait_s = 0;
    auto place = find(iteration);
    if (place == jobs_.end()) {
      return error{errc::not_found, "no plan was asked for iteration " + std::to_string(iteration),
                   iteration, 0, "submit the iteration first, and take it once"};
    }
    const std::int64_t ticket = place->ticket;
    if (place->where != state::done) {
      if (!thread_.joinable()) plan_queued_before(ticket, lock);
      ++report_.waiting;
      done_.wait(lock, [&] {
        place = find(iteration);
        return place == jobs_.end() || place->ticket != ticket || place->where == state::done;
      });
      --report_.waiting;
      place = find(iteration);
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      report_.last_wait_s = waited.count();
      report_.waited_s += waited.count();
      if (place == jobs_.end() || place->ticket != ticket) {
        return error{errc::cancelled, "the plan of iteration " + std::to_string(iteration) +
                     " was cancelled", iteration, 0, "submit it again"};
      }
    }
    result<planned> out = std::move(*place->outcome);
    jobs_.erase(place);
    return out;
  }

  /// Throws away all plans, and what is learned for a warm start. Who waits in `take` gets
  /// `cancelled`. The plan in progress is finished, and its result dropped.
  void cancel() {
    {
      const std::lock_guard lock(mutex_);
      drop_all();
    }
    done_.notify_all();
  }

  [[nodiscard]] async_planner_report report() const {
    const std::lock_guard lock(mutex_);
    return report_;
  }
  /// Plans that nobody has taken, made or not.
  [[nodiscard]] std::int32_t pending() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int32_t>(jobs_.size());
  }
  [[nodiscard]] std::int32_t depth() const noexcept { return options_.depth; }
  [[nodiscard]] const Planner& planner() const noexcept { return planner_; }

 private:
  enum class state : std::int32_t { queued, planning, done };
  struct job {
    std::int64_t iteration = 0;
    std::int64_t ticket = 0;
    problem prob;
    state where = state::queued;
    std::optional<result<planned>> outcome;
  };

  [[nodiscard]] typename std::deque<job>::iterator find(std::int64_t iteration) {
    return std::find_if(jobs_.begin(), jobs_.end(),
                        [&](const job& j) { return j.iteration == iteration; });
  }
  [[nodiscard]] typename std::deque<job>::iterator first_queued() {
    return std::find_if(jobs_.begin(), jobs_.end(),
                        [](const job& j) { return j.where == state::queued; });
  }

  void drop_all() {
    report_.cancelled += static_cast<std::int64_t>(jobs_.size());
    jobs_.clear();
    hint_ = {};
  }

  void start() {
    if (thread_.joinable() || !options_.own_thread) return;
    const auto started = contain("std::thread", [this] {
      thread_ = std::thread([this] { run(); });
    });
    static_cast<void>(started);  // without a thread, `take` plans
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return stop_ || first_queued() != jobs_.end(); });
      if (stop_) return;
      plan_one(lock);
      done_.notify_all();
    }
  }

  void plan_queued_before(std::int64_t ticket, std::unique_lock<std::mutex>& lock) {
    for (;;) {
      const auto next = first_queued();
      if (next == jobs_.end() || next->ticket > ticket) return;
      plan_one(lock);
      done_.notify_all();  // another `take` may wait for this one
    }
  }

  /// Plans the first job that is queued, with the lock open meanwhile.
  void plan_one(std::unique_lock<std::mutex>& lock) {
    const auto next = first_queued();
    next->where = state::planning;
    const std::int64_t iteration = next->iteration;
    const std::int64_t ticket = next->ticket;
    const problem prob = std::move(next->prob);
    const plan_hint hint = options_.warm_start ? hint_ : plan_hint{};
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    result<planned> outcome = contain("the planner", [&] { return planner_.plan(prob, hint); });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    lock.lock();
    report_.planning_s += took.count();
    const auto place = find(iteration);
    if (place == jobs_.end() || place->ticket != ticket) return;  // cancelled meanwhile
    (outcome ? report_.planned : report_.failed) += 1;
    if (options_.warm_start) hint_ = outcome ? outcome->hint : plan_hint{};
    place->outcome = std::move(outcome);
    place->where = state::done;
  }

  Planner planner_;
  async_planner_options options_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<job> jobs_;
  std::int64_t tickets_ = 0;
  plan_hint hint_;
  async_planner_report report_;
  bool stop_ = false;
  std::thread thread_;
};

template <class Planner>
async_planner(Planner, async_planner_options) -> async_planner<Planner>;
template <class Planner>
async_planner(Planner) -> async_planner<Planner>;

}  // namespace v0
}  // namespace dyncp
