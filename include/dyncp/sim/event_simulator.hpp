// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/sim/one_f_one_b.hpp>
#include <dyncp/sim/priced_plan.hpp>
#include <dyncp/sim/simulator.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// One operation of one group in time.
struct timeline_slice {
  std::int32_t stage = 0;
  std::int32_t chunk = 0;
  std::int32_t micro_batch = 0;
  std::int32_t group = 0;  ///< index into priced_plan::ranks
  bool backward = false;
  ticks start = 0;
  ticks end = 0;
};

struct timeline {
  std::vector<timeline_slice> slices;  ///< in an order in which inputs precede their users
  ticks makespan = 0;
};

/// Every operation of every rank and stage, 1F1B or interleaved 1F1B, with CP coupling.
///
/// Stateless; safe to call concurrently.
struct event_simulator {
  [[nodiscard]] ticks makespan(const priced_plan& plan, pipeline pipe) const {
    if (pipe.chunks == 1) return one_f_one_b{}.makespan(plan, pipe.stages);
    return run(plan, pipe, nullptr);
  }

  /// The same with the time of every operation. Memory: 40 bytes a slice.
  [[nodiscard]] timeline trace(const priced_plan& plan, pipeline pipe) const {
    timeline out;
    out.makespan = run(plan, pipe, &out.slices);
    return out;
  }

 private:
  // Runs the stages' orders against each other: whichever stage's next operation has its input
  // goes on. All ranks run one order, so readiness is a matter of (stage, micro-batch) alone.
  static ticks run(const priced_plan& plan, pipeline pipe, std::vector<timeline_slice>* slices) {
    const auto ranks = static_cast<std::size_t>(plan.num_ranks);
    const auto micro_batches = static_cast<std::size_t>(plan.num_micro_batches());
    const std::size_t virtual_stages = static_cast<std::size_t>(pipe.stages) * pipe.chunks;
    std::vector<std::vector<operation>> orders;
    for (std::int32_t s = 0; s < pipe.stages; ++s) {
      orders.push_back(stage_order(pipe, s, plan.num_micro_batches()));
    }
    // Arrival times (virtual stage, micro-batch, rank) of forward inputs and backward inputs.
    std::vector<ticks> forward_sent(virtual_stages * micro_batches * ranks, 0);
    std::vector<ticks> backward_sent(virtual_stages * micro_batches * ranks, 0);
    std::vector<char> forward_done(virtual_stages * micro_batches, 0);
    std::vector<char> backward_done(virtual_stages * micro_batches, 0);
    std::vector<ticks> free(static_cast<std::size_t>(pipe.stages) * ranks, 0);
    std::vector<std::size_t> next(orders.size(), 0);
    const std::vector<ticks> at_zero(ranks, 0);

    const auto cell = [&](std::size_t vs, std::size_t j) { return vs * micro_batches + j; };
    bool progress = true;
    while (progress) {
      progress = false;
      for (std::size_t s = 0; s < orders.size(); ++s) {
        while (next[s] < orders[s].size()) {
          const operation op = orders[s][next[s]];
          const std::size_t vs =
              static_cast<std::size_t>(op.chunk) * orders.size() + s;
          const auto j = static_cast<std::size_t>(op.micro_batch);
          const ticks* in = at_zero.data();
          bool ready = true;
          if (!op.backward && vs > 0) {
            ready = forward_done[cell(vs - 1, j)] != 0;
            in = forward_sent.data() + cell(vs - 1, j) * ranks;
          } else if (op.backward && vs + 1 < virtual_stages) {
            ready = backward_done[cell(vs + 1, j)] != 0;
            in = backward_sent.data() + cell(vs + 1, j) * ranks;
          } else if (op.backward) {
            ready = forward_done[cell(vs, j)] != 0;  // its end lies on `free` already
          }
          if (!ready) break;
          ticks* const out =
              (op.backward ? backward_sent : forward_sent).data() + cell(vs, j) * ranks;
          run_operation(plan, op, static_cast<std::int32_t>(s), vs, in, free.data() + s * ranks,
                        out, slices);
          (op.backward ? backward_done : forward_done)[cell(vs, j)] = 1;
          ++next[s];
          progress = true;
        }
      }
    }
    for (std::size_t s = 0; s < orders.size(); ++s) DYNCP_ASSERT(next[s] == orders[s].size());
    return free.empty() ? 0 : *std::max_element(free.begin(), free.end());
  }

  static void run_operation(const priced_plan& plan, operation op, std::int32_t stage,
                            std::size_t virtual_stage, const ticks* in, ticks* free, ticks* out,
                            std::vector<timeline_slice>* slices) {
    const auto costs = plan.costs_of_class(plan.class_of_stage[virtual_stage]);
    const auto j = static_cast<std::size_t>(op.micro_batch);
    for (std::int32_t i = 0; i < plan.num_ranks; ++i) out[i] = std::max(in[i], free[i]);
    for (std::int32_t g = plan.first_group[j]; g < plan.first_group[j + 1]; ++g) {
      const rank_range r = plan.ranks[static_cast<std::size_t>(g)];
      const op_cost& cost = costs[static_cast<std::size_t>(g)];
      const ticks start = *std::max_element(out + r.begin, out + r.end());
      const ticks end = start + (op.backward ? cost.backward : cost.forward);
      std::fill(out + r.begin, out + r.end(), end);
      if (slices != nullptr) {
        slices->push_back({stage, op.chunk, op.micro_batch, g, op.backward, start, end});
      }
    }
    std::copy(out, out + plan.num_ranks, free);
    for (std::int32_t g = plan.first_group[j]; g < plan.first_group[j + 1]; ++g) {
      const rank_range r = plan.ranks[static_cast<std::size_t>(g)];
      for (std::int32_t i = r.begin; i < r.end(); ++i) {
        out[i] += costs[static_cast<std::size_t>(g)].transfer;
      }
    }
  }
};

static_assert(simulator<event_simulator>);

}  // namespace v0
}  // namespace dyncp
