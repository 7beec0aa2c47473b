// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/splitmix.hpp>
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
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// Budgets by position and the share of the plateau above which c is raised: what `anneal` tunes.
struct tuned_budgets {
  std::vector<double> budgets;  // (M) relative to the largest
  double raise_above = 1.0;
};

/// Finds the number of micro-batches of one region, by building and simulating candidates.
///
/// T(M) falls while smaller slots shrink the bubble and rises with the fixed time of each; it is
/// flat near its minimum. A geometric sweep from the memory minimum to beyond
/// sqrt(0.6 (p-1) W / fixed), where bubble and fixed time balance, then steps from the best that
/// halve where they no longer help. Complexity: about 20 builds, O(k log k) each for k items.
template <cost_model Cost>
class region_search {
 public:
  /// `refinements` bounds the steps from the best M. A plan that takes at most `enough` is not
  /// improved: what bounds the whole plan by its path needs no better company.
  region_search(const problem& prob, const Cost& cost, const item_table& items,
                std::int32_t refinements, ticks enough)
      : prob_(prob),
        items_(items),
        builder_(prob, cost, items),
        refinements_(refinements),
        enough_(enough) {
    const std::int32_t c = items.sizes.front();
    fixed_ = static_cast<double>(
        cost.cost(load{1, 1, 1}, c, link::nvlink, cost.bottleneck_class()).total());
    // Interleaved schedules run whole groups of p: few numbers between two multiples do better.
    if (prob.parallel.vpp > 1) least_step_ = std::max(1, prob.parallel.pp / 2);
    most_ = prob.limits.micro_batches > 0 ? prob.limits.micro_batches
                                          : std::numeric_limits<std::int32_t>::max();
  }

  /// One build with `m` micro-batches, or a full search if that does not hold the items.
  [[nodiscard]] region_plan repeat(const region_share& share, std::int32_t m) {
    best_ = {};
    best_.ranks = share.ranks;
    best_.makespan = share.items.empty() ? 0 : -1;
    if (share.items.empty()) return std::move(best_);
    if (!try_m(share, m)) return find(share, 0);
    return std::move(best_);
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
      if (m > static_cast<std::int32_t>(share.items.size())) break;
      m = std::min(m + 1 + m / 8, std::max(m + 1, most_));
    }
    if (best_.makespan < 0) return std::move(best_);
    std::int32_t step = std::max(least_step_, best_m_ / 10);
    for (std::int32_t n = 0; n < refinements_ && !is_enough(); ++n) {
      const std::int32_t middle = best_m_;
      if (try_m(share, middle + step)) continue;
      if (middle - step >= least && try_m(share, middle - step)) continue;
      if (step <= least_step_) break;
      step = std::max(least_step_, step / 2);
    }
    // What is learned from the first region serves the others; the end result is ordered anew.
    if (!has_order_) choose_order(best_);
    has_order_ = true;
    return std::move(best_);
  }

  /// Interleaved 1F1B: the best of several orders of a finished plan.
  void choose_order(region_plan& plan) { builder_.choose_order(plan); }

  /// Anneals the budgets of a region: each step changes the relative budget of a few positions,
  /// moves one to another position or changes the share above which c is raised, then builds and
  /// simulates anew; a step that costs less than a shrinking threshold is kept. The budgets live in
  /// `tuned` from call to call, also when the items of the share have changed a little. `heat` in
  /// 0 .. 1 scales the threshold, for a search that cools over several calls. `go_on()` is asked
  /// before each step.
  /// Returns the best plan seen, never worse than `from`.
  template <class GoOn>
  [[nodiscard]] region_plan anneal(const region_share& share, region_plan from,
                                   tuned_budgets& tuned, std::int64_t steps, double heat,
                                   splitmix& rng, GoOn go_on) {
    best_ = std::move(from);
    if (tuned.budgets.empty()) tuned = budgets_of(best_);
    if (best_.cells.empty() || tuned.budgets.size() < 2) return std::move(best_);
    ticks now = evaluate(share, tuned);
    if (now < 0) {
      tuned = budgets_of(best_);
      now = evaluate(share, tuned);
      if (now < 0) return std::move(best_);
    }
    const double hot = rounded_product(3e-4 * heat, static_cast<double>(best_.makespan));
    for (std::int64_t step = 0; step < steps && go_on(); ++step) {
      candidate_ = tuned;
      perturb(candidate_, rng);
      const double cooled = 1.0 - static_cast<double>(step) / static_cast<double>(steps);
      const double u = rng.unit();
      const auto slack = static_cast<ticks>(hot * cooled * u * u);
      const ticks then = evaluate(share, candidate_);
      if (then < 0 || then > now + slack) continue;
      now = then;
      std::swap(tuned, candidate_);
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
    for (std::int32_t m = least; m <= std::min(top, most_);
         m = static_cast<std::int32_t>(round_up(std::max(m + 1, m * 23 / 20), least_step_))) {
      try_m(share, m);
      if (is_enough()) return;
    }
  }

  [[nodiscard]] bool is_enough() const noexcept {
    return best_.makespan >= 0 && best_.makespan <= enough_;
  }

  bool try_m(const region_share& share, std::int32_t m) {
    // A micro-batch without an item is no micro-batch.
    if (m < 1 || m > most_ || m > static_cast<std::int32_t>(share.items.size())) return false;
    if (!builder_.build(share.ranks, share.items, {m, 1.0, 1.0}, trial_)) return false;
    builder_.simulate(trial_);
    if (best_.makespan >= 0 && trial_.makespan >= best_.makespan) return false;
    std::swap(best_, trial_);
    best_m_ = m;
    return true;
  }

  [[nodiscard]] static tuned_budgets budgets_of(const region_plan& plan) {
    std::vector<ticks> slot(static_cast<std::size_t>(plan.num_slots()), 0);
    ticks largest = 1;
    for (const cell& g : plan.cells) {
      ticks& t = slot[static_cast<std::size_t>(g.slot)];
      t = std::max(t, g.cost.total());
      largest = std::max(largest, t);
    }
    tuned_budgets tuned;
    for (const ticks t : slot) {
      tuned.budgets.push_back(static_cast<double>(t) / static_cast<double>(largest));
    }
    return tuned;
  }

  // Builds and simulates; keeps the plan if it is the best. -1 when the items do not fit.
  ticks evaluate(const region_share& share, const tuned_budgets& tuned) {
    const auto m = static_cast<std::int32_t>(tuned.budgets.size());
    if (m > most_ || !builder_.build(share.ranks, share.items,
                                     {m, 1.0, tuned.raise_above, tuned.budgets}, trial_)) {
      return -1;
    }
    builder_.simulate(trial_);
    const ticks time = trial_.makespan;
    if (time < best_.makespan) std::swap(best_, trial_);
    return time;
  }

  static void perturb(tuned_budgets& tuned, splitmix& rng) {
    std::vector<double>& w = tuned.budgets;
    const auto m = static_cast<std::int32_t>(w.size());
    const double reach = rng.below(3) == 0 ? 0.3 : 0.08;
    const double factor = 1.0 + rounded_product(reach, 2.0 * rng.unit() - 1.0);
    switch (rng.below(4)) {
      case 0:  // one position
        w[static_cast<std::size_t>(rng.below(m))] *= factor;
        break;
      case 1: {  // a run of positions
        const std::int32_t first = rng.below(m);
        const std::int32_t last = std::min(m, first + 2 + rng.below(11));
        for (std::int32_t j = first; j < last; ++j) w[static_cast<std::size_t>(j)] *= factor;
        break;
      }
      case 2: {  // one position moves elsewhere
        const std::int32_t from = rng.below(m);
        const double moved = w[static_cast<std::size_t>(from)];
        w.erase(w.begin() + from);
        w.insert(w.begin() + rng.below(m), moved);
        break;
      }
      default:
        tuned.raise_above = std::clamp(tuned.raise_above * factor, 0.2, 5.0);
    }
  }

  const problem& prob_;
  const item_table& items_;
  region_builder<Cost> builder_;
  std::int32_t refinements_;
  ticks enough_;
  tuned_budgets candidate_;
  double fixed_ = 0;        // ticks of an operation pair of one token
  std::int32_t most_ = 0;   // largest M allowed
  std::int32_t best_m_ = 0;
  std::int32_t least_step_ = 1;
  bool has_order_ = false;
  region_plan best_;
  region_plan trial_;
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
