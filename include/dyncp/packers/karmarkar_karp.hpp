// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/int_math.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Which items go where: `parts[k]` lists indices into the weights, ascending.
using partition = std::vector<std::vector<std::int32_t>>;

namespace detail {

/// The state of the differencing method; one object partitions once.
class differencing {
 public:
  differencing(const std::vector<int128>& weights, std::int32_t parts)
      : weights_(weights), parts_(static_cast<std::size_t>(parts)), next_(weights.size(), -1) {}

  [[nodiscard]] partition run(bool equal_sizes) {
    std::vector<std::int32_t> order(weights_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return weight(a) < weight(b); });
    const std::size_t step = equal_sizes ? parts_ : 1;
    const auto later = [](const state& a, const state& b) { return goes_later(a, b); };
    std::priority_queue<state, std::vector<state>, decltype(later)> heap(later);
    for (std::size_t i = 0; i < order.size(); i += step) {
      state s;
      for (std::size_t k = i; k < i + step; ++k) {
        s.sets.push_back({weight(order[k]), 1, order[k], order[k]});
      }
      settle(s);
      heap.push(std::move(s));
    }
    while (heap.size() > 1) {
      state a = take(heap);
      state b = take(heap);
      merge(a, b);
      heap.push(std::move(a));
    }
    return unfold(heap.top());
  }

 private:
  // A chain of items: first .. last, linked by next_.
  struct chain {
    int128 sum = 0;
    std::int32_t count = 0;
    std::int32_t first = -1;
    std::int32_t last = -1;
  };
  // The non-empty sets of a partial partition, largest first; the rest of the parts are empty.
  struct state {
    std::vector<chain> sets;
    int128 spread = 0;
  };

  [[nodiscard]] int128 weight(std::int32_t i) const {
    return weights_[static_cast<std::size_t>(i)];
  }

  static bool larger(const chain& a, const chain& b) noexcept {
    if (a.sum != b.sum) return a.sum > b.sum;
    if (a.count != b.count) return a.count > b.count;
    return a.first > b.first;
  }
  static bool goes_later(const state& a, const state& b) noexcept {
    if (a.spread != b.spread) return a.spread < b.spread;
    return larger(b.sets.front(), a.sets.front());
  }

  template <class Heap>
  static state take(Heap& heap) {
    state s = heap.top();
    heap.pop();
    return s;
  }

  void settle(state& s) const {
    std::sort(s.sets.begin(), s.sets.end(), larger);
    s.spread = s.sets.front().sum - (s.sets.size() < parts_ ? 0 : s.sets.back().sum);
  }

  // The largest of one goes with the smallest of the other, and so on.
  void merge(state& a, const state& b) {
    const std::size_t had = a.sets.size();
    for (std::size_t j = b.sets.size(); j-- > 0;) {
      const std::size_t i = parts_ - 1 - j;
      if (i >= had) {
        a.sets.push_back(b.sets[j]);
        continue;
      }
      chain& to = a.sets[i];
      next_[static_cast<std::size_t>(to.last)] = b.sets[j].first;
      to.last = b.sets[j].last;
      to.sum += b.sets[j].sum;
      to.count += b.sets[j].count;
    }
    settle(a);
  }

  [[nodiscard]] partition unfold(const state& s) const {
    partition parts(parts_);
    for (std::size_t k = 0; k < s.sets.size(); ++k) {
      for (std::int32_t i = s.sets[k].first; i >= 0; i = next_[static_cast<std::size_t>(i)]) {
        parts[k].push_back(i);
      }
      std::sort(parts[k].begin(), parts[k].end());
    }
    return parts;
  }

  const std::vector<int128>& weights_;
  std::size_t parts_;
  std::vector<std::int32_t> next_;
};

}  // namespace detail

/// Splits items into `parts` sets of nearly equal sums, heaviest set first, by the largest
/// differencing method of Karmarkar and Karp: partial partitions are merged, always the two whose
/// sets differ most, the largest set of one with the smallest of the other.
///
/// Requires 1 <= parts and non-negative weights; with `equal_sizes`, weights.size() is a multiple
/// of `parts` and every set gets the same number of items. No set is empty when the weights are
/// positive and there are at least `parts` of them.
/// Ties: sum, then number of items, then the first item's index, the larger first.
/// Complexity: O(n * (parts log parts + log n)).
/// Source: N. Karmarkar, R. Karp, The differencing method of set partitioning, 1982; ties as in
/// verl's `seqlen_balancing`, by its description.
[[nodiscard]] inline partition karmarkar_karp(const std::vector<int128>& weights,
                                              std::int32_t parts, bool equal_sizes = false) {
  DYNCP_ASSERT(parts >= 1);
  DYNCP_ASSERT(!equal_sizes || weights.size() % static_cast<std::size_t>(parts) == 0);
  if (weights.empty()) return partition(static_cast<std::size_t>(parts));
  return detail::differencing(weights, parts).run(equal_sizes);
}

}  // namespace v0
}  // namespace dyncp
