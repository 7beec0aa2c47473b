// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/group_pricing.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/packers/ramp.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/one_f_one_b.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// A CP group of a region in one slot (micro-batch), with what it holds so far.
struct cell {
  rank_range ranks;
  std::int32_t slot = 0;
  std::int32_t size = 0;         // index of ranks.size in the allowed sizes
  load held;
  op_cost cost;                  // of `held` on the bottleneck stage; zero while empty
  std::int32_t first = -1;       // its items: region_plan::items[first, first + count)
  std::int32_t count = 0;
};

/// The micro-batches of one region: a block of ranks that no group leaves, and so a pipeline of
/// its own.
struct region_plan {
  rank_range ranks;
  std::vector<cell> cells;             // those that hold items, ordered by (position, first rank)
  std::vector<std::int32_t> order;     // position -> slot
  std::vector<std::int32_t> items;     // of all cells, cell by cell
  ticks makespan = 0;

  [[nodiscard]] std::int32_t num_slots() const noexcept {
    return static_cast<std::int32_t>(order.size());
  }
  [[nodiscard]] std::span<const std::int32_t> items_of(const cell& c) const noexcept {
    return std::span(items).subspan(static_cast<std::size_t>(c.first),
                                    static_cast<std::size_t>(c.count));
  }
  /// Appends a cell with its items; cells are added in the order of their slots and ranks.
  void add(cell c, std::span<const std::int32_t> of_cell) {
    c.first = static_cast<std::int32_t>(items.size());
    c.count = static_cast<std::int32_t>(of_cell.size());
    items.insert(items.end(), of_cell.begin(), of_cell.end());
    cells.push_back(c);
  }
};

struct build_options {
  std::int32_t micro_batches = 1;
  double ramp = 1.0;          // strength of the budget ramp
  double raise_above = 1.0;   // c is raised while the time exceeds this share of the plateau
  std::span<const double> budgets{};  // (M) relative, by position; empty: ramp profile and order
};

/// Builds the micro-batches of one region for a given M; see `dynamic_cp` for the whole method.
///
/// 1. CP size of each item: the smallest that holds it, doubled while its time exceeds the
///    plateau and falls with more ranks.
/// 2. Items on more than the smallest size go to shelves, longest first: the first slot with free
///    ranks and budget, so long ones run beside long ones; or into a group that has time left.
/// 3. Plateau: the level at which budgets (lifted where a long item exceeds them) sum to the work.
/// 4. The rest, longest first, each into the group with the most time left that has token room.
/// 5. Slots are ordered to rise geometrically to the largest and to fall after it; interleaved, the
///    smallest few rise and the others fall after them.
///
/// Holds scratch memory: one object serves one thread. Deterministic.
template <cost_model Cost>
class region_builder {
 public:
  region_builder(const problem& prob, const Cost& cost, const item_table& items)
      : prob_(prob),
        cost_(cost),
        items_(items),
        groups_(prob, cost, items),
        bottleneck_(cost.bottleneck_class()),
        pipe_{prob.parallel.pp, prob.parallel.vpp},
        cap_(prob.limits.max_sequences_per_pack) {
    const op_cost unit = cost.cost(items.load_of(0, items.least_size[0]),
                                   items.sizes[static_cast<std::size_t>(items.least_size[0])],
                                   link::nvlink, bottleneck_);
    backward_ratio_ = static_cast<double>(unit.backward) / static_cast<double>(unit.forward);
    growth_ = 1.0 + backward_ratio_ / std::max(1, pipe_.stages - 1);
    head_ = 2 * pipe_.stages;
  }

  /// False when some item found no group with token room; then M is too small.
  /// `chosen` lists items of the table, ascending (longest first). O(k log k + k log cells).
  [[nodiscard]] bool build(rank_range region, std::span<const std::int32_t> chosen,
                           const build_options& options, region_plan& out) {
    region_ = region;
    slots_ = options.micro_batches;
    out.ranks = region;
    chain_.resize(static_cast<std::size_t>(items_.count()));
    choose_sizes(chosen, options);
    if (!place_wide()) return false;
    if (!place_narrow()) return false;
    finish(out);
    return true;
  }

  /// Simulates the region alone; fills `makespan`.
  void simulate(region_plan& plan) {
    price(plan);
    plan.makespan = pipe_.chunks == 1 ? fast_.makespan(priced_, pipe_.stages)
                                      : event_simulator{}.makespan(priced_, pipe_);
  }

  /// Interleaved 1F1B: puts the micro-batches into the order that simulates fastest of those with
  /// the heads worth a try. The next builds take that head.
  void choose_order(region_plan& plan) {
    if (pipe_.chunks == 1 || plan.cells.empty()) return;
    slot_time_.assign(plan.order.size(), 0);
    for (const cell& g : plan.cells) {
      ticks& t = slot_time_[static_cast<std::size_t>(g.slot)];
      t = std::max(t, g.cost.total());
    }
    const region_plan from = plan;
    for (const std::int32_t head : heads_to_try(from.num_slots(), pipe_.stages)) {
      region_plan trial = from;
      trial.order = headed_order(slot_time_, head);
      move_cells(trial.cells, trial.order);
      simulate(trial);
      if (trial.makespan >= plan.makespan) continue;
      plan = std::move(trial);
      head_ = head;
    }
  }

  [[nodiscard]] double growth() const noexcept { return growth_; }

 private:
  struct wide_item {
    ticks time;
    std::int32_t item;
    std::int32_t size;
  };

  [[nodiscard]] std::int32_t size_of(std::int32_t k) const noexcept {
    return items_.sizes[static_cast<std::size_t>(k)];
  }
  [[nodiscard]] op_cost price_cell(const load& l, rank_range r) const noexcept {
    return groups_.cost(l, r, bottleneck_);
  }
  [[nodiscard]] bool has_room(const cell& g, const load& more) const noexcept {
    return groups_.fits(g.held + more, g.size);
  }

  // Step 1. The plateau is first guessed from the work at the smallest sizes.
  void choose_sizes(std::span<const std::int32_t> chosen, const build_options& options) {
    if (options.budgets.empty()) {
      profile_ = ramp_profile(slots_, pipe_.stages, backward_ratio_, options.ramp);
      given_.clear();
    } else {
      // Slots are kept by falling budget; given_ remembers which position each one is for.
      given_.resize(static_cast<std::size_t>(slots_));
      for (std::int32_t j = 0; j < slots_; ++j) given_[static_cast<std::size_t>(j)] = j;
      std::sort(given_.begin(), given_.end(), [&](std::int32_t a, std::int32_t b) {
        const double wa = options.budgets[static_cast<std::size_t>(a)];
        const double wb = options.budgets[static_cast<std::size_t>(b)];
        return wa != wb ? wa > wb : a < b;
      });
      profile_.resize(static_cast<std::size_t>(slots_));
      for (std::size_t j = 0; j < profile_.size(); ++j) {
        profile_[j] = options.budgets[static_cast<std::size_t>(given_[j])];
      }
    }
    double profile_sum = 0;
    for (const double w : profile_) profile_sum += w;
    double work = 0;
    for (const std::int32_t i : chosen) {
      const std::int32_t k = items_.least_size[static_cast<std::size_t>(i)];
      work += rounded_product(static_cast<double>(items_.time_alone(i, k)), size_of(k));
    }
    std::int32_t largest = 0;
    while (largest + 1 < items_.num_sizes() && size_of(largest + 1) <= region_.size) ++largest;
    work_ = 0;
    wide_.clear();
    narrow_.clear();
    const double plateau = work / (region_.size * profile_sum);
    const auto raise_above = static_cast<ticks>(plateau * options.raise_above);
    for (const std::int32_t i : chosen) {
      std::int32_t k = items_.least_size[static_cast<std::size_t>(i)];
      while (k < largest && items_.time_alone(i, k) > raise_above &&
             items_.time_alone(i, k + 1) < items_.time_alone(i, k)) {
        ++k;
      }
      work_ += rounded_product(static_cast<double>(items_.time_alone(i, k)), size_of(k));
      if (k == 0) {
        narrow_.push_back(i);
      } else {
        wide_.push_back({items_.time_alone(i, k), i, k});
      }
    }
    std::sort(wide_.begin(), wide_.end(), [](const wide_item& a, const wide_item& b) {
      return a.time != b.time ? a.time > b.time : a.item < b.item;
    });
    plateau_ = plateau;
  }

  [[nodiscard]] ticks budget(std::int32_t slot) const noexcept {
    const auto b =
        static_cast<ticks>(rounded_product(plateau_, profile_[static_cast<std::size_t>(slot)]));
    return std::max(b, height_[static_cast<std::size_t>(slot)]);
  }

  // The first free aligned place for `c` ranks in a slot, or -1.
  [[nodiscard]] std::int32_t find_free(std::int32_t slot, std::int32_t c) const noexcept {
    const char* used = used_.data() + static_cast<std::size_t>(slot) * region_.size;
    const std::int32_t step = is_power_of_two(c) ? c : 1;
    const std::int32_t first = static_cast<std::int32_t>(round_up(region_.begin, step));
    for (std::int32_t at = first - region_.begin; at + c <= region_.size; at += step) {
      if (std::find(used + at, used + at + c, 1) == used + at + c) return at;
    }
    return -1;
  }

  // With one CP size a micro-batch, the first cell of a slot decides.
  [[nodiscard]] bool size_fits(std::int32_t slot, std::int32_t k) const noexcept {
    const std::int32_t set = slot_size_[static_cast<std::size_t>(slot)];
    return !prob_.limits.uniform_cp || set < 0 || set == k;
  }

  void open_cell(std::int32_t slot, std::int32_t at, std::int32_t k) {
    const std::int32_t c = size_of(k);
    char* used = used_.data() + static_cast<std::size_t>(slot) * region_.size;
    std::fill(used + at, used + at + c, char{1});
    free_[static_cast<std::size_t>(slot)] -= c;
    slot_size_[static_cast<std::size_t>(slot)] = k;
    cells_.push_back({{region_.begin + at, c}, slot, k, {}, {}, -1, 0});
  }

  void put(cell& g, std::int32_t item) {
    g.held += items_.load_of(item, g.size);
    g.cost = price_cell(g.held, g.ranks);
    chain_[static_cast<std::size_t>(item)] = g.first;
    g.first = item;
    ++g.count;
    ticks& height = height_[static_cast<std::size_t>(g.slot)];
    height = std::max(height, g.cost.total());
  }

  // Steps 2 and 3.
  bool place_wide() {
    cells_.clear();
    slot_size_.assign(static_cast<std::size_t>(slots_), -1);
    height_.assign(static_cast<std::size_t>(slots_), 0);
    free_.assign(static_cast<std::size_t>(slots_), region_.size);
    used_.assign(static_cast<std::size_t>(slots_) * region_.size, 0);
    set_plateau();
    std::int32_t first_open = 0;
    for (const wide_item& w : wide_) {
      const std::int32_t c = size_of(w.size);
      std::int32_t slot = -1;
      std::int32_t at = -1;
      while (first_open < slots_ && free_[static_cast<std::size_t>(first_open)] == 0) ++first_open;
      for (std::int32_t j = first_open; j < slots_; ++j) {
        if (free_[static_cast<std::size_t>(j)] < c || !size_fits(j, w.size)) continue;
        at = find_free(j, c);
        if (at < 0) continue;
        slot = j;
        break;
      }
      // Beside others where ranks are free and the slot is high enough; else where time is left.
      const bool fits_budget = slot >= 0 && budget(slot) >= w.time;
      if (!fits_budget) {
        if (cell* g = roomiest_cell(w, slot < 0)) {
          put(*g, w.item);
          continue;
        }
      }
      if (slot < 0) return false;
      open_cell(slot, at, w.size);
      put(cells_.back(), w.item);
    }
    set_plateau();
    return true;
  }

  // An open cell of the item's size with token room: the one with most time left, if the item
  // fits into that time or `any` is allowed.
  cell* roomiest_cell(const wide_item& w, bool any) {
    cell* best = nullptr;
    ticks best_left = 0;
    const load& l = items_.load_of(w.item, w.size);
    for (cell& g : cells_) {
      if (g.size != w.size) continue;
      // What is left now bounds what is left after, and costs no pricing.
      const ticks bound = budget(g.slot) - g.cost.total();
      if ((best != nullptr && bound <= best_left) || (!any && bound <= 0) || !has_room(g, l)) {
        continue;
      }
      const ticks left = budget(g.slot) - price_cell(g.held + l, g.ranks).total();
      if ((any || left >= 0) && (best == nullptr || left > best_left)) {
        best = &g;
        best_left = left;
      }
    }
    return best;
  }

  // The level P at which sum over slots of max(P * profile, height) * ranks equals the work.
  void set_plateau() {
    double low = 0;
    double high = work_ / region_.size + 1.0;
    for (int step = 0; step < 48 && high - low > 1e-4 * high; ++step) {
      const double middle = 0.5 * (low + high);
      double area = 0;
      for (std::int32_t j = 0; j < slots_; ++j) {
        area += std::max(rounded_product(middle, profile_[static_cast<std::size_t>(j)]),
                         static_cast<double>(height_[static_cast<std::size_t>(j)]));
      }
      (area * region_.size < work_ ? low : high) = middle;
    }
    plateau_ = high;
  }

  // Step 4, with two heaps: groups by time left, and full ones by token room until a shorter
  // item comes that fits them.
  bool place_narrow() {
    for (std::int32_t j = 0; j < slots_; ++j) {
      const std::int32_t set = slot_size_[static_cast<std::size_t>(j)];
      const std::int32_t k = prob_.limits.uniform_cp && set > 0 ? set : 0;
      if (free_[static_cast<std::size_t>(j)] < size_of(k)) continue;
      for (std::int32_t at = find_free(j, size_of(k)); at >= 0; at = find_free(j, size_of(k))) {
        open_cell(j, at, k);
      }
    }
    by_time_.clear();
    full_.clear();
    for (std::size_t g = 0; g < cells_.size(); ++g) {
      by_time_.push_back(
          {budget(cells_[g].slot) - cells_[g].cost.total(), static_cast<std::int32_t>(g)});
    }
    std::make_heap(by_time_.begin(), by_time_.end());
    for (const std::int32_t item : narrow_) {
      const std::int64_t tokens = items_.load_of(item, 0).tokens;
      while (!full_.empty() && full_.front().first >= tokens) {
        const std::int32_t g = full_.front().second;
        std::pop_heap(full_.begin(), full_.end());
        full_.pop_back();
        by_time_.push_back({budget_left(g), g});
        std::push_heap(by_time_.begin(), by_time_.end());
      }
      bool placed = false;
      while (!by_time_.empty()) {
        const std::int32_t index = by_time_.front().second;
        cell& g = cells_[static_cast<std::size_t>(index)];
        if (has_room(g, items_.load_of(item, g.size))) {
          put(g, item);
          replace_top(by_time_, {budget_left(index), index});
          placed = true;
          break;
        }
        std::pop_heap(by_time_.begin(), by_time_.end());
        by_time_.pop_back();
        const bool capped = cap_ > 0 && g.held.count >= cap_;
        if (!capped) {
          full_.push_back({items_.capacity[static_cast<std::size_t>(g.size)] - g.held.tokens,
                           index});
          std::push_heap(full_.begin(), full_.end());
        }
      }
      if (!placed) return false;
    }
    return true;
  }

  [[nodiscard]] ticks budget_left(std::int32_t g) const noexcept {
    const cell& at = cells_[static_cast<std::size_t>(g)];
    const auto level = static_cast<ticks>(
        rounded_product(plateau_, profile_[static_cast<std::size_t>(at.slot)]));
    return std::max(level, height_[static_cast<std::size_t>(at.slot)]) - at.cost.total();
  }

  using entry = std::pair<ticks, std::int32_t>;

  static void replace_top(std::vector<entry>& heap, entry value) {
    const std::size_t count = heap.size();
    std::size_t hole = 0;
    for (std::size_t child = 1; child < count; child = 2 * hole + 1) {
      if (child + 1 < count && heap[child] < heap[child + 1]) ++child;
      if (!(value < heap[child])) break;
      heap[hole] = heap[child];
      hole = child;
    }
    heap[hole] = value;
  }

  // Step 5: drops empty cells and slots, orders the slots, sorts the cells by position and rank.
  void finish(region_plan& out) {
    std::erase_if(cells_, [](const cell& g) { return g.count == 0; });
    slot_time_.assign(static_cast<std::size_t>(slots_), 0);
    for (const cell& g : cells_) {
      ticks& t = slot_time_[static_cast<std::size_t>(g.slot)];
      t = std::max(t, g.cost.total());
    }
    if (given_.empty()) {
      out.order = pipe_.chunks == 1 ? ramp_order(slot_time_, pipe_.stages, growth_)
                                    : headed_order(slot_time_, head_);
    } else {
      out.order.resize(given_.size());
      for (std::size_t j = 0; j < given_.size(); ++j) {
        out.order[static_cast<std::size_t>(given_[j])] = static_cast<std::int32_t>(j);
      }
    }
    std::erase_if(out.order, [&](std::int32_t slot) {
      return slot_time_[static_cast<std::size_t>(slot)] == 0;
    });
    move_cells(cells_, out.order);
    out.cells = cells_;
    out.items.clear();
    for (cell& g : out.cells) {
      std::int32_t item = g.first;
      g.first = static_cast<std::int32_t>(out.items.size());
      for (std::int32_t n = 0; n < g.count; ++n) {
        out.items.push_back(item);
        item = chain_[static_cast<std::size_t>(item)];
      }
    }
  }

  // The cells of slot order[k] get position k; `order` then says that slots are positions.
  void move_cells(std::vector<cell>& cells, std::vector<std::int32_t>& order) {
    position_.resize(std::max(position_.size(), static_cast<std::size_t>(slots_)));
    for (std::size_t at = 0; at < order.size(); ++at) {
      position_[static_cast<std::size_t>(order[at])] = static_cast<std::int32_t>(at);
    }
    for (cell& g : cells) g.slot = position_[static_cast<std::size_t>(g.slot)];
    std::iota(order.begin(), order.end(), 0);
    std::sort(cells.begin(), cells.end(), [](const cell& a, const cell& b) {
      return a.slot != b.slot ? a.slot < b.slot : a.ranks.begin < b.ranks.begin;
    });
  }

  void price(const region_plan& plan) {
    priced_.num_ranks = plan.ranks.size;
    priced_.stage_classes = cost_.stage_classes();
    if (priced_.class_of_stage.empty()) {
      for (std::int32_t s = 0; s < pipe_.stages * pipe_.chunks; ++s) {
        priced_.class_of_stage.push_back(cost_.stage_class(s));
      }
    }
    // Interleaved schedules run whole groups of micro-batches; the first ones may be empty.
    const std::int64_t slots =
        pipe_.chunks == 1 ? plan.num_slots() : round_up(plan.num_slots(), pipe_.stages);
    const std::int64_t idle = slots - plan.num_slots();
    priced_.first_group.assign(static_cast<std::size_t>(slots) + 1, 0);
    priced_.ranks.clear();
    priced_.costs.clear();
    for (const cell& g : plan.cells) {
      priced_.ranks.push_back({g.ranks.begin - plan.ranks.begin, g.ranks.size});
      priced_.first_group[static_cast<std::size_t>(idle + g.slot) + 1] += 1;
    }
    for (std::size_t j = 1; j < priced_.first_group.size(); ++j) {
      priced_.first_group[j] += priced_.first_group[j - 1];
    }
    for (std::int32_t k = 0; k < priced_.stage_classes; ++k) {
      for (const cell& g : plan.cells) {
        if (k == bottleneck_) {
          priced_.costs.push_back(g.cost);
          continue;
        }
        priced_.costs.push_back(groups_.cost(g.held, g.ranks, k));
      }
    }
  }

  const problem& prob_;
  const Cost& cost_;
  const item_table& items_;
  group_pricing<Cost> groups_;
  std::int32_t bottleneck_;
  pipeline pipe_;
  std::int32_t cap_;
  double backward_ratio_ = 2.0;
  double growth_ = 1.0;
  std::int32_t head_ = 0;  // of the order, interleaved

  // Of the build in hand.
  rank_range region_;
  std::int32_t slots_ = 0;
  double plateau_ = 0;  // ticks
  double work_ = 0;     // rank-ticks
  std::vector<double> profile_;        // (slots): relative budgets, falling
  std::vector<std::int32_t> given_;    // (slots): position of each slot, when budgets are given
  std::vector<wide_item> wide_;
  std::vector<std::int32_t> narrow_;
  std::vector<cell> cells_;            // while building, `first` heads a chain
  std::vector<std::int32_t> chain_;    // (items of the table): next item of the same cell
  std::vector<ticks> height_;          // (slots): largest cell so far
  std::vector<std::int32_t> free_;     // (slots): free ranks
  std::vector<std::int32_t> slot_size_;// (slots): size of the cell opened last, -1: none
  std::vector<char> used_;             // (slots, ranks)
  std::vector<entry> by_time_;         // max-heap of (time left, cell)
  std::vector<entry> full_;            // max-heap of (token room, cell)
  std::vector<ticks> slot_time_;       // (slots)
  std::vector<std::int32_t> position_; // (slots)
  priced_plan priced_;
  one_f_one_b fast_;
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
