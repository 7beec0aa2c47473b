// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/packers/region_builder.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// Items on a group of ranks; the form in which a micro-batch is repaired.
struct item_group {
  rank_range ranks;
  std::int32_t size = 0;  // index of ranks.size
  std::vector<std::int32_t> items;
};

/// Gives every rank of a micro-batch a pack, for jobs whose ranks must run in step (expert
/// parallelism). As often as a rank is idle:
///   1. an idle block next to a group of the same size doubles that group, or
///   2. a group with several items gives its shortest ones to the largest group that the idle
///      ranks allow.
/// False when neither is possible. `load_fits(items, size)` tells whether items fit a group; with
/// `uniform` all groups keep the size of the first. Complexity: O(idle * groups^2).
template <class Fits>
[[nodiscard]] bool cover_ranks(std::vector<item_group>& groups, const item_table& items,
                               std::int32_t ranks, bool uniform, Fits load_fits) {
  const auto idle_from = [&](std::int32_t from) {
    std::int32_t at = from;
    for (bool moved = true; moved;) {
      moved = false;
      for (const item_group& g : groups) {
        if (g.ranks.contains(at)) {
          at = g.ranks.end();
          moved = true;
        }
      }
    }
    return at;
  };
  const auto free_block = [&](std::int32_t begin, std::int32_t size) {
    if (begin < 0 || begin + size > ranks) return false;
    return std::none_of(groups.begin(), groups.end(), [&](const item_group& g) {
      return g.ranks.overlaps({begin, size});
    });
  };
  const auto widen = [&](std::int32_t at) {
    if (uniform && groups.size() > 1) return false;
    for (item_group& g : groups) {
      for (std::int32_t k = g.size + 1; k < items.num_sizes(); ++k) {
        const std::int32_t c = items.sizes[static_cast<std::size_t>(k)];
        const std::int32_t begin =
            is_power_of_two(c) ? g.ranks.begin / c * c : std::min(g.ranks.begin, ranks - c);
        const rank_range wide{begin, c};
        if (!wide.contains(at) || begin + c > ranks || begin < 0) continue;
        const bool free = std::none_of(groups.begin(), groups.end(), [&](const item_group& o) {
          return &o != &g && o.ranks.overlaps(wide);
        });
        if (!free || begin > g.ranks.begin || !load_fits(g.items, k)) continue;
        g.ranks = wide;
        g.size = k;
        return true;
      }
    }
    return false;
  };
  const auto give = [&](std::int32_t at) {
    item_group* giver = nullptr;
    for (item_group& g : groups) {
      if (g.items.size() < 2) continue;
      if (giver == nullptr || g.items.size() > giver->items.size()) giver = &g;
    }
    if (giver == nullptr) return false;
    for (std::int32_t k = items.num_sizes() - 1; k >= 0; --k) {
      const std::int32_t c = items.sizes[static_cast<std::size_t>(k)];
      if (uniform && k != giver->size) continue;
      if ((is_power_of_two(c) && at % c != 0) || !free_block(at, c)) continue;
      std::vector<std::int32_t> moved{*std::max_element(giver->items.begin(),
                                                        giver->items.end())};
      if (!load_fits(moved, k)) continue;
      std::erase(giver->items, moved.front());
      groups.push_back({{at, c}, k, std::move(moved)});
      return true;
    }
    return false;
  };
  for (std::int32_t at = idle_from(0); at < ranks; at = idle_from(0)) {
    if (!widen(at) && !give(at)) return false;
  }
  std::sort(groups.begin(), groups.end(), [](const item_group& a, const item_group& b) {
    return a.ranks.begin < b.ranks.begin;
  });
  return true;
}

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
