// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

namespace detail {

/// Each item of `order` into the first bin with room, else into a new one. O(items * bins).
inline void first_fit(const static_bins& bins, const std::vector<static_item>& items,
                      const std::vector<std::int32_t>& order, item_packs& packs,
                      std::vector<load>& sums) {
  for (const std::int32_t i : order) {
    std::size_t to = 0;
    while (to < packs.size() && !bins.fits(sums[to], i)) ++to;
    if (to == packs.size()) {
      packs.emplace_back();
      sums.emplace_back();
    }
    packs[to].push_back(i);
    sums[to] += items[static_cast<std::size_t>(i)].sum;
  }
}

/// Modified first-fit decreasing, as in the textbook; `ffd` and `mffd` below tell the rest.
class modified_first_fit {
 public:
  modified_first_fit(const static_bins& bins, const std::vector<static_item>& items,
                     std::int64_t capacity)
      : bins_(bins), items_(items), capacity_(capacity) {}

  [[nodiscard]] item_packs run() {
    std::vector<std::int32_t> medium;
    std::vector<std::int32_t> small;
    std::vector<std::int32_t> tiny;
    for (const std::int32_t i : fullest_first(items_)) {
      const std::int64_t t = tokens(i);
      if (2 * t > capacity_) {
        packs_.push_back({i});
        sums_.push_back(items_[static_cast<std::size_t>(i)].sum);
      } else if (3 * t > capacity_) {
        medium.push_back(i);
      } else {
        (6 * t > capacity_ ? small : tiny).push_back(i);
      }
    }
    // Forward: the largest medium item that fits beside a large one.
    std::vector<char> has_medium(packs_.size(), 0);
    for (std::size_t b = 0; b < packs_.size(); ++b) {
      has_medium[b] = take_largest(b, medium) ? 1 : 0;
    }
    // Backward: where no medium one is, the smallest small item and the largest that fits with it.
    for (std::size_t b = packs_.size(); b-- > 0;) {
      if (has_medium[b] != 0 || small.size() < 2) continue;
      load both = sums_[b] + items_[static_cast<std::size_t>(small.back())].sum;
      if (!bins_.fits(sums_[b], small.back()) || !bins_.fits(both, small[small.size() - 2])) {
        continue;
      }
      put(b, small.back());
      small.pop_back();
      (void)take_largest(b, small);
    }
    // Forward again: whatever fits, the largest first.
    std::vector<std::int32_t> rest = std::move(medium);
    rest.insert(rest.end(), small.begin(), small.end());
    rest.insert(rest.end(), tiny.begin(), tiny.end());
    for (std::size_t b = 0; b < packs_.size(); ++b) {
      while (take_largest(b, rest)) {
      }
    }
    item_packs fresh;
    std::vector<load> sums;
    first_fit(bins_, items_, rest, fresh, sums);
    for (std::vector<std::int32_t>& p : fresh) packs_.push_back(std::move(p));
    return std::move(packs_);
  }

 private:
  [[nodiscard]] std::int64_t tokens(std::int32_t i) const {
    return items_[static_cast<std::size_t>(i)].sum.tokens;
  }
  void put(std::size_t bin, std::int32_t item) {
    packs_[bin].push_back(item);
    sums_[bin] += items_[static_cast<std::size_t>(item)].sum;
  }
  // `from` falls; false when nothing of it fits.
  bool take_largest(std::size_t bin, std::vector<std::int32_t>& from) {
    const auto it = std::find_if(from.begin(), from.end(),
                                 [&](std::int32_t i) { return bins_.fits(sums_[bin], i); });
    if (it == from.end()) return false;
    put(bin, *it);
    from.erase(it);
    return true;
  }

  const static_bins& bins_;
  const std::vector<static_item>& items_;
  std::int64_t capacity_;
  item_packs packs_;
  std::vector<load> sums_;
};

}  // namespace detail

/// First-fit decreasing at the static CP size: as few packs as a simple rule finds.
///
/// 1. Sequences by falling padded tokens, each into the first pack with room.
/// 2. The number of packs is raised to whole micro-batches as in `packing_only`.
/// 3. Pack i goes to lane i % dp of micro-batch i / dp.
/// At most 11/9 OPT + 6/9 packs before step 2. Knows tokens only: work is not balanced.
/// Errors: as `packing_only`. Source: packers of several RL trainers. O(n * packs).
struct ffd {
  static constexpr std::string_view name = "ffd";

  std::int64_t pack_tokens = 0;  ///< padded tokens of a pack; 0: limit * cp

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    if (auto ok = detail::check_static_cp(prob, name); !ok) return ok.error();
    const std::int64_t capacity = detail::static_capacity(prob, pack_tokens);
    auto items = detail::static_items(prob, prob.parallel.static_cp, capacity);
    if (!items) return items.error();
    const detail::static_bins bins(prob, *items, capacity);
    detail::item_packs packs;
    std::vector<load> sums;
    detail::first_fit(bins, *items, detail::fullest_first(*items), packs, sums);
    detail::raise_to_whole(prob, packs);
    return detail::settle(prob, detail::deal_to_lanes(prob, *items, packs), name);
  }
};

/// Modified first-fit decreasing at the static CP size, or `ffd` where that needs fewer packs.
///
/// 1. Large items (over 1/2 of a pack) open packs; 2. forward through them, each takes the largest
/// medium one (over 1/3) that fits; 3. backward through those without a medium one, each takes the
/// smallest small one (over 1/6) and the largest that fits with it, where two fit; 4. forward, each
/// takes the largest of the rest that fits, repeatedly; 5. what is left is packed first-fit
/// decreasing. No pack is ever empty.
/// At most 71/60 OPT + 1 packs (Johnson and Garey, 1985). A worst-fit step 5, as one trainer has
/// it, can need more packs than `ffd`; so the fewer of both is taken.
/// Errors: as `packing_only`. O(n * packs).
struct mffd {
  static constexpr std::string_view name = "mffd";

  std::int64_t pack_tokens = 0;  ///< padded tokens of a pack; 0: limit * cp

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    if (auto ok = detail::check_static_cp(prob, name); !ok) return ok.error();
    const std::int64_t capacity = detail::static_capacity(prob, pack_tokens);
    auto items = detail::static_items(prob, prob.parallel.static_cp, capacity);
    if (!items) return items.error();
    const detail::static_bins bins(prob, *items, capacity);
    detail::item_packs packs = detail::modified_first_fit(bins, *items, capacity).run();
    detail::item_packs plain;
    std::vector<load> sums;
    detail::first_fit(bins, *items, detail::fullest_first(*items), plain, sums);
    if (plain.size() < packs.size()) packs = std::move(plain);
    detail::raise_to_whole(prob, packs);
    return detail::settle(prob, detail::deal_to_lanes(prob, *items, packs), name);
  }
};

}  // namespace v0
}  // namespace dyncp
