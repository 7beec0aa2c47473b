// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <ctime>

namespace megatron_style {

/// Processor time of the calling thread, in seconds: what an operation costs, however many ranks
/// share the processor.
[[nodiscard]] inline double thread_seconds() noexcept {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// What an operation on one rank took, as the members of its group tell each other.
struct operation_time {
  double start_s = 0;  ///< virtual time at which the rank was ready for it
  double cpu_s = 0;
};

/// When the operation of a group with these members began and how long it was: when all of them
/// were ready, and as long as the longest. The rule of the library's simulator.
[[nodiscard]] constexpr operation_time together(operation_time a, operation_time b) noexcept {
  return {std::max(a.start_s, b.start_s), std::max(a.cpu_s, b.cpu_s)};
}

/// The time at which a rank would be if it had a processor of its own. It advances by the processor
/// time of the rank's operations; what is received moves it to the time at which it was sent.
class virtual_clock {
 public:
  void reset() noexcept { *this = virtual_clock{}; }

  [[nodiscard]] double now_s() const noexcept { return now_s_; }
  /// Own processor time of all operations.
  [[nodiscard]] double busy_s() const noexcept { return busy_s_; }
  [[nodiscard]] double pipeline_wait_s() const noexcept { return pipeline_wait_s_; }
  /// Waiting for the other ranks of a group, before and after its operations.
  [[nodiscard]] double group_wait_s() const noexcept { return group_wait_s_; }

  void received(double sent_s) noexcept {
    pipeline_wait_s_ += std::max(0.0, sent_s - now_s_);
    now_s_ = std::max(now_s_, sent_s);
  }
  void operated(operation_time own, operation_time group) noexcept {
    const double end_s = group.start_s + group.cpu_s;
    busy_s_ += own.cpu_s;
    group_wait_s_ += end_s - own.start_s - own.cpu_s;
    now_s_ = end_s;
  }

 private:
  double now_s_ = 0;
  double busy_s_ = 0;
  double pipeline_wait_s_ = 0;
  double group_wait_s_ = 0;
};

}  // namespace megatron_style
