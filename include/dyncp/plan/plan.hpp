// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/padding.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/problem/sequence.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Sequences concatenated in THD layout on one CP group, in one micro-batch.
struct pack {
  rank_range ranks;                     ///< the CP group
  std::vector<std::int32_t> sequences;  ///< indices into the batch, in THD order

  friend bool operator==(const pack&, const pack&) = default;
};

/// The packs of one micro-batch, ordered by first rank. Ranks in no pack are idle.
struct micro_batch {
  std::vector<pack> packs;

  friend bool operator==(const micro_batch&, const micro_batch&) = default;
};

/// The ordered micro-batches of one global batch; all ranks run all of them, in this order.
struct plan {
  std::int32_t num_ranks = 0;
  std::int64_t max_tokens_per_rank = 0;
  padding_rule padding;
  std::vector<micro_batch> micro_batches;

  [[nodiscard]] std::int32_t num_micro_batches() const noexcept {
    return static_cast<std::int32_t>(micro_batches.size());
  }
  friend bool operator==(const plan&, const plan&) = default;
};

/// Padded load of a pack, its tail included. Requires valid indices and a fit in int32 tokens.
[[nodiscard]] inline load pack_load(const pack& pk, const std::vector<sequence>& batch,
                                    const padding_rule& rule) noexcept {
  const std::int64_t align = alignment(rule, pk.ranks.size);
  load sum;
  for (std::int32_t i : pk.sequences) {
    sum += sequence_load(batch[static_cast<std::size_t>(i)].length, align);
  }
  sum.tokens = padded_pack_tokens(rule, pk.ranks.size, sum.tokens);
  return sum;
}

}  // namespace v0
}  // namespace dyncp
