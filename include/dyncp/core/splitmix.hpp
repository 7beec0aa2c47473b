// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// SplitMix64 (Steele, Lea, Flood 2014): a stream of 64-bit numbers that is the same on every
/// platform, which `std::` distributions are not. Not for cryptography.
class splitmix {
 public:
  DYNCP_HOST_DEVICE explicit constexpr splitmix(std::uint64_t seed) noexcept : state_(seed) {}

  DYNCP_HOST_DEVICE constexpr std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, 1), in steps of 2^-53.
  DYNCP_HOST_DEVICE constexpr double unit() noexcept {
    return static_cast<double>(next() >> 11) * 0x1.0p-53;
  }
  /// Uniform in [0, n) for 1 <= n <= 2^31, with a bias below 2^-32.
  DYNCP_HOST_DEVICE constexpr std::int32_t below(std::int32_t n) noexcept {
    return static_cast<std::int32_t>(((next() >> 32) * static_cast<std::uint64_t>(n)) >> 32);
  }

 private:
  std::uint64_t state_;
};

}  // namespace v0
}  // namespace dyncp
