// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Megatron's packing-aware greedy: one micro-batch after the other is filled to the token limit.
///
/// 1. Sequences go longest first; each call of the greedy makes one micro-batch of those left.
/// 2. A sequence of s tokens needs n(s) = max(min_cp, 2^ceil(log2(s / limit))) ranks. The first one
///    opens ranks [0, n).
/// 3. Every further one tries c = n(s), 2n(s), ... up to R: each group of c ranks with room for its
///    tokens, in rank order, then a new group behind the last. It takes the first option with the
///    least resulting max over ranks of sum(s^2/c). Without an option it waits for the next
///    micro-batch.
/// 4. While ranks are empty, the first of the smallest groups doubles, the rest shift right. When
///    that is impossible, one group of all R ranks replaces the micro-batch, filled first-fit.
/// 5. For a multiple (the interleaving group): the last micro-batch of more than one group is cut
///    where its first groups cover R/2 ranks, and both halves grow as in 4, until M is right.
///
/// Its own cap on the max, 1.05 * longest * limit, can never bind and is left out. What it fails at
/// is a typed error here: `not_found` when no micro-batch can be cut (it asserts), when no power of
/// two holds a sequence or ranks stay empty that no allowed size covers (it asserts, crashes or
/// names a group that does not exist), which happens only where R is no power of two. Beyond the
/// original: lengths count padded for the size tried, a sequence cap holds, and with max_cp < R
/// groups stop growing there, so that ranks may stay idle.
/// Source: Megatron-LM dev, `DefaultDynamicCPScheduler`, by its description; reproduces its plans.
/// Errors also: unsupported when n * R * M, with M the least that holds the tokens, passes
/// `most_steps`, since each micro-batch compares the sequences left with its groups.
/// Ties: by length, then batch order. Integer arithmetic throughout.
/// Complexity: O(M * n * groups) comparisons.
struct default_dynamic_cp {
  static constexpr std::string_view name = "default_dynamic_cp";
  static constexpr std::int64_t most_steps = std::int64_t{1} << 30;

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    if (auto ok = detail::check_no_atoms(prob, name); !ok) return ok.error();
    const length_sums sums = sum_lengths(prob.sequences);
    const int128 room = int128{prob.limits.max_tokens_per_rank} * prob.parallel.ranks;
    if ((sums.tokens / room + 1) * prob.parallel.ranks * sums.count > most_steps) {
      return make_error(errc::unsupported,
                        "default_dynamic_cp compares all sequences with all groups: too many here",
                        "choose dynamic_cp, or a smaller batch");
    }
    return builder(prob).run();
  }

 private:
  struct group {
    std::int32_t size = 0;
    std::int64_t tokens = 0;  // padded for this size
    int128 work = 0;          // sum of s^2, times scale_ / size
    std::vector<std::int32_t> sequences;
  };
  using groups = std::vector<group>;  // in rank order, without gaps

  class builder {
   public:
    explicit builder(const problem& prob)
        : prob_(prob), ranks_(prob.parallel.ranks), sizes_(allowed_cp_sizes(prob.parallel)) {
      std::erase_if(sizes_, [](std::int32_t c) { return !is_power_of_two(c); });
      for (const std::int32_t c : sizes_) scale_ = std::max(scale_, c);
    }

    [[nodiscard]] result<plan> run() {
      std::vector<std::int32_t> rest = detail::longest_first(prob_);
      if (auto ok = check_needs(rest); !ok) return ok.error();
      std::vector<groups> made;
      while (!rest.empty()) {
        groups packed = fill(rest);
        if (!cover(packed)) {
          if (auto ok = one_group(packed, rest); !ok) return ok.error();
        }
        made.push_back(std::move(packed));
      }
      if (auto ok = cut_to_multiple(made); !ok) return ok.error();
      plan out = detail::blank_plan(prob_);
      for (groups& packed : made) {
        out.micro_batches.emplace_back();
        std::int32_t begin = 0;
        for (group& g : packed) {
          out.micro_batches.back().packs.push_back({{begin, g.size}, std::move(g.sequences)});
          begin += g.size;
        }
      }
      return detail::settle(prob_, std::move(out), name);
    }

   private:
    [[nodiscard]] std::int64_t length(std::int32_t i) const {
      return prob_.sequences[static_cast<std::size_t>(i)].length;
    }

    // The smallest size that holds a sequence alone; 0 when none does.
    [[nodiscard]] std::int32_t need(std::int32_t i, const std::vector<std::int32_t>& sizes) const {
      for (const std::int32_t c : sizes) {
        const std::int64_t padded = padded_length(length(i), alignment(prob_.padding, c));
        if (padded_pack_tokens(prob_.padding, c, padded) <= pack_capacity(prob_, c)) return c;
      }
      return 0;
    }

    [[nodiscard]] result<void> check_needs(const std::vector<std::int32_t>& order) const {
      for (const std::int32_t i : order) {
        if (need(i, sizes_) > 0) continue;
        const std::vector<std::int32_t> allowed = allowed_cp_sizes(prob_.parallel);
        error e = too_long_error(prob_, i, allowed.back());
        if (need(i, allowed) > 0) {
          e.code = errc::not_found;
          e.what = "default_dynamic_cp uses powers of two, none of which holds sequence " +
                   std::to_string(prob_.sequences[static_cast<std::size_t>(i)].id);
        }
        return e;
      }
      return {};
    }

    [[nodiscard]] bool has_room(const group& g, std::int64_t padded) const {
      const std::int32_t cap = prob_.limits.max_sequences_per_pack;
      return padded_pack_tokens(prob_.padding, g.size, g.tokens + padded) <=
                 pack_capacity(prob_, g.size) &&
             (cap == 0 || g.sequences.size() < static_cast<std::size_t>(cap));
    }

    // Steps 2 and 3: takes from `rest` what the micro-batch holds.
    [[nodiscard]] groups fill(std::vector<std::int32_t>& rest) const {
      groups packed;
      std::vector<std::int32_t> left;
      std::int32_t used = 0;
      int128 highest = 0;
      for (const std::int32_t i : rest) {
        const std::int64_t s = length(i);
        std::size_t best = 0;
        std::int32_t best_size = 0;
        int128 best_max = 0;
        const auto offer = [&](std::size_t at, std::int32_t c, int128 work) {
          const int128 max = std::max(highest, work);
          if (best_size > 0 && max >= best_max) return;
          best = at;
          best_size = c;
          best_max = max;
        };
        for (const std::int32_t c : sizes_) {
          const std::int64_t padded = padded_length(s, alignment(prob_.padding, c));
          if (padded_pack_tokens(prob_.padding, c, padded) > pack_capacity(prob_, c)) continue;
          const int128 work = int128{s} * s * (scale_ / c);
          for (std::size_t k = 0; k < packed.size(); ++k) {
            if (packed[k].size == c && has_room(packed[k], padded)) {
              offer(k, c, packed[k].work + work);
            }
          }
          if (used + c <= ranks_) offer(packed.size(), c, work);
          if (packed.empty()) break;  // the longest stays at its least size
        }
        if (best_size == 0) {
          left.push_back(i);
          continue;
        }
        if (best == packed.size()) {
          packed.push_back({best_size, 0, 0, {}});
          used += best_size;
        }
        group& to = packed[best];
        to.tokens += padded_length(s, alignment(prob_.padding, best_size));
        to.work += int128{s} * s * (scale_ / best_size);
        to.sequences.push_back(i);
        highest = best_max;
      }
      rest = std::move(left);
      return packed;
    }

    // A group pads its sequences anew when it grows; false when that breaks the limit.
    [[nodiscard]] bool resize(group& g, std::int32_t c) const {
      const std::int64_t align = alignment(prob_.padding, c);
      std::int64_t tokens = 0;
      for (const std::int32_t i : g.sequences) tokens += padded_length(length(i), align);
      if (padded_pack_tokens(prob_.padding, c, tokens) > pack_capacity(prob_, c)) return false;
      g.size = c;
      g.tokens = tokens;
      return true;
    }

    // Step 4; false when empty ranks remain that doubling cannot reach.
    [[nodiscard]] bool cover(groups& packed) const {
      std::int32_t used = 0;
      for (const group& g : packed) used += g.size;
      while (used < ranks_) {
        const auto smallest =
            std::min_element(packed.begin(), packed.end(),
                             [](const group& a, const group& b) { return a.size < b.size; });
        const std::int32_t c = smallest->size;
        if (2 * std::int64_t{c} > effective_max_cp(prob_.parallel)) {
          return effective_max_cp(prob_.parallel) < ranks_;  // idle ranks were asked for
        }
        if (used + c > ranks_ || !std::binary_search(sizes_.begin(), sizes_.end(), 2 * c) ||
            !resize(*smallest, 2 * c)) {
          return false;
        }
        used += c;
      }
      return true;
    }

    // The last resort of step 4: what a group of all ranks holds, the others wait.
    [[nodiscard]] result<void> one_group(groups& packed, std::vector<std::int32_t>& rest) const {
      if (!detail::size_allowed(prob_.parallel, ranks_)) {
        return error{errc::not_found,
                     "default_dynamic_cp needs a group of all " + std::to_string(ranks_) +
                         " ranks to leave none empty, a size that is not allowed",
                     ranks_, 0, "use a power of two of ranks, or list the size (--cp-sizes)"};
      }
      std::vector<std::int32_t> all = std::move(rest);
      for (const group& g : packed) {
        all.insert(all.end(), g.sequences.begin(), g.sequences.end());
      }
      std::sort(all.begin(), all.end(), [&](std::int32_t a, std::int32_t b) {
        return length(a) != length(b) ? length(a) > length(b) : a < b;
      });
      group whole{ranks_, 0, 0, {}};
      rest.clear();
      for (const std::int32_t i : all) {
        const std::int64_t padded = padded_length(length(i), alignment(prob_.padding, ranks_));
        if (!has_room(whole, padded)) {
          rest.push_back(i);
          continue;
        }
        whole.tokens += padded;
        whole.sequences.push_back(i);
      }
      if (whole.sequences.empty()) {
        return error{errc::not_found, "default_dynamic_cp cannot fill all ranks in one group",
                     ranks_, 0, "use a power of two of ranks"};
      }
      packed.clear();
      packed.push_back(std::move(whole));
      return {};
    }

    // Step 5.
    [[nodiscard]] result<void> cut_to_multiple(std::vector<groups>& made) const {
      const auto multiple = static_cast<std::size_t>(micro_batch_multiple(prob_));
      while (made.size() % multiple != 0) {
        std::size_t at = made.size();
        while (at > 0 && made[at - 1].size() < 2) --at;
        if (at == 0) {
          return error{errc::not_found,
                       "default_dynamic_cp cannot cut " + std::to_string(made.size()) +
                           " micro-batches of one group each to a multiple of " +
                           std::to_string(multiple),
                       static_cast<std::int64_t>(made.size()), static_cast<std::int64_t>(multiple),
                       "give more sequences, or a smaller --micro-batch-multiple"};
        }
        groups& first = made[at - 1];
        std::int32_t covered = 0;
        std::size_t keep = 0;
        while (keep + 1 < first.size() && (keep == 0 || 2 * covered < ranks_)) {
          covered += first[keep++].size;
        }
        groups second(std::make_move_iterator(first.begin() + static_cast<std::ptrdiff_t>(keep)),
                      std::make_move_iterator(first.end()));
        first.resize(keep);
        if (!cover(first) || !cover(second)) {
          return error{errc::not_found,
                       "default_dynamic_cp cannot spread half a micro-batch over " +
                           std::to_string(ranks_) + " ranks",
                       ranks_, 0, "use a power of two of ranks"};
        }
        made.insert(made.begin() + static_cast<std::ptrdiff_t>(at), std::move(second));
      }
      return {};
    }

    const problem& prob_;
    std::int32_t ranks_;
    std::vector<std::int32_t> sizes_;  // the allowed powers of two
    std::int32_t scale_ = 1;           // the largest of them
  };
};

}  // namespace v0
}  // namespace dyncp
