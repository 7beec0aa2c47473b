// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/sim/priced_plan.hpp>
#include <dyncp/sim/simulator.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Equation 1 of the Dynamic-CP article: a rank takes W * (M*V + p - 1), W = forward + backward of
/// one micro-batch on one virtual stage, M its micro-batches, V chunks a stage, p stages.
///
/// Exact when all M*V operations of every rank cost the same, at any ratio of backward to forward
/// (with V > 1, M is a multiple of p). For unequal costs it is the article's estimate: W is the
/// mean of the rank's packs, so neither order, nor the largest pack, nor waiting for the ranks of
/// a group counts; `event_simulator` counts them. Stages of unequal cost are all taken for the
/// costliest, transfers between stages for free.
///
/// Rounds up to a tick; saturates at the largest `ticks`. O(groups * classes + ranks).
/// Stateless; safe to call concurrently.
struct closed_form {
  [[nodiscard]] ticks makespan(const priced_plan& plan, pipeline pipe) const {
    struct rank_work {
      int128 time = 0;  // ticks of all packs on one virtual stage
      std::int64_t packs = 0;
    };
    std::vector<rank_work> work(static_cast<std::size_t>(plan.num_ranks));
    for (std::size_t g = 0; g < plan.num_groups(); ++g) {
      int128 costliest = 0;
      for (std::int32_t k = 0; k < plan.stage_classes; ++k) {
        const op_cost& cost = plan.costs_of_class(k)[g];
        costliest = std::max(costliest, int128{cost.forward} + cost.backward);
      }
      for (std::int32_t r = plan.ranks[g].begin; r < plan.ranks[g].end(); ++r) {
        work[static_cast<std::size_t>(r)].time += costliest;
        work[static_cast<std::size_t>(r)].packs += 1;
      }
    }
    int128 longest = 0;
    for (const rank_work& w : work) {
      if (w.packs == 0) continue;
      // W * (M*V + p - 1) with W = time / M.
      const int128 fill = (w.time * (pipe.stages - 1) + w.packs - 1) / w.packs;
      longest = std::max(longest, w.time * pipe.chunks + fill);
    }
    constexpr int128 most = std::numeric_limits<ticks>::max();
    return static_cast<ticks>(std::min(longest, most));
  }
};

static_assert(simulator<closed_form>);

}  // namespace v0
}  // namespace dyncp
