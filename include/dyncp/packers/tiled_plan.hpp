// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// Plans without idle ranks: every micro-batch is tiled by groups of one size that divides R, and
/// every group holds an item.
///
/// 1. The micro-batches take the longest items first, one a group, with the smallest tile (of at
///    least `floor` ranks) that holds the longest of them and leaves an item for every group of
///    the largest tile in the micro-batches to come.
/// 2. The rest, longest first, each into the group that ends first with it and has room.
/// Exists for every M up to the number of items when R is an allowed size and room is ample; long
/// items run beside long ones. Complexity: O(n log(M * R)) a plan while groups have room, O(n * M
/// * R) where they are full. Deterministic.
template <cost_model Cost>
class tiled_planner {
 public:
  tiled_planner(const problem& prob, const Cost& cost, const item_table& items)
      : prob_(prob), cost_(cost), items_(items), bottleneck_(cost.bottleneck_class()) {
    for (std::int32_t k = 0; k < items.num_sizes(); ++k) {
      if (prob.parallel.ranks % items.sizes[static_cast<std::size_t>(k)] == 0) tiles_.push_back(k);
    }
  }

  /// The largest M with an item for every group; 0 when no allowed size divides R.
  [[nodiscard]] std::int32_t most_micro_batches() const noexcept {
    return tiles_.empty() ? 0 : items_.count() / groups_of(tiles_.back());
  }

  /// False when M is too large for the number of items, or an item found no room.
  [[nodiscard]] bool build(std::int32_t micro_batches, std::int32_t floor, plan& out) {
    if (micro_batches < 1 || micro_batches > most_micro_batches()) return false;
    groups_.clear();
    const std::int32_t fewest = groups_of(tiles_.back());
    std::int32_t next = 0;
    for (std::int32_t j = 0; j < micro_batches; ++j) {
      const std::int32_t spare = items_.count() - next - (micro_batches - j - 1) * fewest;
      const std::int32_t k = tile_for(next, floor, spare);
      if (k < 0) return false;
      for (std::int32_t g = 0; g < groups_of(k); ++g) {
        groups_.push_back({j, g * size_of(k), k, {}, 0, {}});
        put(groups_.back(), next + g);
      }
      next += groups_of(k);
    }
    if (!place_rest(next)) return false;
    write(micro_batches, out);
    return true;
  }

 private:
  struct group {
    std::int32_t micro_batch;
    std::int32_t begin;
    std::int32_t size;  // index of the size
    load held;
    ticks time;
    std::vector<std::int32_t> items;
  };

  [[nodiscard]] std::int32_t size_of(std::int32_t k) const noexcept {
    return items_.sizes[static_cast<std::size_t>(k)];
  }
  [[nodiscard]] std::int32_t groups_of(std::int32_t k) const noexcept {
    return prob_.parallel.ranks / size_of(k);
  }

  // Items [first, first + groups) must fit alone; -1 when no tile does.
  [[nodiscard]] std::int32_t tile_for(std::int32_t first, std::int32_t floor,
                                      std::int32_t spare) const noexcept {
    for (const std::int32_t k : tiles_) {
      const bool last = k == tiles_.back();
      if (groups_of(k) > spare || (size_of(k) < floor && !last)) continue;
      bool fits = true;
      for (std::int32_t i = first; i < first + groups_of(k); ++i) {
        fits = fits && items_.least_size[static_cast<std::size_t>(i)] <= k;
      }
      if (fits) return k;
    }
    return -1;
  }

  [[nodiscard]] bool has_room(const group& g, std::int32_t item) const noexcept {
    if (items_.least_size[static_cast<std::size_t>(item)] > g.size) return false;
    const load sum = g.held + items_.load_of(item, g.size);
    const std::int32_t cap = prob_.limits.max_sequences_per_pack;
    return padded_pack_tokens(prob_.padding, size_of(g.size), sum.tokens) <=
               items_.capacity[static_cast<std::size_t>(g.size)] &&
           (cap == 0 || sum.count <= cap);
  }

  void put(group& g, std::int32_t item) {
    g.held += items_.load_of(item, g.size);
    g.items.push_back(item);
    load padded = g.held;
    padded.tokens = padded_pack_tokens(prob_.padding, size_of(g.size), padded.tokens);
    const std::int32_t per_node = ranks_per_node(prob_.cluster.gpus_per_node, prob_.parallel);
    g.time = cost_
                 .cost(padded, size_of(g.size), link_of({g.begin, size_of(g.size)}, per_node),
                       bottleneck_)
                 .total();
  }

  // A heap of (time, group), earliest on top; groups without room for an item stay in it, since a
  // shorter one may fit.
  bool place_rest(std::int32_t next) {
    using entry = std::pair<ticks, std::int32_t>;
    const auto later = [](const entry& a, const entry& b) { return a > b; };
    std::vector<entry> heap;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      heap.emplace_back(groups_[g].time, static_cast<std::int32_t>(g));
    }
    std::make_heap(heap.begin(), heap.end(), later);
    std::vector<entry> tried;
    for (std::int32_t item = next; item < items_.count(); ++item) {
      bool placed = false;
      while (!placed && !heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), later);
        const std::int32_t at = heap.back().second;
        heap.pop_back();
        group& g = groups_[static_cast<std::size_t>(at)];
        placed = has_room(g, item);
        if (placed) put(g, item);
        tried.emplace_back(g.time, at);
      }
      for (const entry& e : tried) {
        heap.push_back(e);
        std::push_heap(heap.begin(), heap.end(), later);
      }
      tried.clear();
      if (!placed) return false;
    }
    return true;
  }

  void write(std::int32_t micro_batches, plan& out) const {
    out = {prob_.parallel.ranks, prob_.limits.max_tokens_per_rank, prob_.padding, {}};
    out.micro_batches.resize(static_cast<std::size_t>(micro_batches));
    for (const group& g : groups_) {
      pack pk{{g.begin, size_of(g.size)}, {}};
      for (const std::int32_t i : g.items) {
        for (const std::int32_t s : items_.members_of(i)) pk.sequences.push_back(s);
      }
      std::sort(pk.sequences.begin(), pk.sequences.end());
      out.micro_batches[static_cast<std::size_t>(g.micro_batch)].packs.push_back(std::move(pk));
    }
  }

  const problem& prob_;
  const Cost& cost_;
  const item_table& items_;
  std::int32_t bottleneck_;
  std::vector<std::int32_t> tiles_;  // indices of the sizes that divide R, ascending
  std::vector<group> groups_;
};

/// Offers tilings to `consider(plan) -> bool`, which tells whether one is the best so far: for the
/// fixed M, or for multiples of the interleaving group that grow by a quarter, until they are twice
/// the best. Batches of up to 256 items are tried with every floor of the tiles.
template <cost_model Cost, class Consider>
void for_each_tiling(const problem& prob, const Cost& cost, const item_table& items,
                     Consider consider) {
  tiled_planner<Cost> tiled(prob, cost, items);
  const std::int32_t multiple = micro_batch_multiple(prob);
  const std::int32_t fixed = prob.limits.micro_batches;
  const std::int32_t floors = items.count() <= 256 ? items.num_sizes() : 1;
  const std::int32_t most = fixed > 0 ? fixed : tiled.most_micro_batches();
  std::int32_t best = 0;
  plan trial;
  for (std::int64_t m = fixed > 0 ? fixed : multiple; m <= most;
       m += multiple * std::max<std::int64_t>(1, m / 4 / multiple)) {
    if (best > 0 && m > 2 * std::int64_t{best}) break;
    for (std::int32_t k = 0; k < floors; ++k) {
      if (!tiled.build(static_cast<std::int32_t>(m), items.sizes[static_cast<std::size_t>(k)],
                       trial)) {
        continue;
      }
      if (consider(trial)) best = static_cast<std::int32_t>(m);
    }
  }
}

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
