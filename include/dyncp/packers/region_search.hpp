// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/packers/region_builder.hpp>
#include <dyncp/packers/region_split.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// Finds the number of micro-batches of one region, by building and simulating candidates.
///
/// T(M) falls while smaller slots shrink the bubble and rises with the fixed time of each; it is
/// flat near its minimum. A geometric sweep from the memory minimum to beyond
/// sqrt(0.6 (p-1) W / fixed), where bubble and fixed time balance, then steps that halve around
/// the best. Complexity: about 20 builds, O(k log k) each for k items.
template <cost_model Cost>
class region_search {
 public:
  region_search(const problem& prob, const Cost& cost, const item_table& items)
      : prob_(prob), items_(items), builder_(prob, cost, items) {
    const std::int32_t c = items.sizes.front();
    fixed_ = static_cast<double>(
        cost.cost(load{1, 1, 1}, c, link::nvlink, cost.bottleneck_class()).total());
    most_ = prob.limits.micro_batches > 0 ? prob.limits.micro_batches
                                          : std::numeric_limits<std::int32_t>::max();
  }

  /// The best plan found for a share, starting from `start` micro-batches (0: a full sweep).
  /// An empty plan with makespan -1 when no M up to the limit holds the items.
  [[nodiscard]] region_plan find(const region_share& share, std::int32_t start) {
    best_ = {};
    best_.ranks = share.ranks;
    best_.makespan = -1;
    if (share.items.empty()) {
      best_.makespan = 0;
      return std::move(best_);
    }
    const std::int32_t least = least_micro_batches(share);
    best_m_ = 0;
    if (start == 0) {
      sweep(share, least);
    } else {
      try_m(share, start);
    }
    for (std::int32_t m = least; best_.makespan < 0 && m <= most_;) {
      try_m(share, m);
      if (m > least + 4 * static_cast<std::int32_t>(share.items.size())) break;
      m = std::min(m + 1 + m / 8, std::max(m + 1, most_));
    }
    if (best_.makespan < 0) return std::move(best_);
    for (std::int32_t step = std::max(1, best_m_ / 10);; step /= 2) {
      const std::int32_t middle = best_m_;
      if (!try_m(share, middle + step) && middle - step >= least) try_m(share, middle - step);
      if (step <= 1) break;
    }
    return std::move(best_);
  }

  /// Slots given to the builder for the plan found last; a good start for a similar share.
  [[nodiscard]] std::int32_t micro_batches() const noexcept { return best_m_; }

 private:
  // Memory bound: all ranks full in every micro-batch.
  [[nodiscard]] std::int32_t least_micro_batches(const region_share& share) const noexcept {
    int128 tokens = 0;
    for (const std::int32_t i : share.items) {
      tokens += items_.load_of(i, items_.least_size[static_cast<std::size_t>(i)]).tokens;
    }
    const int128 room = int128{prob_.limits.max_tokens_per_rank} * share.ranks.size;
    const int128 least = (tokens + room - 1) / room;
    return static_cast<std::int32_t>(
        std::clamp<int128>(least, 1, static_cast<int128>(share.items.size())));
  }

  void sweep(const region_share& share, std::int32_t least) {
    double work = 0;
    for (const std::int32_t i : share.items) {
      const std::int32_t k = items_.least_size[static_cast<std::size_t>(i)];
      work += rounded_product(static_cast<double>(items_.time_alone(i, k)),
                              items_.sizes[static_cast<std::size_t>(k)]);
    }
    work /= share.ranks.size;
    const double balance = std::sqrt(0.6 * (prob_.parallel.pp - 1) * work / fixed_);
    const auto top = static_cast<std::int32_t>(
        std::min(1e6, std::max(1.3 * balance, 1.5 * least)));
    for (std::int32_t m = least; m <= std::min(top, most_); m = std::max(m + 1, m * 23 / 20)) {
      try_m(share, m);
    }
  }

  bool try_m(const region_share& share, std::int32_t m) {
    if (m < 1 || m > most_) return false;
    if (!builder_.build(share.ranks, share.items, {m, 1.0, 1.0}, trial_)) return false;
    builder_.simulate(trial_);
    if (best_.makespan >= 0 && trial_.makespan >= best_.makespan) return false;
    std::swap(best_, trial_);
    best_m_ = m;
    return true;
  }

  const problem& prob_;
  const item_table& items_;
  region_builder<Cost> builder_;
  double fixed_ = 0;        // ticks of an operation pair of one token
  std::int32_t most_ = 0;   // largest M allowed
  std::int32_t best_m_ = 0;
  region_plan best_;
  region_plan trial_;
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
