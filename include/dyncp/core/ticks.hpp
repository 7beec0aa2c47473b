// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// Time inside packing, search and simulation: units of 2^-40 s, about 0.9 ps.
///
/// A cost is rounded to ticks once; from then on only integers are added and compared, so plans
/// are equal byte for byte whatever the compiler, the optimisation level and the thread count.
using ticks = std::int64_t;

inline constexpr ticks ticks_per_second = ticks{1} << 40;

/// A cost above 2^20 s (12 days) for one operation is refused: sums would leave 63 bits.
inline constexpr double max_operation_s = 1048576.0;

/// Rounds to the nearest tick, halves up. Requires 0 <= seconds <= max_operation_s.
[[nodiscard]] constexpr ticks to_ticks(double seconds) noexcept {
  // The scaling is by a power of two and the sum stays below 2^61, so both are exact or rounded
  // once, on every platform.
  return static_cast<ticks>(seconds * 1099511627776.0 + 0.5);
}

[[nodiscard]] constexpr double to_seconds(ticks t) noexcept {
  return static_cast<double>(t) * (1.0 / 1099511627776.0);
}

}  // namespace v0
}  // namespace dyncp
