// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// IEEE 754 half precision: 5 bits of exponent, 10 of mantissa. A storage type; arithmetic is done
/// in float. Bit-compatible with the types of CUDA and PyTorch.
struct float16 {
  std::uint16_t bits = 0;

  constexpr float16() = default;

  /// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN, values from 65520 on become
  /// infinite.
  DYNCP_HOST_DEVICE constexpr explicit float16(float value) noexcept {
    const auto word = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t sign = (word >> 16) & 0x8000U;
    const std::uint32_t magnitude = word & 0x7fffffffU;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000U) {
      half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
    } else if (magnitude >= 0x477ff000U) {  // 65520: halfway to what would follow the largest
      half = 0x7c00U;
    } else if (magnitude >= 0x38800000U) {  // 2^-14: normal
      half = round((magnitude - 0x38000000U), 13);
    } else if (magnitude > 0x33000000U) {  // 2^-25, half of the smallest, rounds to zero
      const std::uint32_t exponent = magnitude >> 23;  // 102..112
      half = round((magnitude & 0x7fffffU) | 0x800000U, 126 - exponent);
    }
    bits = static_cast<std::uint16_t>(sign | half);
  }
  DYNCP_HOST_DEVICE constexpr explicit operator float() const noexcept {
    const std::uint32_t sign = (bits & 0x8000U) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fU;
    const std::uint32_t mantissa = bits & 0x3ffU;
    if (exponent == 0) {
      const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24F;
      return sign != 0 ? -magnitude : magnitude;
    }
    const std::uint32_t word = exponent == 31 ? 0x7f800000U | mantissa << 13
                                              : (exponent + 112) << 23 | mantissa << 13;
    return __builtin_bit_cast(float, sign | word);
  }

 private:
  /// word / 2^shift, to nearest, ties to even.
  DYNCP_HOST_DEVICE static constexpr std::uint32_t round(std::uint32_t word,
                                                         std::uint32_t shift) noexcept {
    const std::uint32_t half = 1U << (shift - 1);
    return (word + half - 1 + ((word >> shift) & 1U)) >> shift;
  }
};
static_assert(sizeof(float16) == 2);

}  // namespace v0
}  // namespace dyncp
