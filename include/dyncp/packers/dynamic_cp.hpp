// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/splitmix.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/branch_and_bound.hpp>
#include <dyncp/packers/cover_ranks.hpp>
#include <dyncp/packers/exhaustive_plan.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/packers/plan_hint.hpp>
#include <dyncp/packers/polish.hpp>
#include <dyncp/packers/region_builder.hpp>
#include <dyncp/packers/region_search.hpp>
#include <dyncp/packers/region_split.hpp>
#include <dyncp/packers/spaced_plan.hpp>
#include <dyncp/packers/tiled_plan.hpp>
#include <dyncp/plan/inflight.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

struct dynamic_cp_options {
  std::int32_t rounds = 4;
  double long_share = 0.85;
  std::int64_t search_steps = 0;
};

/// An observer of the search that is content with its end.
struct no_observer {
  bool operator()(const plan&, ticks) const noexcept { return true; }
};

/// One run of the `dynamic_cp` packer; see there.
template <cost_model Cost, class Observer>
class dynamic_cp_run {
 public:
  dynamic_cp_run(const problem& prob, const Cost& cost, const dynamic_cp_options& options,
                 const plan_hint& hint, Observer& observer)
      : prob_(prob),
        cost_(cost),
        options_(options),
        hint_(hint),
        observer_(observer),
        steps_left_(options.search_steps) {}

  [[nodiscard]] result<packed> run() {
    auto items = make_items(prob_, cost_);
    if (!items) return items.error();
    if (auto ok = check_counts(*items); !ok) return ok.error();
    result<plan> made = [&]() -> result<plan> {
      if (prob_.limits.no_idle_ranks) return without_idle_ranks(*items);
      if (prob_.limits.max_inflight_tokens > 0) return within_inflight(*items);
      if (auto found = best_plan(prob_, *items, true)) return std::move(*found);
      return fallback(*items);
    }();
    if (!made) return made.error();
    if constexpr (watched) show(*made, makespan_of(*made));
    return packed{std::move(*made), learned_};
  }

 private:
  // Necessary conditions that a count proves; the search cannot help where they fail.
  [[nodiscard]] result<void> check_counts(const item_table& items) const {
    const std::int32_t m = prob_.limits.micro_batches;
    int128 tokens = 0;
    for (std::int32_t i = 0; i < items.count(); ++i) {
      tokens += items.load_of(i, items.least_size[static_cast<std::size_t>(i)]).tokens;
    }
    const int128 room = int128{prob_.limits.max_tokens_per_rank} * prob_.parallel.ranks;
    if (m > 0 && items.one_alignment && tokens > room * m) {
      const auto least = static_cast<std::int64_t>((tokens + room - 1) / room);
      return error{errc::infeasible,
                   std::to_string(m) + " micro-batches hold fewer tokens than the batch has", m,
                   least,
                   "use --micro-batches " + std::to_string(least) + " or more, or leave it open"};
    }
    if (prob_.limits.no_idle_ranks &&
        std::int64_t{items.count()} * items.sizes.back() < prob_.parallel.ranks) {
      return error{errc::infeasible,
                   "too few sequences to give every rank work in one micro-batch", items.count(),
                   ceil_div(prob_.parallel.ranks, items.sizes.back()),
                   "allow idle ranks, larger CP groups, or use a larger batch"};
    }
    return {};
  }

  // The best of several splits into regions, or of none; nothing when no M holds the items. The
  // steps of the search are for the last call alone: only it is told to `search`.
  [[nodiscard]] result<plan> best_plan(const problem& prob, const item_table& items, bool search) {
    for (const bool whole : {prob.limits.uniform_cp, true}) {
      region_splitter splitter = make_splitter(prob, items, whole, 0);
      std::vector<region_plan> regions = balance_regions(prob, items, splitter);
      if (regions.empty()) {
        if (whole) break;
        continue;
      }
      if (const std::int32_t wider = worth_widening(splitter, regions); wider > 0) {
        region_splitter other = make_splitter(prob, items, false, wider);
        plan_hint learned = learned_;
        std::vector<region_plan> wide = balance_regions(prob, items, other);
        if (!wide.empty() && time_of(wide) < time_of(regions)) {
          if (search) search_regions(prob, items, other, wide);
          return assemble(prob, items, wide);
        }
        learned_ = std::move(learned);
      }
      if (search) search_regions(prob, items, splitter, regions);
      return assemble(prob, items, regions);
    }
    return not_found_error(prob);
  }

  [[nodiscard]] region_splitter make_splitter(const problem& prob, const item_table& items,
                                              bool whole, std::int32_t first) const {
    return {items, prob.parallel.ranks,
            ranks_per_node(prob.cluster.gpus_per_node, prob.parallel), prob.parallel.pp, whole,
            first};
  }

  // The longest item's way through all stages, and all chunks of each.
  [[nodiscard]] ticks path_of(const region_splitter& splitter) const noexcept {
    return splitter.longest_path() * prob_.parallel.vpp;
  }

  // Where the longest sequence bounds the plan, a wider first region may move that bound: its
  // ranks, or 0.
  [[nodiscard]] std::int32_t worth_widening(const region_splitter& splitter,
                                            const std::vector<region_plan>& regions) const {
    const ticks path = path_of(splitter);
    if (splitter.single() || time_of(regions) > path + path / 32) return 0;
    return splitter.wider_first();
  }

  [[nodiscard]] static ticks time_of(const std::vector<region_plan>& regions) noexcept {
    ticks worst = 0;
    for (const region_plan& r : regions) worst = std::max(worst, r.makespan);
    return worst;
  }

  // Rounds of split, search, and correction of the estimates by simulated times.
  [[nodiscard]] std::vector<region_plan> balance_regions(const problem& prob,
                                                         const item_table& items,
                                                         region_splitter& splitter) {
    const bool many = splitter.count() > most_with_care;
    region_search<Cost> search(prob, cost_, items, refinements(splitter), path_of(splitter));
    std::vector<region_plan> best;
    ticks best_time = std::numeric_limits<ticks>::max();
    std::vector<std::int32_t> start;  // (regions): micro-batches to start from
    const bool warm = warm_start(splitter, start);
    const std::int32_t rounds =
        warm || splitter.single() ? 1 : many ? std::min(2, options_.rounds) : options_.rounds;
    for (std::int32_t round = 0; round < rounds; ++round) {
      const std::vector<region_share> shares = splitter.split(options_.long_share);
      if (shares.empty()) break;
      start.resize(shares.size(), 0);
      std::vector<region_plan> plans;
      for (std::size_t k = 0; k < shares.size(); ++k) {
        // Regions of like peaks need like numbers of micro-batches: one sweep serves several. Not
        // that of the first, whose longest item wants few.
        if (start[k] == 0 && k > 1 && shares[k].peak > 0.5 * shares[k - 1].peak) {
          start[k] = start[k - 1];
        }
        plans.push_back(warm && start[k] > 0 ? search.repeat(shares[k], start[k])
                                             : search.find(shares[k], start[k]));
        if (plans.back().makespan < 0) return best;
        if (!shares[k].items.empty()) start[k] = search.micro_batches();
      }
      keep_better(splitter, shares, start, std::move(plans), 0.8, best, best_time);
      // The longest sequence's way through the pipeline: no split of the rest helps any more.
      if (best_time <= path_of(splitter) + path_of(splitter) / 512) break;
    }
    for (region_plan& r : best) search.choose_order(r);
    // Construction errs most where a step costs little.
    if (items.count() <= small_batch) polish_small(prob, items, best);
    return best;
  }

  // Hundreds of regions are many samples of one distribution: each needs less care.
  [[nodiscard]] static std::int32_t refinements(const region_splitter& splitter) noexcept {
    return splitter.count() > most_with_care ? 2 : splitter.count() > 8 ? 4 : 30;
  }

  // Local search on the true objective. Single moves know nothing of tokens in flight or idle
  // ranks.
  [[nodiscard]] bool can_polish() const noexcept {
    return prob_.limits.max_inflight_tokens == 0 && !prob_.limits.no_idle_ranks;
  }

  // Micro-batches that the polisher may add.
  [[nodiscard]] static std::int32_t spare(const problem& prob, const region_plan& r) {
    const std::int32_t fixed = prob.limits.micro_batches;
    return fixed > 0 ? std::min(2, fixed - r.num_slots()) : 1;
  }

  // Batches of a few sequences are polished by construction, with a fixed amount of work.
  void polish_small(const problem& prob, const item_table& items,
                    std::vector<region_plan>& regions) {
    if (!can_polish()) return;
    polisher<Cost> polish(prob, cost_, items);
    splitmix rng(polish_seed);
    for (region_plan& r : regions) {
      std::int32_t count = 0;
      for (const cell& g : r.cells) count += static_cast<std::int32_t>(g.held.count);
      if (count <= tiny_region && prob.parallel.vpp == 1 && !prob.limits.uniform_cp) {
        std::vector<std::int32_t> chosen = r.items;
        std::sort(chosen.begin(), chosen.end());
        branch_and_bound<Cost>(prob, cost_, items)
            .improve(r, chosen, r.num_slots() + spare(prob, r), tiny_region_nodes);
      }
      const std::int64_t size = std::int64_t{r.ranks.size} * (r.num_slots() + 1) *
                                prob.parallel.pp;
      const std::int64_t steps = std::clamp<std::int64_t>(small_batch_work / size, 200, 4000);
      for (const double heat : small_heats) {
        polish.improve(r, steps, spare(prob, r), heat, rng, each_step(false));
      }
    }
  }

  // What the search steps are for: annealed budgets, then single moves on the result.
  void search_regions(const problem& prob, const item_table& items, region_splitter& splitter,
                      std::vector<region_plan>& regions) {
    if constexpr (watched) show(assemble(prob, items, regions), time_of(regions));
    if (stopped_ || steps_left_ <= 0) return;
    anneal_regions(prob, items, splitter, regions);
    polish_regions(prob, items, regions);
  }

  // The steps that are left, shared by all regions.
  void polish_regions(const problem& prob, const item_table& items,
                      std::vector<region_plan>& regions) {
    if (!can_polish() || prob.parallel.vpp > 1) return;
    polisher<Cost> polish(prob, cost_, items);
    splitmix rng(polish_seed);
    for (std::size_t k = 0; k < regions.size() && !stopped_; ++k) {
      region_plan& r = regions[k];
      const std::int64_t steps = steps_left_ / static_cast<std::int64_t>(regions.size() - k);
      if (items.count() <= small_batch) {
        for (const double heat : small_heats) {
          polish.improve(r, steps / std::ssize(small_heats), spare(prob, r), heat, rng,
                         each_step(true));
        }
      } else {
        polish.improve(r, steps, spare(prob, r), 0.002, rng, each_step(true));
      }
      if constexpr (watched) show(assemble(prob, items, regions), time_of(regions));
    }
  }

  // Asked before every step of a search whether to go on. All count against one limit, but those
  // that belong to construction; and now and then the caller is asked, who may watch a clock.
  [[nodiscard]] auto each_step(bool counted) {
    return [this, counted] { return !counted || take_step(); };
  }

  [[nodiscard]] bool take_step() {
    if (stopped_ || steps_left_ <= 0) return false;
    --steps_left_;
    if (steps_left_ % steps_between_calls == 0) ask();
    return !stopped_;
  }

  // Takes over corrections and micro-batches of a hint made for the same regions.
  [[nodiscard]] bool warm_start(region_splitter& splitter,
                                std::vector<std::int32_t>& start) const {
    if (hint_.empty()) return false;
    std::int32_t at = 0;
    for (std::size_t k = 0; k < hint_.regions.size(); ++k) {
      const region_hint& h = hint_.regions[k];
      if (h.ranks.begin != at || h.ranks.size < 1 || h.micro_batches < 0) return false;
      at = h.ranks.end();
    }
    if (at != prob_.parallel.ranks || splitter.single() != (hint_.regions.size() == 1)) {
      return false;
    }
    for (std::size_t k = 0; k < hint_.regions.size(); ++k) {
      splitter.start_from(k, hint_.regions[k].correction);
      start.push_back(hint_.regions[k].micro_batches);
    }
    return true;
  }

  // Keeps the plans if they end earlier, notes what they teach, and corrects the estimates by
  // `rate` times what each region is off the mean.
  void keep_better(region_splitter& splitter, const std::vector<region_share>& shares,
                   const std::vector<std::int32_t>& start, std::vector<region_plan> plans,
                   double rate, std::vector<region_plan>& best, ticks& best_time) {
    ticks worst = 0;
    double sum = 0;
    for (const region_plan& r : plans) {
      worst = std::max(worst, r.makespan);
      sum += static_cast<double>(r.makespan);
    }
    const double mean = sum / static_cast<double>(plans.size());
    const bool better = worst < best_time;
    if (better) learned_.regions.clear();
    for (std::size_t k = 0; k < plans.size(); ++k) {
      if (better) {
        learned_.regions.push_back({shares[k].ranks, start[k], splitter.correction(k)});
      }
      splitter.correct(k,
                       rounded_product(rate, static_cast<double>(plans[k].makespan) - mean));
    }
    if (better) {
      best_time = worst;
      best = std::move(plans);
    }
  }

  // Hands a plan to the observer if it keeps every limit and is the best so far.
  void show(plan p, ticks time) {
    if (time >= shown_time_) return;
    p.max_tokens_per_rank = prob_.limits.max_tokens_per_rank;
    if (!keeps_inflight(p) || (prob_.limits.no_idle_ranks && !keeps_all_busy(p))) return;
    shown_time_ = time;
    shown_ = std::move(p);
    ask();
  }
  void ask() {
    if constexpr (watched) {
      if (!shown_.micro_batches.empty() && !observer_(shown_, shown_time_)) stopped_ = true;
    }
  }

  [[nodiscard]] bool keeps_inflight(const plan& p) const {
    const std::int64_t budget = prob_.limits.max_inflight_tokens;
    return budget == 0 || peak_inflight_tokens(p, prob_.sequences,
                                               {prob_.parallel.pp, prob_.parallel.vpp}) <= budget;
  }
  [[nodiscard]] static bool keeps_all_busy(const plan& p) {
    return std::all_of(p.micro_batches.begin(), p.micro_batches.end(), [&](const micro_batch& mb) {
      std::int32_t busy = 0;
      for (const pack& pk : mb.packs) busy += pk.ranks.size;
      return busy == p.num_ranks;
    });
  }

  // Phases of split, annealing of every region, and correction, with a share of the steps left.
  void anneal_regions(const problem& prob, const item_table& items, region_splitter& splitter,
                      std::vector<region_plan>& best) {
    splitmix rng(0x64796e6370);  // any constant: plans must not depend on a clock
    constexpr std::int64_t phases = 10;
    const double share = can_polish() && prob.parallel.vpp == 1 ? anneal_share : 1.0;
    const auto regions = static_cast<std::int64_t>(best.size());
    const auto steps = static_cast<std::int64_t>(
        rounded_product(share, static_cast<double>(steps_left_)) /
        static_cast<double>(phases * regions));
    region_search<Cost> search(prob, cost_, items, refinements(splitter), path_of(splitter));
    std::vector<tuned_budgets> tuned(best.size());
    std::vector<std::int32_t> start;  // (regions): micro-batches to start from
    for (const region_hint& h : learned_.regions) start.push_back(h.micro_batches);
    ticks best_time = time_of(best);
    for (std::int64_t phase = 0; phase < phases; ++phase) {
      const double heat = 1.0 - static_cast<double>(phase) / phases;
      const std::vector<region_share> shares = splitter.split(options_.long_share);
      if (shares.size() != best.size()) return;
      std::vector<region_plan> plans;
      for (std::size_t k = 0; k < shares.size(); ++k) {
        // The build of a region counts as a step.
        if (!take_step()) return;
        region_plan found = splitter.single() ? best[k] : search.find(shares[k], start[k]);
        if (found.makespan < 0) return;
        if (!splitter.single() && !shares[k].items.empty()) start[k] = search.micro_batches();
        plans.push_back(search.anneal(shares[k], std::move(found), tuned[k], steps, heat, rng,
                                      each_step(true)));
      }
      const ticks before = best_time;
      keep_better(splitter, shares, start, std::move(plans), 0.6, best, best_time);
      if constexpr (watched) {
        if (best_time < before) show(assemble(prob, items, best), best_time);
      }
      if (stopped_) return;
    }
  }

  // Every region ends with the last micro-batch; those with fewer are idle at first. An idle tail
  // would make B(j) on a stage wait for B(j-1) of the stage before; an idle head makes F(j) wait
  // for F(j-2) of the next stage, which in a rising ramp has long ended.
  [[nodiscard]] static plan assemble(const problem& prob, const item_table& items,
                                     const std::vector<region_plan>& regions) {
    plan out{prob.parallel.ranks, prob.limits.max_tokens_per_rank, prob.padding, {}};
    std::size_t slots = 0;
    for (const region_plan& r : regions) slots = std::max(slots, r.order.size());
    slots = padded_count(prob, slots);
    out.micro_batches.resize(slots);
    for (const region_plan& r : regions) {
      const std::size_t idle = slots - r.order.size();
      for (const cell& g : r.cells) {
        pack pk{g.ranks, {}};
        for (const std::int32_t i : r.items_of(g)) {
          for (const std::int32_t s : items.members_of(i)) pk.sequences.push_back(s);
        }
        std::sort(pk.sequences.begin(), pk.sequences.end());
        out.micro_batches[idle + static_cast<std::size_t>(g.slot)].packs.push_back(std::move(pk));
      }
    }
    return out;
  }

  // At least `count` micro-batches: the fixed number, or the next multiple.
  [[nodiscard]] static std::size_t padded_count(const problem& prob, std::size_t count) {
    const auto multiple = static_cast<std::size_t>(micro_batch_multiple(prob));
    const auto fixed = static_cast<std::size_t>(prob.limits.micro_batches);
    return (std::max(count, fixed) + multiple - 1) / multiple * multiple;
  }

  // Plans that exist where construction fails: one item a group, or any at all, then polished.
  [[nodiscard]] result<plan> fallback(const item_table& items) {
    auto made = spaced_plan(prob_, items);
    if (!made) return made;
    const std::int32_t fixed = prob_.limits.micro_batches;
    if (fixed > 0 && made->num_micro_batches() > fixed) {
      made = exhaustive_plan(prob_, items, exhaustive_steps).find();
      if (!made) return made;
    }
    // Interleaved schedules are simulated in whole groups.
    std::vector<micro_batch>& micro_batches = made->micro_batches;
    micro_batches.insert(micro_batches.begin(),
                         padded_count(prob_, micro_batches.size()) - micro_batches.size(), {});
    if (can_polish()) {
      std::vector<region_plan> whole{as_region(*made, items)};
      if (items.count() <= small_batch) polish_small(prob_, items, whole);
      if constexpr (watched) show(assemble(prob_, items, whole), time_of(whole));
      if (steps_left_ > 0) polish_regions(prob_, items, whole);
      *made = assemble(prob_, items, whole);
    }
    return made;
  }

  // A plan as one region over all ranks.
  [[nodiscard]] region_plan as_region(const plan& p, const item_table& items) const {
    region_plan out;
    out.ranks = {0, p.num_ranks};
    const std::vector<std::int32_t> item_of = items_of_sequences(items);
    const priced_plan priced = price_plan(p, prob_, cost_);
    std::size_t g = 0;
    for (std::int32_t j = 0; j < p.num_micro_batches(); ++j) {
      out.order.push_back(j);
      for (const pack& pk : p.micro_batches[static_cast<std::size_t>(j)].packs) {
        cell c{pk.ranks, j, 0, {}, priced.costs_of_class(cost_.bottleneck_class())[g++], 0, 0};
        while (items.sizes[static_cast<std::size_t>(c.size)] != pk.ranks.size) ++c.size;
        std::vector<std::int32_t> of_cell;
        for (const std::int32_t s : pk.sequences) {
          const std::int32_t i = item_of[static_cast<std::size_t>(s)];
          if (items.members_of(i).front() != s) continue;  // once an item
          c.held += items.load_of(i, c.size);
          of_cell.push_back(i);
        }
        out.add(c, of_cell);
      }
    }
    out.makespan = makespan_of(p);
    return out;
  }

  [[nodiscard]] std::vector<std::int32_t> items_of_sequences(const item_table& items) const {
    std::vector<std::int32_t> item_of(prob_.sequences.size(), 0);
    for (std::int32_t i = 0; i < items.count(); ++i) {
      for (const std::int32_t s : items.members_of(i)) item_of[static_cast<std::size_t>(s)] = i;
    }
    return item_of;
  }

  [[nodiscard]] static error not_found_error(const problem& prob) {
    return {errc::not_found,
            "no plan was found with " + std::to_string(prob.limits.micro_batches) +
                " micro-batches",
            prob.limits.micro_batches, 0,
            "let the planner choose (--micro-batches 0), or raise the limits"};
  }

  // A smaller token limit flattens the plan until its sliding window fits; halving the gap to
  // budget/stages, at which any order fits.
  [[nodiscard]] result<plan> within_inflight(const item_table& items) {
    const std::int64_t budget = prob_.limits.max_inflight_tokens;
    const pipeline pipe{prob_.parallel.pp, prob_.parallel.vpp};
    problem tighter = prob_;
    const std::int64_t safe = std::max<std::int64_t>(1, budget / pipe.stages);
    std::int64_t high = std::min(prob_.limits.max_tokens_per_rank, budget);
    result<plan> best = not_found_error(prob_);
    ticks best_time = std::numeric_limits<ticks>::max();
    std::int64_t best_limit = 0;
    const auto consider = [&](std::int64_t limit, bool search) {
      tighter.limits.max_tokens_per_rank = limit;
      auto table = limit == prob_.limits.max_tokens_per_rank ? result<item_table>(items)
                                                             : make_items(tighter, cost_);
      if (!table) return false;
      auto found = best_plan(tighter, *table, search);
      if (!found || !keeps_inflight(*found)) return true;
      found->max_tokens_per_rank = prob_.limits.max_tokens_per_rank;
      const ticks time = makespan_of(*found);
      if (time >= best_time) return true;
      best_time = time;
      best_limit = limit;
      best = std::move(found);
      if constexpr (watched) show(*best, time);
      return true;
    };
    for (int step = 0; step < 8 && !stopped_; ++step) {
      if (!consider(high, false) || high <= safe) break;
      high = std::max(safe, high - std::max<std::int64_t>(1, (high - safe + 1) / 2));
    }
    if (best && steps_left_ > 0 && !stopped_) consider(best_limit, true);
    if (best) return best;
    return fallback(items);
  }

  [[nodiscard]] ticks makespan_of(const plan& p) const {
    return event_simulator{}.makespan(price_plan(p, prob_, cost_),
                                      {prob_.parallel.pp, prob_.parallel.vpp});
  }

  // Fewer and fewer micro-batches until every rank has work in each; and tilings, of which there
  // are some for nearly every M.
  [[nodiscard]] result<plan> without_idle_ranks(const item_table& items) {
    const std::int32_t multiple = micro_batch_multiple(prob_);
    problem fixed = prob_;
    fixed.limits.no_idle_ranks = false;
    result<plan> best = not_found_error(prob_);
    ticks best_time = std::numeric_limits<ticks>::max();
    const auto consider = [&](const plan& p) {
      if (!keeps_inflight(p)) return false;
      const ticks time = makespan_of(p);
      if (time >= best_time) return false;
      best_time = time;
      best = p;
      if constexpr (watched) show(p, time);
      return true;
    };
    std::int32_t best_m = 0;
    const auto consider_m = [&](std::int32_t m, bool search) {
      fixed.limits.micro_batches = m;
      auto found = best_plan(fixed, items, search);
      if (found && cover(*found, items) && consider(*found)) best_m = m;
    };
    auto first = best_plan(fixed, items, false);
    const std::int32_t most = first ? first->num_micro_batches() : multiple;
    std::int32_t m = prob_.limits.micro_batches > 0 ? prob_.limits.micro_batches : most;
    for (; m >= multiple && !stopped_;
         m = std::min(m - multiple, m * 3 / 4 / multiple * multiple)) {
      consider_m(m, false);
      if (prob_.limits.micro_batches > 0) break;
    }
    if (!stopped_) for_each_tiling(prob_, cost_, items, consider);
    if (best_m > 0 && steps_left_ > 0 && !stopped_) consider_m(best_m, true);
    if (best) return best;
    return exhaustive_plan(prob_, items, exhaustive_steps).find();
  }

  [[nodiscard]] bool cover(plan& p, const item_table& items) const {
    const std::vector<std::int32_t> item_of = items_of_sequences(items);
    const auto fits = [&](const std::vector<std::int32_t>& list, std::int32_t size) {
      load sum;
      for (const std::int32_t i : list) {
        if (items.least_size[static_cast<std::size_t>(i)] > size) return false;
        sum += items.load_of(i, size);
      }
      const std::int32_t c = items.sizes[static_cast<std::size_t>(size)];
      const std::int32_t cap = prob_.limits.max_sequences_per_pack;
      return padded_pack_tokens(prob_.padding, c, sum.tokens) <=
                 items.capacity[static_cast<std::size_t>(size)] &&
             (cap == 0 || sum.count <= cap);
    };
    for (micro_batch& mb : p.micro_batches) {
      std::vector<item_group> groups;
      for (const pack& pk : mb.packs) {
        item_group g{pk.ranks, 0, {}};
        while (items.sizes[static_cast<std::size_t>(g.size)] != pk.ranks.size) ++g.size;
        for (const std::int32_t s : pk.sequences) {
          g.items.push_back(item_of[static_cast<std::size_t>(s)]);
        }
        std::sort(g.items.begin(), g.items.end());
        g.items.erase(std::unique(g.items.begin(), g.items.end()), g.items.end());
        groups.push_back(std::move(g));
      }
      if (groups.empty() ||
          !cover_ranks(groups, items, p.num_ranks, prob_.limits.uniform_cp, fits)) {
        return false;
      }
      mb.packs.clear();
      for (const item_group& g : groups) {
        pack pk{g.ranks, {}};
        for (const std::int32_t i : g.items) {
          for (const std::int32_t s : items.members_of(i)) pk.sequences.push_back(s);
        }
        std::sort(pk.sequences.begin(), pk.sequences.end());
        mb.packs.push_back(std::move(pk));
      }
    }
    return true;
  }

  // Nobody watches a plain `pack`: it assembles no plan but the last.
  static constexpr bool watched = !std::is_same_v<Observer, no_observer>;
  static constexpr std::int64_t steps_between_calls = 32;
  static constexpr double anneal_share = 0.5;  // of the steps; the rest are single moves
  static constexpr std::int32_t most_with_care = 64;  // regions
  static constexpr std::uint64_t polish_seed = 0x706f6c697368;
  // Hotter rounds leave the basin of the construction; each starts from the best so far.
  static constexpr std::array small_heats{0.3, 0.1, 0.1, 0.05};
  static constexpr std::int64_t exhaustive_steps = 20000;
  static constexpr std::int32_t tiny_region = 12;  // sequences
  static constexpr std::int64_t tiny_region_nodes = 4000;
  static constexpr std::int32_t small_batch = 64;
  static constexpr std::int64_t small_batch_work = 400000;  // steps * ranks * M * pp, a round

  const problem& prob_;
  const Cost& cost_;
  dynamic_cp_options options_;
  const plan_hint& hint_;
  Observer& observer_;
  plan_hint learned_;
  std::int64_t steps_left_;
  bool stopped_ = false;  // by the observer
  plan shown_;            // to the observer last: the best so far
  ticks shown_time_ = std::numeric_limits<ticks>::max();
};

}  // namespace detail

/// Dynamic-CP packing by simulated time.
///
/// 1. The ranks are split into regions (nodes), pipelines of their own; the longest sequences go
///    together into the first ones, and work is shared so that all end together, corrected by
///    simulation over `rounds` rounds (`region_splitter`).
/// 2. In each region the number of micro-batches is swept, and each candidate is built and
///    simulated: CP size by true cost and link, long beside long, budgets that ramp up and down,
///    the order to match (`region_search`, `region_builder`).
/// 3. The regions' micro-batches are laid side by side; ranks that end early are idle at first.
/// Limits on tokens in flight, idle ranks, uniform CP sizes and the number of micro-batches are
/// kept by tightening the search, at the latest by one sequence a group.
///
/// Errors: sequence_too_long; infeasible with the count that proves it; not_found when a fixed
/// number of micro-batches, or a cap, defeated the search.
/// Complexity: O(rounds * 20 * (n log n + R * M * pp)). Deterministic; safe to call concurrently.
struct dynamic_cp {
  static constexpr std::string_view name = "dynamic_cp";
  static constexpr bool deterministic = true;
  static constexpr bool exact = false;

  std::int32_t rounds = 4;   ///< of correction between regions; one region needs one
  double long_share = 0.85;  ///< of a region's work that may be long sequences
  /// Steps of the search after construction, all phases together; 0.1 ms each at GBS 2048.
  std::int64_t search_steps = 0;

  /// Requires `check(prob)`.
  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost& cost) const {
    auto made = pack_from(prob, cost, {}, detail::no_observer{});
    if (!made) return made.error();
    return std::move(made->plan);
  }

  /// The same from the hint of the last batch's plan (empty: from nothing): one build a region
  /// instead of a search. `observer(plan, makespan)` is called with the first plan, even without
  /// search steps, with each better one, and at least every 32 steps with the best so far again.
  /// Its false ends the search before the next step; the result is then the best plan so far.
  template <cost_model Cost, class Observer>
  [[nodiscard]] result<packed> pack_from(const problem& prob, const Cost& cost,
                                         const plan_hint& hint, Observer&& observer) const {
    return detail::dynamic_cp_run<Cost, std::remove_cvref_t<Observer>>(
               prob, cost, {rounds, long_share, search_steps}, hint, observer)
        .run();
  }
};

}  // namespace v0
}  // namespace dyncp
