// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Padded tokens of every rank in every micro-batch, shape (M, ranks), by value of the functor
/// `shard(tokens, c)`. Requires valid rank ranges and sequence indices.
template <class T, class Shard>
[[nodiscard]] std::vector<T> tokens_by_rank(const plan& p, const std::vector<sequence>& batch,
                                            Shard shard) {
  const auto ranks = static_cast<std::size_t>(p.num_ranks);
  std::vector<T> tokens(ranks * p.micro_batches.size(), T{});
  for (std::size_t j = 0; j < p.micro_batches.size(); ++j) {
    for (const pack& pk : p.micro_batches[j].packs) {
      const T held = shard(pack_load(pk, batch, p.padding).tokens, pk.ranks.size);
      for (std::int32_t r = pk.ranks.begin; r < pk.ranks.end(); ++r) {
        tokens[j * ranks + static_cast<std::size_t>(r)] = held;
      }
    }
  }
  return tokens;
}

/// The most that one rank holds at once on `stage`, from per-micro-batch holdings (M, ranks):
/// a forward adds a chunk's share, its backward frees it. A sliding window, not p * the largest,
/// since micro-batches differ. The result counts chunks: divide by pipe.chunks for tokens.
/// Complexity: O(M * chunks * ranks).
template <class T>
[[nodiscard]] T peak_inflight(const std::vector<T>& held, std::int32_t num_ranks, pipeline pipe,
                              std::int32_t stage) {
  const auto ranks = static_cast<std::size_t>(num_ranks);
  const auto micro_batches = static_cast<std::int32_t>(held.size() / ranks);
  std::vector<T> now(ranks, T{});
  T peak{};
  for (const operation op : stage_order(pipe, stage, micro_batches)) {
    const T* row = held.data() + static_cast<std::size_t>(op.micro_batch) * ranks;
    for (std::size_t r = 0; r < ranks; ++r) {
      now[r] = op.backward ? now[r] - row[r] : now[r] + row[r];
      peak = std::max(peak, now[r]);
    }
  }
  return peak;
}

/// Largest padded tokens per rank in flight on stage 0, where 1F1B holds most: ceil per rank.
[[nodiscard]] inline std::int64_t peak_inflight_tokens(const plan& p,
                                                       const std::vector<sequence>& batch,
                                                       pipeline pipe) {
  const auto held = tokens_by_rank<std::int64_t>(
      p, batch, [](std::int64_t tokens, std::int32_t c) { return ceil_div(tokens, c); });
  if (held.empty()) return 0;
  return ceil_div(peak_inflight(held, p.num_ranks, pipe, 0), pipe.chunks);
}

}  // namespace v0
}  // namespace dyncp
