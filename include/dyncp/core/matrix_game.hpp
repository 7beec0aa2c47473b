// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The value of a zero-sum game whose rows arrive one by one: the least v for which some mix z of
/// the columns (z >= 0, sum 1) has sum_j z_j * row_j <= v for every row so far. With paths as rows
/// and shares of work as columns, that is how evenly divisible work can be spread.
///
/// `value()` never exceeds the value of the game with more rows, so it is a lower bound at any
/// time. It is at most 1e-6 below the value of the rows so far, up to rounding.
///
/// Method: 1 is added to all entries, so that v > 0. With u = z/v the game is the linear program
/// max sum u_j, row . u <= 1, u >= 0; a new row cuts the optimum off, and dual simplex steps repair
/// it. The dictionary is dense: lines are basic variables, columns nonbasic ones.
/// O(lines * columns) a step. One object serves one thread.
class matrix_game {
 public:
  /// Requires columns >= 1.
  explicit matrix_game(std::size_t columns) : columns_(columns) { clear(); }

  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }

  /// Adds a row and moves to the optimum of all rows. Requires `row.size() == columns()` and
  /// entries >= 0, of the order of 1 or less (scale the game).
  void add(std::span<const double> row) {
    rows_.emplace_back(row.begin(), row.end());
    play(rows_.size() - 1);
    if (drifted()) rebuild();
  }

  /// 0 before the first row.
  [[nodiscard]] double value() const noexcept { return total_ > 0 ? 1.0 / total_ - shift : 0.0; }

  /// The mix that attains `value()` against the rows so far.
  [[nodiscard]] std::vector<double> mix() const {
    std::vector<double> z(columns_, 0.0);
    for (std::size_t j = 0; j < columns_; ++j) {
      if (where_[j].basic) z[j] = std::max(0.0, lines_[where_[j].index].value) / total_;
    }
    return z;
  }

  /// The rows, by the order in which they were added, that hold the value where it is: the same
  /// value is that of the game of these rows alone. At most `columns()`.
  [[nodiscard]] std::vector<std::size_t> binding() const {
    std::vector<std::size_t> rows;
    for (const std::size_t variable : nonbasic_) {
      if (variable >= columns_) rows.push_back(variable - columns_);
    }
    std::sort(rows.begin(), rows.end());
    return rows;
  }

 private:
  static constexpr double tiny = 1e-11;
  static constexpr double shift = 1.0;

  // basic = value - sum_k coefficient[k] * nonbasic[k]. Variables below `columns_` are the u_j,
  // the others are slacks of rows.
  struct line {
    std::size_t variable = 0;
    double value = 0;
    std::vector<double> coefficient;
  };
  struct place {
    bool basic = false;
    std::size_t index = 0;  // of its line, or its column
  };

  void clear() {
    total_ = 0;
    lines_.clear();
    gain_.assign(columns_, 1.0);
    nonbasic_.resize(columns_);
    where_.resize(columns_);
    for (std::size_t j = 0; j < columns_; ++j) {
      nonbasic_[j] = j;
      where_[j] = {false, j};
    }
  }

  void play(std::size_t index) {
    const std::vector<double>& row = rows_[index];
    line fresh;
    fresh.variable = columns_ + index;
    fresh.value = 1.0;
    fresh.coefficient.assign(columns_, 0.0);
    for (std::size_t j = 0; j < columns_; ++j) {
      const place p = where_[j];
      // A fixed pattern below 1e-6 breaks ties, which can make dual steps go round in circles. It
      // lowers entries only, so that the value remains a bound.
      const double entry = row[j] + shift - 1e-6 * uneven(index * columns_ + j);
      if (!p.basic) {
        fresh.coefficient[p.index] += entry;
        continue;
      }
      const line& other = lines_[p.index];
      fresh.value -= entry * other.value;
      for (std::size_t k = 0; k < columns_; ++k) {
        fresh.coefficient[k] -= entry * other.coefficient[k];
      }
    }
    lines_.push_back(std::move(fresh));
    if (total_ == 0) {  // the best column against one row; from then on only dual steps
      const std::vector<double>& entries = lines_.front().coefficient;
      const auto least = std::min_element(entries.begin(), entries.end());
      pivot(0, static_cast<std::size_t>(least - entries.begin()));
    }
    repair();
    if (lines_.size() > 6 * columns_ + 64) forget_slack();
  }

  // Steps add up errors of rounding: the sum of the u_j then differs from what it was counted to.
  [[nodiscard]] bool drifted() const {
    double sum = 0;
    for (const place p : where_) {
      if (p.basic) sum += lines_[p.index].value;
    }
    return std::abs(sum - total_) > 1e-6 * total_;
  }

  // The same game from the rows that bind it, without the errors of the way here.
  void rebuild() {
    const std::vector<std::size_t> rows = binding();
    clear();
    for (const std::size_t row : rows) play(row);
  }

  // total = total_ + sum_k gain_[k] * nonbasic[k]; optimal when no gain is positive.
  void pivot(std::size_t out, std::size_t in) {
    line& leaving = lines_[out];
    const double scale = 1.0 / leaving.coefficient[in];
    std::swap(leaving.variable, nonbasic_[in]);
    leaving.value *= scale;
    for (double& a : leaving.coefficient) a *= scale;
    leaving.coefficient[in] = scale;
    for (line& l : lines_) {
      if (&l == &leaving || l.coefficient[in] == 0.0) continue;
      const double factor = l.coefficient[in];
      l.value -= factor * leaving.value;
      l.coefficient[in] = 0.0;
      for (std::size_t k = 0; k < columns_; ++k) {
        l.coefficient[k] -= factor * leaving.coefficient[k];
      }
    }
    const double factor = gain_[in];
    total_ += factor * leaving.value;
    gain_[in] = 0.0;
    for (std::size_t k = 0; k < columns_; ++k) gain_[k] -= factor * leaving.coefficient[k];
    remember(leaving.variable, {true, out});
    remember(nonbasic_[in], {false, in});
  }

  // A hash of i in [0, 1).
  [[nodiscard]] static double uneven(std::size_t i) {
    const std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ULL;
    return static_cast<double>((x ^ (x >> 29)) >> 11) * 0x1p-53;
  }

  void remember(std::size_t variable, place p) {
    if (variable < columns_) where_[variable] = p;
  }

  // Dual simplex: the most violated line leaves. The number of steps is bounded, whatever ties do.
  void repair() {
    for (std::size_t step = 0; step < 50 * columns_; ++step) {
      std::size_t out = 0;
      for (std::size_t i = 1; i < lines_.size(); ++i) {
        if (lines_[i].value < lines_[out].value) out = i;
      }
      if (lines_[out].value >= -tiny) return;
      const std::size_t in = entering(lines_[out]);
      if (in == columns_) return;
      pivot(out, in);
    }
  }

  // The column that keeps all gains <= 0; among equals the one with the largest coefficient, as
  // dividing by small ones is what spoils a dictionary.
  [[nodiscard]] std::size_t entering(const line& out) const {
    double least = std::numeric_limits<double>::max();
    std::size_t in = columns_;
    for (std::size_t k = 0; k < columns_; ++k) {
      const double a = out.coefficient[k];
      if (a >= -1e-9) continue;
      const double ratio = std::max(0.0, gain_[k] / a);  // rounding may leave a gain above 0
      const bool equal = in != columns_ && std::abs(ratio - least) <= 1e-9 * least;
      if (equal ? a < out.coefficient[in] : ratio < least) {
        in = k;
        least = std::min(least, ratio);
      }
    }
    return in;
  }

  // Slacks that are far from zero: their rows bind nothing now, and come back if they ever do.
  void forget_slack() {
    std::erase_if(lines_, [&](const line& l) { return l.variable >= columns_ && l.value > 1e-3; });
    for (std::size_t i = 0; i < lines_.size(); ++i) remember(lines_[i].variable, {true, i});
  }

  std::size_t columns_;
  std::vector<std::vector<double>> rows_;
  double total_ = 0;
  std::vector<double> gain_;
  std::vector<std::size_t> nonbasic_;
  std::vector<place> where_;  // of every u_j
  std::vector<line> lines_;
};

}  // namespace v0
}  // namespace dyncp
