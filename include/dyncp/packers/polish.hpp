// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/splitmix.hpp>
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
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// Local search over the micro-batches of a region with the simulated time as objective.
///
/// Each step tries one random change: an item goes to another group or opens one, two items
/// change places, a group takes another size, place or micro-batch, two micro-batches change
/// order. The change stays if the time does not grow by more than a threshold that falls to zero;
/// the best state seen is returned. Plain 1F1B only; keeps token limits and sequence caps.
/// One object serves one thread. Complexity: O(p * R * M) a step, less for late micro-batches.
template <cost_model Cost>
class polisher {
 public:
  polisher(const problem& prob, const Cost& cost, const item_table& items)
      : prob_(prob), items_(items), pricing_(prob, cost, items) {}

  /// Improves `plan` in place by at most `steps` changes; `spare` empty micro-batches are added
  /// that it may use. `heat` is the first threshold over the makespan; `go_on()` is asked before
  /// each step.
  template <class GoOn>
  void improve(region_plan& plan, std::int64_t steps, std::int32_t spare, double heat,
               splitmix& rng, GoOn go_on) {
    if (plan.cells.empty() || prob_.parallel.vpp > 1 || prob_.limits.uniform_cp) return;
    region_ = plan.ranks;
    load_plan(plan, spare);
    incremental_1f1b sim(region_.size, pricing_.stage_classes());
    refresh_view();
    ticks now = sim.commit(view_, 0);
    ticks best_time = now;
    auto best = slots_;
    const double hot = rounded_product(heat, static_cast<double>(now));
    for (std::int64_t step = 0; step < steps && go_on(); ++step) {
      first_changed_ = static_cast<std::int32_t>(slots_.size());
      undo_.clear();
      if (!change(rng)) {
        revert();
        continue;
      }
      refresh_view();
      const double cooled = 1.0 - static_cast<double>(step) / static_cast<double>(steps);
      const double u = rng.unit();
      const auto slack = static_cast<ticks>(hot * cooled * u * u);
      if (sim.trial(view_, first_changed_) > now + slack) {
        revert();
        continue;
      }
      now = sim.commit(view_, first_changed_);
      if (now < best_time) {
        best_time = now;
        best = slots_;
      }
    }
    slots_ = std::move(best);
    if (best_time < plan.makespan) store_plan(plan, best_time);
  }

 private:
  struct group {
    std::int32_t size = 0;  // index of the CP size
    load held;
    std::vector<std::int32_t> items;
  };
  struct slot {
    std::vector<group> groups;
    std::vector<timed_group> timed;  // parallel to groups; ranks are relative to the region
  };

  void load_plan(const region_plan& plan, std::int32_t spare) {
    slots_.assign(static_cast<std::size_t>(plan.num_slots() + spare), {});
    for (const cell& c : plan.cells) {
      slot& s = slots_[static_cast<std::size_t>(c.slot)];
      const auto of_cell = plan.items_of(c);
      group g{c.size, c.held, {of_cell.begin(), of_cell.end()}};
      s.groups.push_back(std::move(g));
      s.timed.push_back({{c.ranks.begin - region_.begin, c.ranks.size}, {}});
      price(s, s.groups.size() - 1);
    }
  }

  void store_plan(region_plan& plan, ticks time) {
    plan.makespan = time;
    plan.cells.clear();
    plan.items.clear();
    plan.order.clear();
    // Empty micro-batches at the end say nothing; those in between keep their place.
    while (!slots_.empty() && slots_.back().groups.empty()) slots_.pop_back();
    for (std::size_t j = 0; j < slots_.size(); ++j) {
      plan.order.push_back(static_cast<std::int32_t>(j));
      std::vector<std::size_t> by_rank(slots_[j].groups.size());
      for (std::size_t g = 0; g < by_rank.size(); ++g) by_rank[g] = g;
      std::sort(by_rank.begin(), by_rank.end(), [&](std::size_t a, std::size_t b) {
        return slots_[j].timed[a].ranks.begin < slots_[j].timed[b].ranks.begin;
      });
      for (const std::size_t g : by_rank) {
        const group& from = slots_[j].groups[g];
        const rank_range r = slots_[j].timed[g].ranks;
        plan.add({{region_.begin + r.begin, r.size},
                  static_cast<std::int32_t>(j),
                  from.size,
                  from.held,
                  slots_[j].timed[g].costs[static_cast<std::size_t>(pricing_.bottleneck())],
                  0,
                  0},
                 from.items);
      }
    }
  }

  [[nodiscard]] std::int32_t size_of(std::int32_t k) const noexcept {
    return pricing_.ranks_of(k);
  }
  [[nodiscard]] bool fits(const load& l, std::int32_t k) const noexcept {
    return pricing_.fits(l, k);
  }

  void price(slot& s, std::size_t g) {
    timed_group& t = s.timed[g];
    pricing_.costs(s.groups[g].held, {region_.begin + t.ranks.begin, t.ranks.size}, t.costs);
  }

  void refresh_view() {
    view_.resize(slots_.size());
    for (std::size_t j = 0; j < slots_.size(); ++j) view_[j] = &slots_[j].timed;
  }

  // Remembers a micro-batch before its first change of this step.
  void touch(std::int32_t j) {
    first_changed_ = std::min(first_changed_, j);
    for (const auto& [index, before] : undo_) {
      if (index == j) return;
    }
    undo_.emplace_back(j, slots_[static_cast<std::size_t>(j)]);
  }
  void revert() {
    for (auto& [j, before] : undo_) slots_[static_cast<std::size_t>(j)] = std::move(before);
    undo_.clear();
  }

  struct place {
    std::int32_t slot = -1;
    std::int32_t group = -1;
  };

  [[nodiscard]] place random_group(splitmix& rng) {
    for (int tries = 0; tries < 8; ++tries) {
      const std::int32_t j = rng.below(static_cast<std::int32_t>(slots_.size()));
      const auto groups =
          static_cast<std::int32_t>(slots_[static_cast<std::size_t>(j)].groups.size());
      if (groups > 0) return {j, rng.below(groups)};
    }
    return {};
  }

  [[nodiscard]] std::int32_t random_free(const slot& s, std::int32_t c, splitmix& rng) const {
    const std::int32_t step = is_power_of_two(c) ? c : 1;
    const std::int32_t first =
        static_cast<std::int32_t>(round_up(region_.begin, step)) - region_.begin;
    if (first + c > region_.size) return -1;
    const std::int32_t places = (region_.size - first - c) / step + 1;
    const std::int32_t start = rng.below(places);
    for (std::int32_t n = 0; n < places; ++n) {
      const std::int32_t at = first + (start + n) % places * step;
      const bool taken = std::any_of(s.timed.begin(), s.timed.end(), [&](const timed_group& o) {
        return o.ranks.overlaps({at, c});
      });
      if (!taken) return at;
    }
    return -1;
  }

  void remove_item(place from, std::size_t index) {
    touch(from.slot);
    slot& s = slots_[static_cast<std::size_t>(from.slot)];
    group& g = s.groups[static_cast<std::size_t>(from.group)];
    g.held -= items_.load_of(g.items[index], g.size);
    g.items.erase(g.items.begin() + static_cast<std::ptrdiff_t>(index));
    if (g.items.empty()) {
      s.groups.erase(s.groups.begin() + from.group);
      s.timed.erase(s.timed.begin() + from.group);
    } else {
      price(s, static_cast<std::size_t>(from.group));
    }
  }

  bool add_item(std::int32_t item, place to) {
    slot& s = slots_[static_cast<std::size_t>(to.slot)];
    group& g = s.groups[static_cast<std::size_t>(to.group)];
    if (items_.least_size[static_cast<std::size_t>(item)] > g.size) return false;
    const load sum = g.held + items_.load_of(item, g.size);
    if (!fits(sum, g.size)) return false;
    touch(to.slot);
    slot& fresh = slots_[static_cast<std::size_t>(to.slot)];
    fresh.groups[static_cast<std::size_t>(to.group)].held = sum;
    fresh.groups[static_cast<std::size_t>(to.group)].items.push_back(item);
    price(fresh, static_cast<std::size_t>(to.group));
    return true;
  }

  bool open_group(std::int32_t j, std::int32_t k, const std::vector<std::int32_t>& items,
                  splitmix& rng) {
    load sum;
    for (const std::int32_t i : items) {
      if (items_.least_size[static_cast<std::size_t>(i)] > k) return false;
      sum += items_.load_of(i, k);
    }
    if (!fits(sum, k)) return false;
    slot& s = slots_[static_cast<std::size_t>(j)];
    const std::int32_t at = random_free(s, size_of(k), rng);
    if (at < 0) return false;
    touch(j);
    s.groups.push_back({k, sum, items});
    s.timed.push_back({{at, size_of(k)}, {}});
    price(s, s.groups.size() - 1);
    return true;
  }

  // One random change; false when it turned out impossible (the caller reverts).
  bool change(splitmix& rng) {
    switch (rng.below(6)) {
      case 0:
      case 1:
        return move_item(rng);
      case 2:
        return swap_items(rng);
      case 3:
        return resize_group(rng);
      case 4:
        return move_group(rng);
      default:
        return swap_slots(rng);
    }
  }

  bool move_item(splitmix& rng) {
    const place from = random_group(rng);
    if (from.slot < 0) return false;
    const group& g =
        slots_[static_cast<std::size_t>(from.slot)].groups[static_cast<std::size_t>(from.group)];
    const auto index = static_cast<std::size_t>(
        rng.below(static_cast<std::int32_t>(g.items.size())));
    const std::int32_t item = g.items[index];
    if (rng.below(3) == 0) {
      const std::int32_t least = items_.least_size[static_cast<std::size_t>(item)];
      const std::int32_t k = least + rng.below(std::max(1, items_.num_sizes() - least));
      remove_item(from, index);
      return open_group(rng.below(static_cast<std::int32_t>(slots_.size())), k, {item}, rng);
    }
    const place to = random_group(rng);
    if (to.slot < 0 || (to.slot == from.slot && to.group == from.group)) return false;
    if (!add_item(item, to)) return false;
    remove_item(from, index);
    return true;
  }

  bool swap_items(splitmix& rng) {
    const place a = random_group(rng);
    const place b = random_group(rng);
    if (a.slot < 0 || b.slot < 0 || (a.slot == b.slot && a.group == b.group)) return false;
    touch(a.slot);
    touch(b.slot);
    slot& sa = slots_[static_cast<std::size_t>(a.slot)];
    slot& sb = slots_[static_cast<std::size_t>(b.slot)];
    group& ga = sa.groups[static_cast<std::size_t>(a.group)];
    group& gb = sb.groups[static_cast<std::size_t>(b.group)];
    std::int32_t& ia =
        ga.items[static_cast<std::size_t>(rng.below(static_cast<std::int32_t>(ga.items.size())))];
    std::int32_t& ib =
        gb.items[static_cast<std::size_t>(rng.below(static_cast<std::int32_t>(gb.items.size())))];
    if (items_.least_size[static_cast<std::size_t>(ia)] > gb.size ||
        items_.least_size[static_cast<std::size_t>(ib)] > ga.size) {
      return false;
    }
    const load la = ga.held - items_.load_of(ia, ga.size) + items_.load_of(ib, ga.size);
    const load lb = gb.held - items_.load_of(ib, gb.size) + items_.load_of(ia, gb.size);
    if (!fits(la, ga.size) || !fits(lb, gb.size)) return false;
    std::swap(ia, ib);
    ga.held = la;
    gb.held = lb;
    price(sa, static_cast<std::size_t>(a.group));
    price(sb, static_cast<std::size_t>(b.group));
    return true;
  }

  bool resize_group(splitmix& rng) {
    const place at = random_group(rng);
    if (at.slot < 0) return false;
    std::vector<std::int32_t> items =
        slots_[static_cast<std::size_t>(at.slot)].groups[static_cast<std::size_t>(at.group)].items;
    touch(at.slot);
    slot& s = slots_[static_cast<std::size_t>(at.slot)];
    s.groups.erase(s.groups.begin() + at.group);
    s.timed.erase(s.timed.begin() + at.group);
    return open_group(at.slot, rng.below(items_.num_sizes()), items, rng);
  }

  bool move_group(splitmix& rng) {
    const place at = random_group(rng);
    if (at.slot < 0) return false;
    const group moved =
        slots_[static_cast<std::size_t>(at.slot)].groups[static_cast<std::size_t>(at.group)];
    touch(at.slot);
    slot& s = slots_[static_cast<std::size_t>(at.slot)];
    s.groups.erase(s.groups.begin() + at.group);
    s.timed.erase(s.timed.begin() + at.group);
    const std::int32_t to = rng.below(static_cast<std::int32_t>(slots_.size()));
    return open_group(to, moved.size, moved.items, rng);
  }

  bool swap_slots(splitmix& rng) {
    const auto m = static_cast<std::int32_t>(slots_.size());
    const std::int32_t a = rng.below(m);
    const std::int32_t b = rng.below(m);
    if (a == b) return false;
    touch(a);
    touch(b);
    std::swap(slots_[static_cast<std::size_t>(a)], slots_[static_cast<std::size_t>(b)]);
    return true;
  }

  const problem& prob_;
  const item_table& items_;
  group_pricing<Cost> pricing_;
  rank_range region_;
  std::vector<slot> slots_;
  std::vector<std::pair<std::int32_t, slot>> undo_;
  std::int32_t first_changed_ = 0;
  std::vector<const std::vector<timed_group>*> view_;  // (slots)
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
