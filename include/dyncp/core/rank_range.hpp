// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// The ranks begin, begin + 1, ..., begin + size - 1 of the DPxCP domain: a CP group.
struct rank_range {
  std::int32_t begin = 0;
  std::int32_t size = 0;

  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t end() const noexcept {
    return begin + size;
  }
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr bool contains(std::int32_t rank) const noexcept {
    return rank >= begin && rank < end();
  }
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr bool overlaps(rank_range other) const noexcept {
    return begin < other.end() && other.begin < end();
  }
  friend constexpr bool operator==(rank_range, rank_range) = default;
};

}  // namespace v0
}  // namespace dyncp
