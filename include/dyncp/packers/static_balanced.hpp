// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Which number of micro-batches a static packer takes, unless it is fixed.
enum class micro_batch_choice : std::int8_t {
  least,          ///< the least that holds the batch
  best_simulated  ///< the one of least simulated makespan among a dozen from the least upwards
};

/// The best that static CP does without changing its CP size: packs balanced by cost.
///
/// 1. M starts at ceil(tokens / (dp * capacity)), rounded up to the micro-batch multiple.
/// 2. Longest processing time first: items by falling cost alone, each to the pack of least cost
///    among the dp * M packs that have token room for it. When one finds none, M goes up.
/// 3. Packs by falling cost go to the lanes, dp at a time, so that a micro-batch holds packs of
///    like cost; micro-batches run with the heaviest in the middle, or heaviest first where that
///    simulates faster.
/// 4. `best_simulated`: of twelve M, each about a sixth more than the one before, the best is taken.
/// Compare with it before crediting a scheduler with what balance alone brings.
/// Errors: as `packing_only`; not_found also when a fixed M is too small for LPT.
/// Complexity: O(tries * (n * dp * M + M * R * pp)).
struct static_balanced {
  static constexpr std::string_view name = "static_balanced";
  static constexpr std::int32_t most_tries = 12;

  std::int64_t pack_tokens = 0;  ///< padded tokens of a pack; 0: limit * cp
  micro_batch_choice micro_batches = micro_batch_choice::best_simulated;

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost& cost) const {
    if (auto ok = detail::check_static_cp(prob, name); !ok) return ok.error();
    const std::int64_t capacity = detail::static_capacity(prob, pack_tokens);
    auto items = detail::static_items(prob, prob.parallel.static_cp, capacity);
    if (!items) return items.error();
    const builder<Cost> build(prob, cost, *items, capacity);
    const std::int64_t multiple = micro_batch_multiple(prob);
    const auto most = static_cast<std::int64_t>(items->size());
    const bool fixed = prob.limits.micro_batches > 0;

    std::optional<timed_plan> best;
    std::int32_t tries = 0;
    std::int64_t m = fixed ? prob.limits.micro_batches : round_up(build.least(), multiple);
    for (;;) {
      std::optional<timed_plan> made = build.at(m);
      if (made && (!best || made->makespan < best->makespan)) best = std::move(made);
      if (best) ++tries;
      const std::int32_t wanted = micro_batches == micro_batch_choice::least ? 1 : most_tries;
      const bool enough = tries >= wanted;
      // One item a pack is as far as it goes; then LPT has found room for all.
      if (fixed || enough || m >= round_up(most, multiple)) break;
      const std::int64_t step = best ? std::max<std::int64_t>(1, m / 6) : 1;
      m = std::min(round_up(m + step, multiple), round_up(most, multiple));
    }
    if (!best) {
      return error{errc::not_found,
                   "static_balanced finds no room for every sequence in " + std::to_string(m) +
                       " micro-batches",
                   m, 0, "raise --micro-batches or let the packer choose"};
    }
    return detail::settle(prob, std::move(best->made), name);
  }

 private:
  struct timed_plan {
    plan made;
    ticks makespan = 0;
  };

  template <cost_model Cost>
  class builder {
   public:
    builder(const problem& prob, const Cost& cost, const std::vector<detail::static_item>& items,
            std::int64_t capacity)
        : prob_(prob),
          cost_(cost),
          items_(items),
          bins_(prob, items, capacity),
          lanes_(prob.parallel.ranks / prob.parallel.static_cp),
          order_(items.size()) {
      int128 tokens = 0;
      std::vector<ticks> alone;
      for (const detail::static_item& item : items_) {
        tokens += item.sum.tokens;
        alone.push_back(price(item.sum));
      }
      least_ = std::max<std::int64_t>(
          1, static_cast<std::int64_t>((tokens + int128{capacity} * lanes_ - 1) /
                                       (int128{capacity} * lanes_)));
      std::iota(order_.begin(), order_.end(), 0);
      std::stable_sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
        return alone[static_cast<std::size_t>(a)] > alone[static_cast<std::size_t>(b)];
      });
    }

    [[nodiscard]] std::int64_t least() const noexcept { return least_; }

    [[nodiscard]] std::optional<timed_plan> at(std::int64_t m) const {
      // More packs than items would stay empty.
      const auto count = static_cast<std::size_t>(
          std::min(m * lanes_, static_cast<std::int64_t>(items_.size())));
      detail::item_packs packs(count);
      std::vector<load> sums(count);
      std::vector<ticks> costs(count, 0);
      std::size_t opened = 0;  // packs are opened in order, so the rest need no look
      for (const std::int32_t i : order_) {
        std::size_t to = std::min(opened, count);
        if (opened == count) {
          for (std::size_t k = 0; k < count; ++k) {
            if ((to == count || costs[k] < costs[to]) && bins_.fits(sums[k], i)) to = k;
          }
        }
        if (to == count) return std::nullopt;
        opened = std::max(opened, to + 1);
        packs[to].push_back(i);
        sums[to] += items_[static_cast<std::size_t>(i)].sum;
        costs[to] = price(sums[to]);
      }
      return arrange(packs, costs, static_cast<std::int32_t>(m));
    }

   private:
    [[nodiscard]] ticks price(const load& l) const {
      const std::int32_t cp = prob_.parallel.static_cp;
      const std::int32_t node = ranks_per_node(prob_.cluster.gpus_per_node, prob_.parallel);
      return cost_.cost(l, cp, link_of({0, cp}, node), cost_.bottleneck_class()).total();
    }

    // Step 3.
    [[nodiscard]] timed_plan arrange(const detail::item_packs& packs,
                                     const std::vector<ticks>& costs, std::int32_t m) const {
      std::vector<std::size_t> falling(packs.size());
      std::iota(falling.begin(), falling.end(), std::size_t{0});
      std::stable_sort(falling.begin(), falling.end(),
                       [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
      std::vector<std::int32_t> in_order(static_cast<std::size_t>(m));
      std::iota(in_order.begin(), in_order.end(), 0);
      timed_plan first = lay_out(packs, falling, in_order);
      timed_plan middle = lay_out(packs, falling, detail::largest_in_the_middle(m));
      return middle.makespan <= first.makespan ? std::move(middle) : std::move(first);
    }

    [[nodiscard]] timed_plan lay_out(const detail::item_packs& packs,
                                     const std::vector<std::size_t>& falling,
                                     const std::vector<std::int32_t>& order) const {
      timed_plan out{detail::blank_plan(prob_), 0};
      out.made.micro_batches.resize(order.size());
      for (std::size_t j = 0; j < order.size(); ++j) {
        const auto lanes = static_cast<std::size_t>(lanes_);
        const std::size_t from = static_cast<std::size_t>(order[j]) * lanes;
        for (std::size_t k = from; k < std::min(from + lanes, falling.size()); ++k) {
          detail::add_to_lane(prob_, items_, packs[falling[k]],
                              static_cast<std::int32_t>(k - from), out.made.micro_batches[j]);
        }
      }
      out.makespan = event_simulator{}.makespan(price_plan(out.made, prob_, cost_),
                                                {prob_.parallel.pp, prob_.parallel.vpp});
      return out;
    }

    const problem& prob_;
    const Cost& cost_;
    const std::vector<detail::static_item>& items_;
    detail::static_bins bins_;
    std::int32_t lanes_;
    std::vector<std::int32_t> order_;  // items by falling cost alone
    std::int64_t least_ = 1;
  };
};

}  // namespace v0
}  // namespace dyncp
