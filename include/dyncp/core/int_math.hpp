// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>

#include <bit>
#include <cstdint>
#include <numeric>

namespace dyncp {
inline namespace v0 {

/// Exact sums over a batch: 2^22 sequences of 2^40 tokens have squares up to 2^102.
__extension__ using int128 = __int128;

/// ceil(a / b) for a >= 0, b > 0.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int64_t ceil_div(std::int64_t a,
                                                                std::int64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The least multiple of `m` that is >= `a`, for a >= 0, m > 0.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int64_t round_up(std::int64_t a,
                                                                std::int64_t m) noexcept {
  return ceil_div(a, m) * m;
}

[[nodiscard]] DYNCP_HOST_DEVICE constexpr bool is_power_of_two(std::int64_t a) noexcept {
  return a > 0 && (a & (a - 1)) == 0;
}

/// The least power of two >= a, for 1 <= a <= 2^62.
[[nodiscard]] constexpr std::int64_t next_power_of_two(std::int64_t a) noexcept {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(a)));
}

/// Least common multiple for positive arguments; the caller keeps them small.
[[nodiscard]] constexpr std::int64_t least_common_multiple(std::int64_t a,
                                                           std::int64_t b) noexcept {
  return a / std::gcd(a, b) * b;
}

}  // namespace v0
}  // namespace dyncp
