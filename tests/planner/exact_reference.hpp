// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/problem/problem.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace dyncp_test {

/// The least makespan of any plan with at most `most` micro-batches, by branch and bound over the
/// true objective: each sequence, longest first, goes into every open group and every group that
/// can be opened, in every micro-batch. A branch ends when its partial plan already takes as long
/// as the best (costs grow with the load), or when its work and the least work of the rest, shared
/// by all ranks, do. Own 1F1B recursion; powers of two up to R <= 8, no padding.
class exact_reference {
 public:
  exact_reference(const dyncp::problem& p, std::int32_t most, bool bounds = true)
      : problem_(p),
        cost_(p.model, p.cluster, p.parallel),
        most_(most),
        ranks_(p.parallel.ranks),
        stages_(p.parallel.pp),
        use_bounds_(bounds) {
    // Else a longer pack may be faster, and a branch would end too early.
    REQUIRE(p.cluster.attention_half_tokens == 0);
    order_.resize(p.sequences.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return p.sequences[a].length > p.sequences[b].length;
    });
    // Least rank-time that an item adds to any group: its marginal time alone, without fixed.
    least_rest_.assign(order_.size() + 1, 0);
    for (std::size_t i = order_.size(); i-- > 0;) {
      const double n = static_cast<double>(p.sequences[order_[i]].length);
      least_rest_[i] = least_rest_[i + 1] + cost_.work_floor_s(n, n * n, 0) * (1 - 1e-9);
    }
  }

  /// Ticks of the optimum below `start` (an upper bound known already), else `start`.
  [[nodiscard]] std::int64_t solve(std::int64_t start = std::numeric_limits<std::int64_t>::max()) {
    best_ = start;
    for (std::int32_t m = 1; m <= most_; ++m) {
      slots_.assign(static_cast<std::size_t>(m), {});
      place(0, 0.0);
    }
    return best_;
  }
  [[nodiscard]] std::int64_t nodes() const { return nodes_; }

 private:
  struct group {
    std::int32_t begin = 0;
    std::int32_t size = 0;
    dyncp::load held;
    dyncp::op_cost cost;
  };

  [[nodiscard]] dyncp::op_cost price(const group& g) const {
    const std::int32_t per_node = problem_.cluster.gpus_per_node / problem_.parallel.tp;
    const bool inside = g.begin / per_node == (g.begin + g.size - 1) / per_node;
    return cost_.cost(g.held, g.size, inside ? dyncp::link::nvlink : dyncp::link::network, 0);
  }

  // 1F1B from the definition: every stage's list of operations, run as their inputs appear.
  [[nodiscard]] std::int64_t makespan() {
    const auto p = static_cast<std::size_t>(stages_);
    const std::size_t m = slots_.size();
    const auto r = static_cast<std::size_t>(ranks_);
    std::vector<std::int64_t> free(p * r, 0);
    std::vector<std::int64_t> forward(p * m * r, 0);
    std::vector<std::int64_t> backward(p * m * r, 0);
    std::vector<std::size_t> done_f(p, 0);
    std::vector<std::size_t> done_b(p, 0);
    std::int64_t last = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < p; ++s) {
        const std::size_t warm = std::min(p - s - 1, m);
        const bool turn_f =
            done_f[s] < m && (done_f[s] < warm || done_f[s] - warm == done_b[s]);
        if (turn_f) {
          const std::size_t j = done_f[s];
          if (s > 0 && done_f[s - 1] <= j) continue;
          run(j, false, s > 0 ? &forward[((s - 1) * m + j) * r] : nullptr, &free[s * r],
              &forward[(s * m + j) * r]);
          ++done_f[s];
          moved = true;
        } else if (done_b[s] < m) {
          const std::size_t j = done_b[s];
          if (s + 1 < p && done_b[s + 1] <= j) continue;
          run(j, true, s + 1 < p ? &backward[((s + 1) * m + j) * r] : nullptr, &free[s * r],
              &backward[(s * m + j) * r]);
          ++done_b[s];
          moved = true;
        }
      }
    }
    for (const std::int64_t t : free) last = std::max(last, t);
    return last;
  }

  void run(std::size_t j, bool backward, const std::int64_t* in, std::int64_t* free,
           std::int64_t* out) const {
    for (std::int32_t i = 0; i < ranks_; ++i) {
      out[i] = in == nullptr ? free[i] : std::max(free[i], in[i]);
    }
    for (const group& g : slots_[j]) {
      const std::int64_t start = *std::max_element(out + g.begin, out + g.begin + g.size);
      const std::int64_t end = start + (backward ? g.cost.backward : g.cost.forward);
      std::fill(out + g.begin, out + g.begin + g.size, end);
    }
    std::copy(out, out + ranks_, free);
  }

  void place(std::size_t i, double work_s) {
    ++nodes_;
    if (i == order_.size()) {
      best_ = std::min(best_, makespan());
      return;
    }
    if (use_bounds_ && i > 0) {
      const double area = (work_s + least_rest_[i]) / ranks_;
      if (area > 0 && dyncp::to_ticks(area * (1 - 1e-9)) >= best_) return;
      if (makespan() >= best_) return;
    }
    const dyncp::load item = dyncp::sequence_load(problem_.sequences[order_[i]].length, 1);
    for (std::size_t j = 0; j < slots_.size(); ++j) {
      for (std::size_t g = 0; g < slots_[j].size(); ++g) {
        const group before = slots_[j][g];
        group grown = before;
        grown.held += item;
        if (grown.held.tokens > problem_.limits.max_tokens_per_rank * grown.size) continue;
        grown.cost = price(grown);
        slots_[j][g] = grown;
        place(i + 1, work_s + dyncp::to_seconds(grown.cost.total() - before.cost.total()) *
                                  grown.size);
        slots_[j][g] = before;
      }
      for (std::int32_t c = 1; c <= dyncp::effective_max_cp(problem_.parallel); c *= 2) {
        if (item.tokens > problem_.limits.max_tokens_per_rank * c) continue;
        for (std::int32_t at = 0; at + c <= ranks_; at += c) {
          const bool taken = std::any_of(slots_[j].begin(), slots_[j].end(), [&](const group& o) {
            return o.begin < at + c && at < o.begin + o.size;
          });
          if (taken) continue;
          group opened{at, c, item, {}};
          opened.cost = price(opened);
          slots_[j].push_back(opened);
          place(i + 1, work_s + dyncp::to_seconds(opened.cost.total()) * c);
          slots_[j].pop_back();
          if (i == 0) break;  // ranks are alike before the first item: one place is enough
        }
      }
    }
  }

  const dyncp::problem& problem_;
  dyncp::analytic_cost cost_;
  std::int32_t most_;
  std::int32_t ranks_;
  std::int32_t stages_;
  bool use_bounds_;
  std::vector<std::size_t> order_;
  std::vector<double> least_rest_;  // (items + 1): seconds
  std::vector<std::vector<group>> slots_;
  std::int64_t best_ = 0;
  std::int64_t nodes_ = 0;
};

}  // namespace dyncp_test
