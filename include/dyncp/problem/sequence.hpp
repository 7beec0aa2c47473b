// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The longest sequence that is read: 2^40 tokens. Sums of squares over a batch then fit int128.
inline constexpr std::int64_t max_sequence_length = std::int64_t{1} << 40;

/// One training sample: its id and length. Tokens, images and rewards stay with the caller.
struct sequence {
  std::int64_t id = 0;
  std::int64_t length = 0;  ///< tokens, 1 .. 2^40
  std::int64_t atom = -1;   ///< sequences that share an atom >= 0 stay in one pack (DPO pairs)

  friend bool operator==(const sequence&, const sequence&) = default;
};

/// The typed error for a length that no plan can hold; `name` tells whose it is.
[[nodiscard]] inline error invalid_length_error(const std::string& name, std::int64_t length) {
  if (length < 1) {
    return {errc::invalid_length, name + " has length " + std::to_string(length), length, 1,
            "lengths are 1 or more; drop empty sequences (--drop-empty)"};
  }
  return {errc::invalid_length, name + " has length " + std::to_string(length), length,
          max_sequence_length, "lengths are at most 2^40 tokens"};
}

/// Sequences with ids 0, 1, 2, ... from any input range of integral lengths or of `sequence`.
///
/// Complexity: O(n). Errors: invalid_length for the first length outside 1 .. 2^40.
template <std::ranges::input_range Range>
  requires std::convertible_to<std::ranges::range_reference_t<Range>, std::int64_t> ||
           std::convertible_to<std::ranges::range_reference_t<Range>, sequence>
[[nodiscard]] result<std::vector<sequence>> make_batch(Range&& lengths) {
  std::vector<sequence> batch;
  for (auto&& item : lengths) {
    sequence s;
    if constexpr (std::convertible_to<std::ranges::range_reference_t<Range>, std::int64_t>) {
      s.id = static_cast<std::int64_t>(batch.size());
      s.length = static_cast<std::int64_t>(item);
    } else {
      s = item;
    }
    if (s.length < 1 || s.length > max_sequence_length) {
      return invalid_length_error("sequence " + std::to_string(s.id), s.length);
    }
    batch.push_back(s);
  }
  return batch;
}

/// Exact sums over real lengths.
struct length_sums {
  int128 tokens = 0;
  int128 squares = 0;
  std::int64_t count = 0;
  std::int64_t longest = 0;
};

[[nodiscard]] inline length_sums sum_lengths(const std::vector<sequence>& batch) noexcept {
  length_sums sums;
  for (const sequence& s : batch) {
    sums.tokens += s.length;
    sums.squares += int128{s.length} * s.length;
    sums.count += 1;
    if (s.length > sums.longest) sums.longest = s.length;
  }
  return sums;
}

}  // namespace v0
}  // namespace dyncp
