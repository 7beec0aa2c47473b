// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// The upper half of a float: 8 bits of exponent, 7 of mantissa. A storage type; arithmetic is
/// done in float. Bit-compatible with the types of CUDA and PyTorch.
struct bfloat16 {
  std::uint16_t bits = 0;

  constexpr bfloat16() = default;

  /// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN, large values become infinite.
  DYNCP_HOST_DEVICE constexpr explicit bfloat16(float value) noexcept {
    const auto word = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t magnitude = word & 0x7fffffffU;
    bits = static_cast<std::uint16_t>(magnitude > 0x7f800000U
                                          ? (word >> 16) | 0x40U
                                          : (word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }
  DYNCP_HOST_DEVICE constexpr explicit operator float() const noexcept {
    return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
  }
};
static_assert(sizeof(bfloat16) == 2);

}  // namespace v0
}  // namespace dyncp
