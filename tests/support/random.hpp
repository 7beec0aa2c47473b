// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>

namespace dyncp_test {

/// Random numbers that are the same on every platform (SplitMix64); `std::` distributions are not.
class random {
 public:
  explicit random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// Uniform in low..high, both included; the bias of the remainder does not matter to tests.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const std::uint64_t width = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    return low + static_cast<std::int64_t>(width == UINT64_MAX ? next() : next() % (width + 1));
  }
  /// Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  bool chance(double p) { return unit() < p; }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }

 private:
  std::uint64_t state_;
};

/// The seed of a property test: DYNCP_TEST_SEED if set. Print it by `INFO("seed " << seed)`.
inline std::uint64_t seed_or(std::uint64_t standard) {
  const char* text = std::getenv("DYNCP_TEST_SEED");
  return text == nullptr ? standard : std::strtoull(text, nullptr, 0);
}

/// The number of rounds of a property test: DYNCP_TEST_COUNT if set.
inline std::int64_t count_or(std::int64_t standard) {
  const char* text = std::getenv("DYNCP_TEST_COUNT");
  return text == nullptr ? standard : std::strtoll(text, nullptr, 0);
}

}  // namespace dyncp_test
