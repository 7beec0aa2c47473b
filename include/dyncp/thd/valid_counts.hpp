// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Tokens of one sequence on one rank, without padding. `back` is 0 outside the zigzag layout.
struct half_counts {
  std::int32_t front = 0;
  std::int32_t back = 0;

  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t total() const noexcept {
    return front + back;
  }
  friend constexpr bool operator==(const half_counts&, const half_counts&) = default;
};

/// Tokens of sequence `s` on `rank`. Requires s < sequences, rank < cp. Complexity: constant.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr half_counts valid_count(const pack_view& pack,
                                                                  std::int32_t s,
                                                                  std::int32_t rank) noexcept {
  const slot rows = slot_of(pack, s, rank);
  return {rows.front.valid, rows.back.valid};
}

/// Tokens of each sequence on `rank`, (sequences).
[[nodiscard]] inline std::vector<half_counts> valid_counts(const pack_view& pack,
                                                           std::int32_t rank) {
  std::vector<half_counts> counts(static_cast<std::size_t>(pack.sequences));
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    counts[static_cast<std::size_t>(s)] = valid_count(pack, s, rank);
  }
  return counts;
}

/// Tokens of all sequences on `rank`; zero is legal. The sum over the ranks is real_tokens().
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t valid_tokens(const pack_view& pack,
                                                                    std::int32_t rank) noexcept {
  std::int32_t sum = 0;
  for (std::int32_t s = 0; s < pack.sequences; ++s) sum += valid_count(pack, s, rank).total();
  return sum;
}

}  // namespace v0
}  // namespace dyncp
