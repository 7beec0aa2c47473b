// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/item_table.hpp>
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

/// The dynamic packer as the Dynamic-CP article tells it: workload targets, memory targets, then
/// the remaining samples in descending order; a cost model, a solver and a simulator.
///
/// For each M = pp * 1 .. pp * 6 (or the fixed M; more when none of these holds the batch):
/// 1. Targets. The workload target of a rank in a micro-batch is the work of the batch over R * M
///    (equations 2 and 3 with equal M), by the cost model, each sequence at the least CP size that
///    holds it. The memory target is the mean of the padded tokens that are left over the slots that
///    are left; the token limit stands above it.
/// 2. Workload targets. Every sequence whose work exceeds the target, longest first, gets a group
///    of its own: the least CP size that brings its time to the target, else the widest. It takes
///    one slot on the aligned block of ranks with the most free slots (half the size where none is
///    free). Then its group is filled up to the target with the longest sequences that fit.
/// 3. Memory targets. The slots left are packs of the least CP size. Sequences, longest first, go
///    to the pack of least time among those that stay within the memory target.
/// 4. Remaining samples, in descending order: to the pack of least time, of any size, whose token
///    limit holds. If there is none, this M fails.
/// 5. Each rank runs its groups first and then its packs; micro-batches run in that order, or with
///    the heaviest in the middle where that simulates faster. The M of least makespan wins.
///
/// The article gives no pseudo code: where it is silent, steps 2 to 5 are this library's choice,
/// and `three_stage_2959` follows the published code. Unlike that, every plan keeps the limit.
/// Sizes are the allowed powers of two.
/// Errors: sequence_too_long, infeasible for an atomic group; unsupported without a power of two
/// among the sizes; not_found when the fixed M is too small, and as `packing_only`.
/// Ties: lowest index first. Complexity: O(n * R * M) for each M.
struct three_stage {
  static constexpr std::string_view name = "three_stage";

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost& cost) const {
    problem powers = prob;
    powers.parallel.cp_sizes = allowed_cp_sizes(prob.parallel);
    std::erase_if(powers.parallel.cp_sizes, [](std::int32_t c) { return !is_power_of_two(c); });
    if (powers.parallel.cp_sizes.empty()) {
      return make_error(errc::unsupported, "three_stage needs a power of two among the CP sizes",
                        "add one to --cp-sizes");
    }
    auto items = detail::make_items(powers, cost);
    if (!items) return items.error();
    const solver<Cost> solve(powers, cost, *items);
    const std::int64_t step = prob.parallel.pp;
    const std::int64_t multiple = micro_batch_multiple(prob);
    const bool fixed = prob.limits.micro_batches > 0;
    std::optional<timed_plan> best;
    std::int64_t m = fixed ? prob.limits.micro_batches : round_up(step, multiple);
    // With one item a micro-batch there is room for all.
    const std::int64_t most = round_up(std::max<std::int64_t>(items->count(), step), multiple);
    for (;;) {
      std::optional<timed_plan> made = solve.at(m);
      if (made && (!best || made->makespan < best->makespan)) best = std::move(made);
      if (fixed || m >= (best ? std::min(most, 6 * step) : most)) break;
      m = std::min(round_up(m + (best ? step : std::max(step, m / 4)), multiple), most);
    }
    if (!best) {
      return error{errc::not_found,
                   "three_stage finds no room for every sequence in " + std::to_string(m) +
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
  // A pack and where it stands: in slot `slot` of ranks [begin, begin + cp).
  struct group {
    std::int32_t size = 0;  // index of the CP size
    std::int32_t begin = 0;
    std::int32_t slot = 0;
    load sum;
    ticks time = 0;
    std::vector<std::int32_t> items;
  };

  template <cost_model Cost>
  class solver {
   public:
    solver(const problem& prob, const Cost& cost, const detail::item_table& items)
        : prob_(prob), cost_(cost), items_(items) {
      for (std::int32_t i = 0; i < items_.count(); ++i) {
        const std::int32_t k = items_.least_size[static_cast<std::size_t>(i)];
        work_ += int128{items_.time_alone(i, k)} * size_of(k);
      }
    }

    [[nodiscard]] std::optional<timed_plan> at(std::int64_t m) const {
      state s(prob_.parallel.ranks, m);
      const int128 slots = int128{prob_.parallel.ranks} * m;
      const auto target = static_cast<ticks>((work_ + slots - 1) / slots);
      std::vector<char> placed(static_cast<std::size_t>(items_.count()), 0);
      if (!meet_workload(s, target, placed)) return std::nullopt;
      meet_memory(s, placed);
      if (!place_rest(s, placed)) return std::nullopt;
      return arrange(s);
    }

   private:
    struct state {
      state(std::int32_t ranks, std::int64_t m)
          : micro_batches(m), used(static_cast<std::size_t>(ranks), 0) {}
      std::int64_t micro_batches;
      std::vector<std::int32_t> used;  // (R): slots taken
      std::vector<group> groups;
    };

    [[nodiscard]] std::int32_t size_of(std::int32_t k) const {
      return items_.sizes[static_cast<std::size_t>(k)];
    }
    [[nodiscard]] bool holds(const group& g, std::int32_t item) const {
      const load& l = items_.load_of(item, g.size);
      const std::int32_t cap = prob_.limits.max_sequences_per_pack;
      return items_.least_size[static_cast<std::size_t>(item)] <= g.size &&
             padded_pack_tokens(prob_.padding, size_of(g.size), g.sum.tokens + l.tokens) <=
                 items_.capacity[static_cast<std::size_t>(g.size)] &&
             (cap == 0 || g.sum.count + l.count <= cap);
    }
    [[nodiscard]] ticks time_with(const group& g, std::int32_t item) const {
      const std::int32_t node = ranks_per_node(prob_.cluster.gpus_per_node, prob_.parallel);
      return cost_
          .cost(g.sum + items_.load_of(item, g.size), size_of(g.size),
                link_of({g.begin, size_of(g.size)}, node), cost_.bottleneck_class())
          .total();
    }
    void add(group& g, std::int32_t item, ticks time) const {
      g.sum += items_.load_of(item, g.size);
      g.time = time;
      g.items.push_back(item);
    }

    // The aligned block of the size with the most free slots; false when none has one. Sizes may
    // rise again after a halving, so the slot is the first that is free on all ranks of the block.
    [[nodiscard]] bool open(state& s, std::int32_t k) const {
      const std::int32_t c = size_of(k);
      std::int32_t best = -1;
      std::int32_t least_used = 0;
      for (std::int32_t at = 0; at + c <= prob_.parallel.ranks; at += c) {
        const std::int32_t used = *std::max_element(s.used.begin() + at, s.used.begin() + at + c);
        if (used < s.micro_batches && (best < 0 || used < least_used)) {
          best = at;
          least_used = used;
        }
      }
      if (best < 0) return false;
      group g;
      g.size = k;
      g.begin = best;
      g.slot = least_used;
      std::fill(s.used.begin() + best, s.used.begin() + best + c, least_used + 1);
      s.groups.push_back(std::move(g));
      return true;
    }

    // Step 2.
    [[nodiscard]] bool meet_workload(state& s, ticks target, std::vector<char>& placed) const {
      for (std::int32_t i = 0; i < items_.count(); ++i) {
        const std::int32_t least = items_.least_size[static_cast<std::size_t>(i)];
        if (placed[static_cast<std::size_t>(i)] != 0) continue;
        if (least == 0 && items_.time_alone(i, 0) <= target) continue;
        std::int32_t k = least;
        while (k + 1 < items_.num_sizes() && items_.time_alone(i, k) > target &&
               items_.time_alone(i, k + 1) < items_.time_alone(i, k)) {
          ++k;
        }
        while (k > least && !can_open(s, k)) --k;
        if (!open(s, k)) return false;
        group& g = s.groups.back();
        placed[static_cast<std::size_t>(i)] = 1;
        add(g, i, time_with(g, i));
        for (std::int32_t j = i + 1; j < items_.count() && g.time < target; ++j) {
          if (placed[static_cast<std::size_t>(j)] != 0 || !holds(g, j)) continue;
          const ticks t = time_with(g, j);
          if (t > target) continue;
          placed[static_cast<std::size_t>(j)] = 1;
          add(g, j, t);
        }
      }
      return true;
    }

    [[nodiscard]] bool can_open(const state& s, std::int32_t k) const {
      const std::int32_t c = size_of(k);
      for (std::int32_t at = 0; at + c <= prob_.parallel.ranks; at += c) {
        if (*std::max_element(s.used.begin() + at, s.used.begin() + at + c) < s.micro_batches) {
          return true;
        }
      }
      return false;
    }

    // Step 3. Of the packs that the free slots make, no more are opened than items are left.
    void meet_memory(state& s, std::vector<char>& placed) const {
      int128 tokens = 0;
      std::int64_t left = 0;
      for (std::int32_t i = 0; i < items_.count(); ++i) {
        if (placed[static_cast<std::size_t>(i)] != 0) continue;
        tokens += items_.load_of(i, 0).tokens;
        ++left;
      }
      std::int64_t packs = 0;
      for (const std::int32_t used : s.used) packs += s.micro_batches - used;
      packs /= size_of(0);
      const std::size_t first_pack = s.groups.size();
      while (left > 0 && open(s, 0)) --left;
      for (std::int32_t i = 0; i < items_.count() && packs > 0; ++i) {
        if (placed[static_cast<std::size_t>(i)] != 0) continue;
        group* best = nullptr;
        for (std::size_t g = first_pack; g < s.groups.size(); ++g) {
          group& to = s.groups[g];
          if (int128{to.sum.tokens + items_.load_of(i, 0).tokens} * packs > tokens) continue;
          if ((best == nullptr || to.time < best->time) && holds(to, i)) best = &to;
        }
        if (best == nullptr) continue;
        placed[static_cast<std::size_t>(i)] = 1;
        add(*best, i, time_with(*best, i));
      }
    }

    // Step 4.
    [[nodiscard]] bool place_rest(state& s, const std::vector<char>& placed) const {
      for (std::int32_t i = 0; i < items_.count(); ++i) {
        if (placed[static_cast<std::size_t>(i)] != 0) continue;
        group* best = nullptr;
        for (group& g : s.groups) {
          if ((best == nullptr || g.time < best->time) && holds(g, i)) best = &g;
        }
        if (best == nullptr) return false;
        add(*best, i, time_with(*best, i));
      }
      return true;
    }

    // Step 5.
    [[nodiscard]] timed_plan arrange(const state& s) const {
      std::vector<ticks> heaviest(static_cast<std::size_t>(s.micro_batches), 0);
      for (const group& g : s.groups) {
        ticks& most = heaviest[static_cast<std::size_t>(g.slot)];
        most = std::max(most, g.time);
      }
      std::vector<std::int32_t> as_built(heaviest.size());
      std::iota(as_built.begin(), as_built.end(), 0);
      std::vector<std::int32_t> falling = as_built;
      std::stable_sort(falling.begin(), falling.end(), [&](std::int32_t a, std::int32_t b) {
        return heaviest[static_cast<std::size_t>(a)] > heaviest[static_cast<std::size_t>(b)];
      });
      std::vector<std::int32_t> middle;
      for (const std::int32_t i :
           detail::largest_in_the_middle(static_cast<std::int32_t>(falling.size()))) {
        middle.push_back(falling[static_cast<std::size_t>(i)]);
      }
      timed_plan first = lay_out(s, as_built);
      timed_plan second = lay_out(s, middle);
      return second.makespan < first.makespan ? std::move(second) : std::move(first);
    }

    [[nodiscard]] timed_plan lay_out(const state& s,
                                     const std::vector<std::int32_t>& order) const {
      std::vector<std::size_t> position(order.size());
      for (std::size_t j = 0; j < order.size(); ++j) {
        position[static_cast<std::size_t>(order[j])] = j;
      }
      timed_plan out{detail::blank_plan(prob_), 0};
      out.made.micro_batches.resize(order.size());
      for (const group& g : s.groups) {
        if (g.items.empty()) continue;
        dyncp::pack pk{{g.begin, size_of(g.size)}, {}};
        for (const std::int32_t i : g.items) {
          const auto members = items_.members_of(i);
          pk.sequences.insert(pk.sequences.end(), members.begin(), members.end());
        }
        out.made.micro_batches[position[static_cast<std::size_t>(g.slot)]].packs.push_back(
            std::move(pk));
      }
      for (micro_batch& mb : out.made.micro_batches) {
        std::sort(mb.packs.begin(), mb.packs.end(),
                  [](const dyncp::pack& a, const dyncp::pack& b) {
                    return a.ranks.begin < b.ranks.begin;
                  });
      }
      out.makespan = event_simulator{}.makespan(price_plan(out.made, prob_, cost_),
                                                {prob_.parallel.pp, prob_.parallel.vpp});
      return out;
    }

    const problem& prob_;
    const Cost& cost_;
    const detail::item_table& items_;
    int128 work_ = 0;  // ticks, all ranks together
  };
};

}  // namespace v0
}  // namespace dyncp
