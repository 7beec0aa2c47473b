// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/packers/packer.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The baseline that Dynamic-CP is measured against: next-fit packing at the static CP size.
///
/// 1. Sequences are taken in order; a pack is closed when the next one does not fit in
///    limit * cp padded tokens (or over the sequence cap).
/// 2. The number of packs is raised to a multiple of dp (times the micro-batch multiple): the last
///    pack with more than one sequence gives its last one to a new pack, until the number is right
///    or no pack can give; lanes that stay empty are idle.
/// 3. Pack i*dp + j goes to lane j (ranks j*cp .. j*cp + cp-1) of micro-batch i.
/// Source: Megatron-LM's `dp_balanced` scheduler, by its description. O(n).
struct packing_only {
  static constexpr std::string_view name = "packing_only";

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    const std::int32_t cp = prob.parallel.static_cp;
    const std::int64_t capacity = pack_capacity(prob, cp);
    const std::int64_t align = alignment(prob.padding, cp);
    const auto cap = static_cast<std::size_t>(prob.limits.max_sequences_per_pack);

    std::vector<std::vector<std::int32_t>> packs;
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < prob.sequences.size(); ++i) {
      const std::int64_t padded = padded_length(prob.sequences[i].length, align);
      if (padded_pack_tokens(prob.padding, cp, padded) > capacity) {
        return too_long_error(prob, static_cast<std::int64_t>(i), cp);
      }
      const bool full = padded_pack_tokens(prob.padding, cp, tokens + padded) > capacity ||
                        (cap > 0 && !packs.empty() && packs.back().size() == cap);
      if (packs.empty() || full) {
        packs.emplace_back();
        tokens = 0;
      }
      packs.back().push_back(static_cast<std::int32_t>(i));
      tokens += padded;
    }

    const auto dp = static_cast<std::size_t>(prob.parallel.ranks / cp);
    const std::size_t multiple =
        dp * static_cast<std::size_t>(micro_batch_multiple(prob));
    split_to_multiple(packs, multiple);
    plan out = lay_out(prob, packs, dp);
    // Too few sequences to split: the last micro-batches stay empty.
    while (out.micro_batches.size() % static_cast<std::size_t>(micro_batch_multiple(prob)) != 0) {
      out.micro_batches.emplace_back();
    }
    return out;
  }

 private:
  static void split_to_multiple(std::vector<std::vector<std::int32_t>>& packs,
                                std::size_t multiple) {
    std::size_t giver = packs.size();
    while (packs.size() % multiple != 0) {
      while (giver > 0 && packs[giver - 1].size() < 2) --giver;
      if (giver == 0) return;
      const std::int32_t moved = packs[giver - 1].back();
      packs[giver - 1].pop_back();
      packs.push_back({moved});
    }
  }

  static plan lay_out(const problem& prob, std::vector<std::vector<std::int32_t>>& packs,
                      std::size_t dp) {
    const std::int32_t cp = prob.parallel.static_cp;
    plan out{prob.parallel.ranks, prob.limits.max_tokens_per_rank, prob.padding, {}};
    for (std::size_t i = 0; i < packs.size(); ++i) {
      if (i % dp == 0) out.micro_batches.emplace_back();
      const auto lane = static_cast<std::int32_t>(i % dp);
      out.micro_batches.back().packs.push_back({{lane * cp, cp}, std::move(packs[i])});
    }
    return out;
  }
};

}  // namespace v0
}  // namespace dyncp
