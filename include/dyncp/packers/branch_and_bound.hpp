// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/group_pricing.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/packers/region_builder.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/incremental.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// Depth-first search for a region of a handful of items: each item, longest first, into every
/// group and every group that could be opened. A branch ends when its partial plan already takes
/// as long as the best plan. Costs grow with what is added, but for attention that is slow below n1
/// tokens (`attention_half_tokens`): there a branch may end too early and a better plan be missed.
/// Where token limits leave few
/// places this finds what local search cannot reach. Stops after `nodes` placements.
/// Complexity: O(nodes * p * R * M). Plain 1F1B only.
template <cost_model Cost>
class branch_and_bound {
 public:
  branch_and_bound(const problem& prob, const Cost& cost, const item_table& items)
      : items_(items), groups_(prob, cost, items), classes_(groups_.stage_classes()) {}

  /// Improves `plan` of the items `chosen` (ascending) with exactly `slots` micro-batches.
  void improve(region_plan& plan, std::span<const std::int32_t> chosen, std::int32_t slots,
               std::int64_t nodes) {
    region_ = plan.ranks;
    chosen_ = chosen;
    nodes_ = nodes;
    best_time_ = plan.makespan;
    slots_.assign(static_cast<std::size_t>(slots), {});
    timed_.assign(static_cast<std::size_t>(slots), {});
    found_.clear();
    view_.clear();
    for (const auto& t : timed_) view_.push_back(&t);
    incremental_1f1b sim(region_.size, classes_);
    place(0, sim);
    if (!found_.empty()) store(plan);
  }

 private:
  struct group {
    std::int32_t size = 0;
    load held;
    std::vector<std::int32_t> items;
  };

  void price(std::size_t j, std::size_t g) {
    timed_group& t = timed_[j][g];
    groups_.costs(slots_[j][g].held, {region_.begin + t.ranks.begin, t.ranks.size}, t.costs);
  }

  void place(std::size_t depth, incremental_1f1b& sim) {
    if (--nodes_ < 0) return;
    const ticks now = depth == 0 ? 0 : sim.trial(view_, 0);
    if (now >= best_time_) return;
    if (depth == chosen_.size()) {
      best_time_ = now;
      found_ = slots_;
      found_timed_ = timed_;
      return;
    }
    const std::int32_t item = chosen_[depth];
    const std::int32_t least = items_.least_size[static_cast<std::size_t>(item)];
    for (std::size_t j = 0; j < slots_.size(); ++j) {
      for (std::size_t g = 0; g < slots_[j].size(); ++g) {
        const std::int32_t k = slots_[j][g].size;
        if (k < least) continue;
        const load before = slots_[j][g].held;
        const load after = before + items_.load_of(item, k);
        if (!groups_.fits(after, k)) continue;
        slots_[j][g].held = after;
        slots_[j][g].items.push_back(item);
        price(j, g);
        place(depth + 1, sim);
        slots_[j][g].held = before;
        slots_[j][g].items.pop_back();
        price(j, g);
      }
      for (std::int32_t k = least; k < items_.num_sizes(); ++k) {
        const std::int32_t c = groups_.ranks_of(k);
        const load alone = items_.load_of(item, k);
        if (c > region_.size || !groups_.fits(alone, k)) continue;
        const std::int32_t step = is_power_of_two(c) ? c : 1;
        const auto first =
            static_cast<std::int32_t>(round_up(region_.begin, step)) - region_.begin;
        for (std::int32_t at = first; at + c <= region_.size; at += step) {
          const auto& taken = timed_[j];
          if (std::any_of(taken.begin(), taken.end(), [&](const timed_group& o) {
                return o.ranks.overlaps({at, c});
              })) {
            continue;
          }
          slots_[j].push_back({k, alone, {item}});
          timed_[j].push_back({{at, c}, {}});
          price(j, slots_[j].size() - 1);
          place(depth + 1, sim);
          slots_[j].pop_back();
          timed_[j].pop_back();
          if (depth == 0) break;  // no place differs from another yet
        }
      }
    }
  }

  void store(region_plan& plan) {
    plan.makespan = best_time_;
    plan.cells.clear();
    plan.items.clear();
    plan.order.clear();
    while (!found_.empty() && found_.back().empty()) found_.pop_back();
    for (std::size_t j = 0; j < found_.size(); ++j) {
      plan.order.push_back(static_cast<std::int32_t>(j));
      std::vector<std::size_t> by_rank(found_[j].size());
      std::iota(by_rank.begin(), by_rank.end(), std::size_t{0});
      std::sort(by_rank.begin(), by_rank.end(), [&](std::size_t a, std::size_t b) {
        return found_timed_[j][a].ranks.begin < found_timed_[j][b].ranks.begin;
      });
      for (const std::size_t g : by_rank) {
        const timed_group& t = found_timed_[j][g];
        plan.add({{region_.begin + t.ranks.begin, t.ranks.size},
                  static_cast<std::int32_t>(j),
                  found_[j][g].size,
                  found_[j][g].held,
                  t.costs[static_cast<std::size_t>(groups_.bottleneck())],
                  0,
                  0},
                 found_[j][g].items);
      }
    }
  }

  const item_table& items_;
  group_pricing<Cost> groups_;
  std::vector<std::int32_t> classes_;
  rank_range region_;
  std::span<const std::int32_t> chosen_;
  std::int64_t nodes_ = 0;
  ticks best_time_ = 0;
  std::vector<std::vector<group>> slots_;
  std::vector<std::vector<timed_group>> timed_;
  std::vector<std::vector<group>> found_;
  std::vector<std::vector<timed_group>> found_timed_;
  std::vector<const std::vector<timed_group>*> view_;
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
