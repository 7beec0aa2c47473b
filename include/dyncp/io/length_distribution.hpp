// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/io/corpora.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// How lengths are spread: shares of sequences and of tokens, quantiles, exact sums.
///
/// Immutable after construction; const members are safe to call concurrently.
class length_distribution {
 public:
  /// Lengths of 0 or more, in any order; O(n log n).
  explicit length_distribution(std::vector<std::int64_t> lengths) : sorted_(std::move(lengths)) {
    std::sort(sorted_.begin(), sorted_.end());
    tokens_before_.reserve(sorted_.size() + 1);
    tokens_before_.push_back(0);
    for (const std::int64_t length : sorted_) {
      tokens_before_.push_back(tokens_before_.back() + length);
      squares_ += int128{length} * length;
    }
  }

  [[nodiscard]] std::int64_t count() const noexcept {
    return static_cast<std::int64_t>(sorted_.size());
  }
  [[nodiscard]] int128 tokens() const noexcept { return tokens_before_.back(); }
  [[nodiscard]] int128 squares() const noexcept { return squares_; }
  [[nodiscard]] std::int64_t longest() const noexcept {
    return sorted_.empty() ? 0 : sorted_.back();
  }
  [[nodiscard]] double mean() const noexcept {
    return sorted_.empty() ? 0.0 : static_cast<double>(tokens()) / static_cast<double>(count());
  }
  /// Squares over tokens: the length at which an average token finds itself.
  [[nodiscard]] double effective_length() const noexcept {
    return tokens() > 0 ? static_cast<double>(squares_) / static_cast<double>(tokens()) : 0.0;
  }
  /// The least length that a share q of the sequences does not exceed; 0 < q <= 1.
  [[nodiscard]] std::int64_t quantile(double q) const noexcept {
    if (sorted_.empty()) return 0;
    const double place = std::ceil(q * static_cast<double>(sorted_.size())) - 1.0;
    const double last = static_cast<double>(sorted_.size()) - 1.0;
    return sorted_[static_cast<std::size_t>(std::clamp(place, 0.0, last))];
  }
  /// Share of the sequences that have at most so many tokens.
  [[nodiscard]] double sequences_up_to(std::int64_t length) const noexcept {
    if (sorted_.empty()) return 0.0;
    return static_cast<double>(number_up_to(length)) / static_cast<double>(count());
  }
  /// Share of the tokens that lie in those sequences.
  [[nodiscard]] double tokens_up_to(std::int64_t length) const noexcept {
    if (tokens() == 0) return 0.0;
    return static_cast<double>(tokens_before_[number_up_to(length)]) /
           static_cast<double>(tokens());
  }

 private:
  [[nodiscard]] std::size_t number_up_to(std::int64_t length) const noexcept {
    return static_cast<std::size_t>(std::upper_bound(sorted_.begin(), sorted_.end(), length) -
                                    sorted_.begin());
  }

  std::vector<std::int64_t> sorted_;
  std::vector<int128> tokens_before_;  // (n+1): tokens of the sequences before the i-th
  int128 squares_ = 0;
};

/// The largest distances of a distribution from what was published of a corpus.
struct distance_to_points {
  double sequences = 0;  ///< largest difference of the shares of sequences
  double tokens = 0;     ///< largest difference of the shares of tokens
  std::size_t compared = 0;
};

[[nodiscard]] inline distance_to_points distance(const length_distribution& lengths,
                                                 const corpus& to) {
  distance_to_points out;
  for (const published_point& point : to.points) {
    if (point.sequences >= 0) {
      out.sequences = std::max(
          out.sequences, std::abs(lengths.sequences_up_to(point.at_most) - point.sequences));
      ++out.compared;
    }
    if (point.tokens >= 0) {
      out.tokens =
          std::max(out.tokens, std::abs(lengths.tokens_up_to(point.at_most) - point.tokens));
      ++out.compared;
    }
  }
  return out;
}

}  // namespace v0
}  // namespace dyncp
