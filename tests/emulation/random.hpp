// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dyncp_emulation {

/// SplitMix64: one per run, so that a seed replays everything.
class random_source {
 public:
  explicit random_source(std::uint64_t seed = 1) : state_(seed) {}

  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// Uniform in 0..n-1.
  std::uint32_t below(std::uint32_t n) noexcept {
    return static_cast<std::uint32_t>((next() >> 32) * n >> 32);
  }

 private:
  std::uint64_t state_;
};

}  // namespace dyncp_emulation
