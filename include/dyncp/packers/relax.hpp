// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/karmarkar_karp.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

namespace detail {

/// The steps of `relax` and `relax_capped`.
class relax_builder {
 public:
  relax_builder(const problem& prob, bool capped)
      : prob_(prob),
        wide_(prob.parallel.static_cp),
        lanes_(prob.parallel.ranks / prob.parallel.static_cp),
        align_(capped ? alignment(prob.padding, prob.parallel.static_cp) : 1),
        capped_(capped) {}

  [[nodiscard]] result<plan> run(std::string_view name) {
    if (auto ok = check_static_cp(prob_, name); !ok) return ok.error();
    if (auto ok = check_no_atoms(prob_, name); !ok) return ok.error();
    if (!is_power_of_two(wide_)) {
      return error{errc::unsupported,
                   std::string(name) + " halves the static cp of " + std::to_string(wide_), wide_,
                   0, "choose a power of two (--cp)"};
    }
    const std::int64_t capacity = pack_capacity(prob_, wide_);
    for (std::size_t i = 0; i < prob_.sequences.size(); ++i) {
      const std::int64_t padded =
          padded_length(prob_.sequences[i].length, alignment(prob_.padding, wide_));
      if (padded_pack_tokens(prob_.padding, wide_, padded) > capacity) {
        return too_long_error(prob_, static_cast<std::int64_t>(i), wide_);
      }
    }
    partition lanes = deal();
    std::int64_t count = prob_.limits.micro_batches;
    for (const std::vector<std::int32_t>& lane : lanes) {
      count = std::max(count, static_cast<std::int64_t>(first_fit(lane).size()));
    }
    count = round_up(count, micro_batch_multiple(prob_));
    std::vector<partition> parts;  // (lanes): micro-batches by rising longest sequence
    for (const std::vector<std::int32_t>& lane : lanes) {
      parts.push_back(micro_batches(lane, static_cast<std::size_t>(count)));
    }
    plan out = blank_plan(prob_);
    for (std::size_t j = 0; j < static_cast<std::size_t>(count); ++j) {
      out.micro_batches.push_back(divide(parts, j));
    }
    return settle(prob_, std::move(out), name);
  }

 private:
  [[nodiscard]] std::int64_t length(std::int32_t i) const {
    return padded_length(prob_.sequences[static_cast<std::size_t>(i)].length, align_);
  }
  [[nodiscard]] std::int64_t tokens(const std::vector<std::int32_t>& part) const {
    std::int64_t sum = 0;
    for (const std::int32_t i : part) sum += length(i);
    return sum;
  }
  [[nodiscard]] std::int64_t longest(const std::vector<std::int32_t>& part) const {
    std::int64_t most = 0;
    for (const std::int32_t i : part) most = std::max(most, length(i));
    return most;
  }
  // `part`, a list of sequences, in `count` sets of like tokens.
  [[nodiscard]] partition balance(const std::vector<std::int32_t>& part, std::size_t count,
                                  bool equal_sizes = false) const {
    std::vector<int128> weights;
    for (const std::int32_t i : part) weights.push_back(length(i));
    partition sets = karmarkar_karp(weights, static_cast<std::int32_t>(count), equal_sizes);
    for (std::vector<std::int32_t>& set : sets) {
      for (std::int32_t& i : set) i = part[static_cast<std::size_t>(i)];
    }
    return sets;
  }

  [[nodiscard]] partition deal() const {
    std::vector<std::int32_t> all(prob_.sequences.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    const auto lanes = static_cast<std::size_t>(lanes_);
    return balance(all, lanes, all.size() % lanes == 0);
  }

  [[nodiscard]] bool over(std::int64_t sum) const {
    return (capped_ ? padded_pack_tokens(prob_.padding, wide_, sum) : sum) >
           pack_capacity(prob_, wide_);
  }

  [[nodiscard]] partition first_fit(const std::vector<std::int32_t>& lane) const {
    partition bins;
    std::vector<std::int64_t> sums;
    for (const std::int32_t i : lane) {
      std::size_t to = 0;
      while (to < bins.size() && over(sums[to] + length(i))) ++to;
      if (to == bins.size()) {
        bins.emplace_back();
        sums.push_back(0);
      }
      bins[to].push_back(i);
      sums[to] += length(i);
    }
    return bins;
  }

  // Micro-batches of a lane; those without a sequence come first.
  [[nodiscard]] partition micro_batches(const std::vector<std::int32_t>& lane,
                                        std::size_t count) const {
    const std::size_t used = std::min(count, lane.size());
    partition parts;
    if (used > 0) {
      parts = balance(lane, used);
      const bool broken = std::any_of(parts.begin(), parts.end(), [&](const auto& part) {
        return part.size() > 1 && over(tokens(part));
      });
      if (broken) parts = spread(first_fit(lane), used);
    }
    parts.resize(count);
    std::stable_sort(parts.begin(), parts.end(), [&](const auto& a, const auto& b) {
      return longest(a) < longest(b);
    });
    return parts;
  }

  // The fullest bin of several sequences gives its longest one to a new bin.
  [[nodiscard]] partition spread(partition bins, std::size_t count) const {
    while (bins.size() < count) {
      std::size_t from = bins.size();
      for (std::size_t b = 0; b < bins.size(); ++b) {
        if (bins[b].size() < 2) continue;
        if (from == bins.size() || tokens(bins[b]) > tokens(bins[from])) from = b;
      }
      std::vector<std::int32_t>& giver = bins[from];
      const auto it = std::max_element(
          giver.begin(), giver.end(),
          [&](std::int32_t a, std::int32_t b) { return length(a) < length(b); });
      const std::int32_t moved = *it;
      giver.erase(it);
      bins.push_back({moved});
    }
    return bins;
  }

  // One CP size for all lanes of micro-batch j, then sub-groups of like tokens.
  [[nodiscard]] micro_batch divide(const std::vector<partition>& parts, std::size_t j) const {
    std::int64_t needed = 1;
    std::size_t fewest = prob_.sequences.size();
    for (const partition& lane : parts) {
      if (lane[j].empty()) continue;
      needed = std::max(needed, ceil_div(longest(lane[j]), prob_.limits.max_tokens_per_rank));
      fewest = std::min(fewest, lane[j].size());
    }
    auto c = static_cast<std::int32_t>(
        std::min<std::int64_t>(next_power_of_two(needed), wide_));
    while (c < wide_ && static_cast<std::size_t>(wide_ / c) > fewest) c *= 2;
    micro_batch made = groups(parts, j, c);
    while (c < wide_ && (!size_allowed(prob_.parallel, c) || (capped_ && !fits(made)))) {
      c *= 2;
      made = groups(parts, j, c);
    }
    return made;
  }

  [[nodiscard]] micro_batch groups(const std::vector<partition>& parts, std::size_t j,
                                   std::int32_t c) const {
    micro_batch made;
    for (std::size_t lane = 0; lane < parts.size(); ++lane) {
      if (parts[lane][j].empty()) continue;
      partition sets = balance(parts[lane][j], static_cast<std::size_t>(wide_ / c));
      for (std::size_t k = 0; k < sets.size(); ++k) {
        const auto begin = static_cast<std::int32_t>(lane) * wide_ +
                           static_cast<std::int32_t>(k) * c;
        if (!sets[k].empty()) made.packs.push_back({{begin, c}, std::move(sets[k])});
      }
    }
    return made;
  }

  [[nodiscard]] bool fits(const micro_batch& mb) const {
    return std::all_of(mb.packs.begin(), mb.packs.end(), [&](const pack& pk) {
      return pack_load(pk, prob_.sequences, prob_.padding).tokens <=
             pack_capacity(prob_, pk.ranks.size);
    });
  }

  const problem& prob_;
  std::int32_t wide_;
  std::int32_t lanes_;
  std::int64_t align_;
  bool capped_;
};

}  // namespace detail

/// Relax's rule: one CP size a micro-batch, as small as its longest sequence allows.
///
/// 1. The batch is dealt to dp lanes of static_cp ranks, balanced by tokens with equal counts where
///    the batch divides.
/// 2. M is the largest first-fit count (capacity limit * static_cp) of the lanes, rounded up to the
///    micro-batch multiple. Each lane splits into M parts of like tokens (Karmarkar-Karp); where
///    one exceeds the capacity it takes the first-fit bins instead, the fullest of which give their
///    longest sequence away until there are M. Parts go by rising longest sequence.
/// 3. Micro-batch j has c = next power of two of ceil(longest / limit), the maximum over lanes, and
///    doubles it while static_cp / c exceeds the sequences of some lane, so that no sub-group is
///    empty. Each lane splits into static_cp / c sub-groups of like tokens.
///
/// Real lengths are counted, not padded ones, and sub-groups are not checked against the limit: a
/// plan may break it, as the original's do, and the validator then calls it invalid. A lane with
/// fewer sequences than M idles where the original trains a masked copy of its shortest part, which
/// a plan cannot hold; min_cp, unknown there, raises c.
/// Errors: sequence_too_long; unsupported for atomic groups or a static cp that is no power of two;
/// not_found for a fixed M that is too small.
/// Source: Relax, `cp_utils.py` and `data.py`, by their description.
/// Complexity: O(n * M) and Karmarkar-Karp.
struct relax {
  static constexpr std::string_view name = "relax";

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    return detail::relax_builder(prob, false).run(name);
  }
};

/// `relax` repaired: lengths count padded, and c doubles until every sub-group keeps the limit.
/// Not what Relax does; never the basis of a comparison.
struct relax_capped {
  static constexpr std::string_view name = "relax_capped";

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    return detail::relax_builder(prob, true).run(name);
  }
};

}  // namespace v0
}  // namespace dyncp
