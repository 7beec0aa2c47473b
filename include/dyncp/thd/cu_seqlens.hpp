// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Prefix sums of the lengths of a pack, in tokens of the whole pack, never of one rank's share.
///
/// `real` counts the tokens of the samples, `padded` the rows that they occupy. Neither can be
/// had from the other; kernels and rolls that mixed the two leaked tokens between sequences.
struct cu_seqlens {
  std::vector<std::int32_t> real;    // (sequences + 1)
  std::vector<std::int32_t> padded;  // (sequences + 1)

  friend bool operator==(const cu_seqlens&, const cu_seqlens&) = default;
};

/// The prefix sums of `lengths`, each first rounded up to a multiple of `multiple`.
///
/// Requires multiple >= 1. Zero lengths are legal: they mark places that a pack does not use.
/// Errors: invalid_length for a negative length, overflow when the sum leaves int32.
/// Complexity: linear.
[[nodiscard]] inline result<std::vector<std::int32_t>> prefix_sums(
    std::span<const std::int64_t> lengths, std::int64_t multiple = 1) {
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  if (multiple < 1) {
    return error{errc::invalid_argument,
                 "lengths cannot be padded to a multiple of " + std::to_string(multiple), multiple,
                 1, "use a multiple of 1 or more"};
  }
  std::vector<std::int32_t> sums;
  sums.reserve(lengths.size() + 1);
  sums.push_back(0);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t length = lengths[i];
    if (length < 0) {
      return error{
          errc::invalid_length,
          "sequence " + std::to_string(i) + " of the pack has length " + std::to_string(length),
          length, 0, "remove it from the batch"};
    }
    // Compared before rounding up: a length near 2^63 must not overflow on its way to the check.
    if (length > limit || padded_length(length, multiple) > limit - total) {
      return error{errc::overflow,
                   "the pack exceeds 2147483647 tokens at sequence " + std::to_string(i) +
                       " of length " + std::to_string(length),
                   length, limit, "put fewer tokens in a pack: cu_seqlens are 32-bit"};
    }
    total += padded_length(length, multiple);
    sums.push_back(static_cast<std::int32_t>(total));
  }
  return sums;
}

/// Real and padded prefix sums of a pack whose sequences are padded to a multiple of `multiple`.
[[nodiscard]] inline result<cu_seqlens> make_cu_seqlens(std::span<const std::int64_t> lengths,
                                                        std::int64_t multiple) {
  auto padded = prefix_sums(lengths, multiple);
  if (!padded) return std::move(padded).error();
  auto real = prefix_sums(lengths);
  if (!real) return std::move(real).error();
  return cu_seqlens{std::move(*real), std::move(*padded)};
}

/// The longest sequence of prefix sums; 0 for an empty pack.
[[nodiscard]] constexpr std::int32_t max_length(std::span<const std::int32_t> cu) noexcept {
  std::int32_t longest = 0;
  for (std::size_t i = 1; i < cu.size(); ++i) {
    if (cu[i] - cu[i - 1] > longest) longest = cu[i] - cu[i - 1];
  }
  return longest;
}

/// The sequence s with cu[s] <= token < cu[s + 1], or `sequences` for tokens behind the last one.
///
/// Entries that repeat (sequences of length 0) are never the answer. `cu` has (sequences + 1)
/// entries. Requires token >= 0. Complexity: logarithmic.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t sequence_at(const std::int32_t* cu,
                                                                   std::int32_t sequences,
                                                                   std::int32_t token) noexcept {
  std::int32_t low = 0;               // cu[low] <= token
  std::int32_t high = sequences + 1;  // token < cu[high], or the end
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (cu[middle] <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace v0
}  // namespace dyncp
