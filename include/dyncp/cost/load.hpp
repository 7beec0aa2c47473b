// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/padding.hpp>
#include <dyncp/core/ticks.hpp>

#include <cstdint>
#include <string_view>

namespace dyncp {
inline namespace v0 {

/// What cost models see of a pack: additive, exact. A pack holds at most 2^31-1 padded tokens, so
/// the squares stay below 2^62.
struct load {
  std::int64_t tokens = 0;   ///< sum of padded lengths
  std::int64_t squares = 0;  ///< sum of squared padded lengths
  std::int64_t count = 0;    ///< sequences

  constexpr load& operator+=(const load& other) noexcept {
    tokens += other.tokens;
    squares += other.squares;
    count += other.count;
    return *this;
  }
  constexpr load& operator-=(const load& other) noexcept {
    tokens -= other.tokens;
    squares -= other.squares;
    count -= other.count;
    return *this;
  }
  friend constexpr load operator+(load a, const load& b) noexcept { return a += b; }
  friend constexpr load operator-(load a, const load& b) noexcept { return a -= b; }
  friend constexpr bool operator==(const load&, const load&) = default;
};

/// Load of one sequence on a group with alignment `align`. Requires a padded length < 2^31.
[[nodiscard]] constexpr load sequence_load(std::int64_t length, std::int64_t align) noexcept {
  const std::int64_t padded = padded_length(length, align);
  return {padded, padded * padded, 1};
}

/// The slowest link that a group's ring crosses.
enum class link : std::int8_t { nvlink, network };

[[nodiscard]] constexpr std::string_view to_string(link k) noexcept {
  return k == link::nvlink ? "nvlink" : "network";
}

/// Time of one operation pair of a pack on one (virtual) stage, the same on all its ranks.
struct op_cost {
  ticks forward = 0;
  ticks backward = 0;
  ticks transfer = 0;  ///< activations (or their gradients) to the next stage

  [[nodiscard]] constexpr ticks total() const noexcept { return forward + backward; }
  friend constexpr bool operator==(const op_cost&, const op_cost&) = default;
};

}  // namespace v0
}  // namespace dyncp
