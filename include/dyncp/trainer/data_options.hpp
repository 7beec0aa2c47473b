// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/log_sink.hpp>
#include <dyncp/thd/layout_kind.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// How far a data iterator is: to be kept with a checkpoint, and given to the next one as `start`.
struct data_position {
  std::int64_t iteration = 0;  ///< the next one
  std::int64_t taken = 0;      ///< elements of this process's range in the iterations before it

  friend bool operator==(const data_position&, const data_position&) = default;
};

/// Samples of an iteration, at most.
inline constexpr std::int64_t max_global_batch_size = std::int64_t{1} << 22;

inline constexpr std::int32_t max_iterations_ahead = 4096;

struct data_iterator_options {
  std::int64_t global_batch_size = 0;  ///< samples per iteration, over all ranks
  bool drop_last = false;              ///< leave a short batch at the end out
  /// Leave out sequences that no plan can hold (length below one, or too long for the largest
  /// group) instead of failing; the step names them.
  bool drop_unfit = false;
  std::int32_t ahead = 1;              ///< iterations planned ahead; 0: `next` plans
  /// Plans start from the hint of the plan before. After a failure steps are planned anew, without
  /// what was learned, and known samples are loaded again where the new plan wants them.
  bool warm_start = false;
  std::int32_t rank = -1;              ///< of the DPxCP domain; -1: that of the channel
  layout_kind layout = layout_kind::zigzag;
  data_position start = {};
  log_sink log = {};                   ///< a line per micro-batch of this rank
};

/// Counts of a data iterator since it was made. A step that is yielded again counts once; only the
/// bytes of its samples are moved, and counted, again.
struct data_iterator_report {
  std::int64_t steps = 0;
  std::int64_t failures = 0;     ///< calls of `next` that returned an error
  std::int64_t dropped = 0;      ///< sequences left out
  double plan_wait_s = 0;        ///< what the trainer waited for plans
  double last_plan_wait_s = 0;
  double planning_s = 0;         ///< what planning took, on any thread
  std::int64_t probe_bytes = 0;     ///< as in `step_costs`
  std::int64_t rerouted_bytes = 0;  ///< as in `step_costs`
};

}  // namespace v0
}  // namespace dyncp
