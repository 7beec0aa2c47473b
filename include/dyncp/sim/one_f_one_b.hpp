// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/ticks.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Makespan of plain 1F1B (one chunk a stage) without an event list.
///
/// The operations are visited in an order in which every input is ready: for j = 0, 1, ... and
/// stage s ascending, first B(s, j - p + s), then F(s, j). In 1F1B the operation before F(s, j)
/// on its stage is exactly B(s, j - p + s), and the one before B(s, k) is F(s, k + p - 1 - s), of
/// the step before; so two rows of times per stage are all the state there is.
///
/// An operation starts when all ranks of its group are free and its input has come, and ends on
/// all of them together. A rank without a pack passes its input on: it costs nothing and waits
/// for nobody. Reusable: keeps its rows between calls, so one object serves one thread.
/// Complexity: O(p * (R * M + groups)); about 10^8 rank operations a second.
class one_f_one_b {
 public:
  /// Times on ranks [0, num_ranks) of `plan` with p stages.
  [[nodiscard]] ticks makespan(const priced_plan& plan, std::int32_t stages) {
    const auto ranks = static_cast<std::size_t>(plan.num_ranks);
    const std::int32_t micro_batches = plan.num_micro_batches();
    free_.assign(ranks * static_cast<std::size_t>(stages), 0);
    backward_end_.assign(ranks * static_cast<std::size_t>(stages), 0);
    forward_end_.assign(ranks, 0);
    for (std::int32_t j = 0; j < micro_batches + stages; ++j) {
      if (j < micro_batches) std::fill(forward_end_.begin(), forward_end_.end(), ticks{0});
      for (std::int32_t s = 0; s < stages; ++s) {
        ticks* const free = free_.data() + static_cast<std::size_t>(s) * ranks;
        const op_cost* const costs =
            plan.costs.data() +
            static_cast<std::size_t>(plan.class_of_stage[static_cast<std::size_t>(s)]) *
                plan.num_groups();
        const std::int32_t k = j - stages + s;
        if (k >= 0 && k < micro_batches) {
          ticks* const out = backward_end_.data() + static_cast<std::size_t>(s) * ranks;
          // The last stage turns round: its own forward has just ended on `free`.
          const ticks* const in = s + 1 < stages ? out + ranks : free;
          run<true>(plan, k, costs, in, free, out);
        }
        if (j < micro_batches) {
          run<false>(plan, j, costs, forward_end_.data(), free, forward_end_.data());
        }
      }
    }
    return *std::max_element(free_.begin(), free_.end());
  }

 private:
  template <bool Backward>
  static void run(const priced_plan& plan, std::int32_t j, const op_cost* costs, const ticks* in,
                  ticks* free, ticks* out) noexcept {
    const std::int32_t begin = plan.first_group[static_cast<std::size_t>(j)];
    const std::int32_t end = plan.first_group[static_cast<std::size_t>(j) + 1];
    std::int32_t next_rank = 0;
    for (std::int32_t g = begin; g < end; ++g) {
      const rank_range r = plan.ranks[static_cast<std::size_t>(g)];
      pass_through(next_rank, r.begin, in, free, out);
      next_rank = r.end();
      const op_cost& cost = costs[g];
      ticks start = 0;
      for (std::int32_t i = r.begin; i < r.end(); ++i) {
        start = std::max(start, std::max(in[i], free[i]));
      }
      const ticks finish = start + (Backward ? cost.backward : cost.forward);
      const ticks sent = finish + cost.transfer;
      for (std::int32_t i = r.begin; i < r.end(); ++i) {
        free[i] = finish;
        out[i] = sent;
      }
    }
    pass_through(next_rank, plan.num_ranks, in, free, out);
  }

  static void pass_through(std::int32_t from, std::int32_t to, const ticks* in, ticks* free,
                           ticks* out) noexcept {
    for (std::int32_t i = from; i < to; ++i) {
      free[i] = std::max(free[i], in[i]);
      out[i] = free[i];
    }
  }

  std::vector<ticks> free_;          // (stages, ranks): when the rank is done so far
  std::vector<ticks> backward_end_;  // (stages, ranks): last backward's output has arrived
  std::vector<ticks> forward_end_;   // (ranks): the forward that is passing down the stages
};

}  // namespace v0
}  // namespace dyncp
