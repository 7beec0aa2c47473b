// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// The arithmetic of one sequence in the zigzag layout.
///
/// A sequence padded to P tokens is cut into 2*cp chunks of C = P / (2*cp) tokens. Rank r holds
/// chunk r (its front) and chunk 2*cp-1-r (its back), one behind the other, so that under a causal
/// mask every rank attends to the same number of pairs. On one rank the front is the whole
/// sequence and the back is empty. Requires P % (2*cp) == 0 for cp > 1.
namespace zigzag {

/// C: tokens of a chunk.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t chunk_tokens(std::int32_t padded,
                                                                    std::int32_t cp) noexcept {
  return cp == 1 ? padded : padded / cp / 2;
}

[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t front_chunk(std::int32_t rank) noexcept {
  return rank;
}

[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t back_chunk(std::int32_t rank,
                                                                  std::int32_t cp) noexcept {
  return 2 * cp - 1 - rank;
}

[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t owner_of_chunk(std::int32_t chunk,
                                                                      std::int32_t cp) noexcept {
  return chunk < cp ? chunk : 2 * cp - 1 - chunk;
}

}  // namespace zigzag
}  // namespace v0
}  // namespace dyncp
