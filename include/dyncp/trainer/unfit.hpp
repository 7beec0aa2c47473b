// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/padding.hpp>
#include <dyncp/problem/limits.hpp>
#include <dyncp/problem/parallel_spec.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/problem/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Which sequences of a batch no plan can hold, (sequences): shorter than a token, too long for a
/// pack, or too many padded tokens for every allowed CP group. Sequences that share an atom stay or
/// go together. Of `base` everything but its sequences counts.
///
/// What is not marked may still be infeasible together: under a fixed number of micro-batches, say.
/// Complexity: O(n log n + n * sizes).
[[nodiscard]] inline std::vector<bool> unfit_sequences(const problem& base,
                                                       std::span<const sequence> batch) {
  const std::vector<std::int32_t> sizes = allowed_cp_sizes(base.parallel);
  const auto fit = [&](std::span<const std::size_t> members) {
    for (const std::size_t i : members) {
      if (batch[i].length < 1 || batch[i].length > max_pack_tokens) return false;
    }
    return std::any_of(sizes.begin(), sizes.end(), [&](std::int32_t c) {
      std::int64_t tokens = 0;
      for (const std::size_t i : members) {
        tokens += padded_length(batch[i].length, alignment(base.padding, c));
      }
      return padded_pack_tokens(base.padding, c, tokens) <= pack_capacity(base, c);
    });
  };
  std::vector<bool> unfit(batch.size(), false);
  std::map<std::int64_t, std::vector<std::size_t>> atoms;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].atom >= 0) {
      atoms[batch[i].atom].push_back(i);
    } else {
      unfit[i] = !fit({&i, 1});
    }
  }
  for (const auto& [atom, members] : atoms) {
    if (fit(members)) continue;
    for (const std::size_t i : members) unfit[i] = true;
  }
  return unfit;
}

}  // namespace v0
}  // namespace dyncp
