// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

// Messages of int64 words: numbers and texts in, and out again with every read checked.

namespace detail {

inline void put_text(std::vector<std::int64_t>& words, const std::string& text) {
  for (std::size_t i = 0; i < text.size(); i += 8) {
    std::uint64_t word = 0;
    for (std::size_t j = i; j < text.size() && j < i + 8; ++j) {
      word |= static_cast<std::uint64_t>(static_cast<unsigned char>(text[j])) << (8 * (j - i));
    }
    words.push_back(std::bit_cast<std::int64_t>(word));
  }
}

[[nodiscard]] inline std::string get_text(std::span<const std::int64_t> words, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto word = std::bit_cast<std::uint64_t>(words[i / 8]);
    text.push_back(static_cast<char>(static_cast<unsigned char>(word >> (8 * (i % 8)) & 0xff)));
  }
  return text;
}

inline void put_int128(std::vector<std::int64_t>& words, int128 value) {
  words.push_back(static_cast<std::int64_t>(static_cast<std::uint64_t>(value)));
  words.push_back(static_cast<std::int64_t>(value >> 64));
}

[[nodiscard]] inline int128 get_int128(std::int64_t low, std::int64_t high) noexcept {
  return int128{high} * (int128{1} << 64) + static_cast<std::uint64_t>(low);
}

/// Walks the words of a message; every read is checked, errors name the word.
class message_reader {
 public:
  explicit message_reader(std::span<const std::int64_t> words) : words_(words) {}

  [[nodiscard]] std::size_t at() const noexcept { return at_; }
  [[nodiscard]] std::int64_t left() const noexcept {
    return static_cast<std::int64_t>(words_.size() - at_);
  }

  [[nodiscard]] error fail(const std::string& what, std::int64_t value,
                           std::int64_t limit) const {
    return error{errc::parse_error, "step message, word " + std::to_string(at_ == 0 ? 0 : at_ - 1) +
                 ": " + what + " is " + std::to_string(value), value, limit,
                 "send the words of `encode` whole, from a program of the same version"};
  }

  /// The next word, in low .. high.
  [[nodiscard]] result<std::int64_t> word(const char* what, std::int64_t low, std::int64_t high) {
    if (left() < 1) {
      return error{errc::parse_error, "step message ends at word " + std::to_string(at_) +
                   ", before " + what, static_cast<std::int64_t>(words_.size()),
                   static_cast<std::int64_t>(at_) + 1, "send the words of `encode` whole"};
    }
    const std::int64_t value = words_[at_++];
    if (value < low || value > high) return fail(what, value, value < low ? low : high);
    return value;
  }
  [[nodiscard]] result<std::int64_t> any(const char* what) {
    return word(what, std::numeric_limits<std::int64_t>::min(),
                std::numeric_limits<std::int64_t>::max());
  }
  /// The next `count` words.
  [[nodiscard]] result<std::span<const std::int64_t>> words(const char* what, std::int64_t count) {
    if (count > left()) {
      return error{errc::parse_error, "step message ends inside " + std::string(what), left(),
                   count, "send the words of `encode` whole"};
    }
    const auto part = words_.subspan(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return part;
  }

 private:
  std::span<const std::int64_t> words_;
  std::size_t at_ = 0;
};

}  // namespace detail

}  // namespace v0
}  // namespace dyncp
