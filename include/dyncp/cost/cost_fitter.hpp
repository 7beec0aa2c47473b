// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/fitted_cost.hpp>
#include <dyncp/cost/load.hpp>

#include <Eigen/Cholesky>
#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

enum class cost_pass : std::int32_t { forward, backward };

/// The time that one pass of a pack took on one stage. Field names are the JSON keys.
struct cost_record {
  std::int64_t tokens = 0;   ///< padded, of the pack
  std::int64_t squares = 0;  ///< of padded lengths
  std::int32_t c = 1;
  link over = link::nvlink;  ///< the slowest that the group's ring crosses
  double seconds = 0;

  friend bool operator==(const cost_record&, const cost_record&) = default;
};

struct fit_options {
  bool robust = true;           ///< outliers count less (Huber)
  std::int32_t max_folds = 64;  ///< more records than that are left out in that many groups
};

/// How well coefficients tell the records. Errors are |predicted - measured| / measured.
struct fit_quality {
  std::int64_t records = 0;
  double mean_error = 0;           ///< of the records fitted to
  double max_error = 0;
  double leave_one_out_mean = 0;   ///< each record predicted by a fit without it (or its fold)
  double leave_one_out_max = 0;
};

/// The coefficients of one pass, and how well they fit.
struct cost_fit {
  cost_coefficients coefficients;
  fit_quality quality;
};

namespace detail {

/// min |A x - b| with x >= 0 (Lawson and Hanson 1974, chapter 23), for a few columns.
/// Columns should be scaled alike. Terminates: each step lowers the residual or the set of columns.
[[nodiscard]] inline Eigen::VectorXd solve_nonnegative(const Eigen::MatrixXd& a,
                                                       const Eigen::VectorXd& b) {
  const Eigen::Index n = a.cols();
  const Eigen::MatrixXd gram = a.transpose() * a;
  const Eigen::VectorXd target = a.transpose() * b;
  Eigen::VectorXd x = Eigen::VectorXd::Zero(n);
  std::vector<bool> used(static_cast<std::size_t>(n), false);
  const double tolerance = 1e-12 * std::max(1.0, target.cwiseAbs().maxCoeff());
  const auto solve = [&] {
    std::vector<Eigen::Index> columns;
    for (Eigen::Index j = 0; j < n; ++j) {
      if (used[static_cast<std::size_t>(j)]) columns.push_back(j);
    }
    const auto m = static_cast<Eigen::Index>(columns.size());
    Eigen::MatrixXd g(m, m);
    Eigen::VectorXd t(m);
    for (Eigen::Index i = 0; i < m; ++i) {
      t(i) = target(columns[static_cast<std::size_t>(i)]);
      for (Eigen::Index j = 0; j < m; ++j) {
        g(i, j) = gram(columns[static_cast<std::size_t>(i)], columns[static_cast<std::size_t>(j)]);
      }
    }
    // Columns that say the same are told apart by nothing: a breath of ridge shares between them.
    g.diagonal().array() += 1e-12 * std::max(1.0, g.diagonal().maxCoeff());
    const Eigen::VectorXd part = g.ldlt().solve(t);
    Eigen::VectorXd out = Eigen::VectorXd::Zero(n);
    for (Eigen::Index i = 0; i < m; ++i) out(columns[static_cast<std::size_t>(i)]) = part(i);
    return out;
  };
  for (Eigen::Index step = 0; step < 10 * n + 10; ++step) {
    const Eigen::VectorXd gradient = target - gram * x;
    Eigen::Index best = -1;
    for (Eigen::Index j = 0; j < n; ++j) {
      if (used[static_cast<std::size_t>(j)] || gradient(j) <= tolerance) continue;
      if (best < 0 || gradient(j) > gradient(best)) best = j;
    }
    if (best < 0) return x;
    used[static_cast<std::size_t>(best)] = true;
    for (;;) {
      const Eigen::VectorXd z = solve();
      double most = 1;
      Eigen::Index blocking = -1;
      for (Eigen::Index j = 0; j < n; ++j) {
        if (!used[static_cast<std::size_t>(j)] || z(j) > 0) continue;
        const double share = x(j) > z(j) ? x(j) / (x(j) - z(j)) : 0.0;
        if (blocking < 0 || share < most) {
          most = share;
          blocking = j;
        }
      }
      if (blocking < 0) {
        x = z;
        break;
      }
      x += most * (z - x);
      x(blocking) = 0;
      used[static_cast<std::size_t>(blocking)] = false;
      if (blocking == best && most == 0) break;
    }
  }
  return x;
}

/// Fits coefficients to weighted records, from a start that stays where the records say nothing.
class coefficient_fit {
 public:
  static constexpr std::size_t columns = 8;

  coefficient_fit(const std::vector<cost_record>& records, const std::vector<double>& weights,
                  const cost_coefficients& start, bool robust)
      : records_(records), weights_(weights), start_(start), robust_(robust) {
    for (const cost_record& r : records_) crosses_ = crosses_ || r.c > 1;
  }

  [[nodiscard]] cost_coefficients run() const {
    if (!crosses_) return at_overlap(start_.overlap).first;
    // The overlap is the one coefficient that the time is not linear in: tried on a grid, then
    // around the best of it.
    std::pair<cost_coefficients, double> best = at_overlap(0);
    for (int i = 1; i <= 10; ++i) keep_better(best, at_overlap(i / 10.0));
    const double coarse = best.first.overlap;
    for (int i = -9; i <= 9; ++i) {
      const double overlap = coarse + i / 100.0;
      if (i != 0 && overlap >= 0 && overlap <= 1) keep_better(best, at_overlap(overlap));
    }
    return best.first;
  }

 private:
  using row = std::array<double, columns>;

  static void keep_better(std::pair<cost_coefficients, double>& best,
                          std::pair<cost_coefficients, double> other) {
    if (other.second < best.second) best = std::move(other);
  }

  [[nodiscard]] static row values_of(const cost_coefficients& k) {
    return {k.fixed_s,  k.per_token_s, k.per_square_s,       k.per_mean_length_s,
            k.hop_s[0], k.hop_s[1],    k.hop_per_token_s[0], k.hop_per_token_s[1]};
  }
  [[nodiscard]] static cost_coefficients from_values(const row& v, double overlap) {
    return {v[0], v[1], v[2], v[3], {v[4], v[5]}, {v[6], v[7]}, overlap};
  }

  /// What each coefficient is multiplied with: linear once it is known whether attention or the hop
  /// is longer (`hop_longer`).
  [[nodiscard]] static row row_of(const cost_record& r, double overlap, bool hop_longer) {
    const double c = r.c;
    const double n = static_cast<double>(r.tokens) / c;
    const double s = static_cast<double>(r.squares) / c;
    const double q = static_cast<double>(r.squares) / static_cast<double>(r.tokens);
    row out{1, n, s, q, 0, 0, 0, 0};
    if (r.c > 1) {
      const auto i = static_cast<std::size_t>(r.over);
      const double attention = hop_longer ? 1.0 - overlap * (c - 1.0) / c : 1.0;
      const double hop = (c - 1.0) * (hop_longer ? 1.0 : 1.0 - overlap);
      out[2] *= attention;
      out[3] *= attention;
      out[4 + i] = hop;
      out[6 + i] = hop * n;
    }
    return out;
  }

  [[nodiscard]] static bool is_hop_longer(const cost_coefficients& k, const cost_record& r) {
    if (r.c == 1) return false;
    const double n = static_cast<double>(r.tokens) / r.c;
    const auto i = static_cast<std::size_t>(r.over);
    const double hop = k.hop_s[i] + k.hop_per_token_s[i] * n;
    const double attention =
        k.per_square_s * static_cast<double>(r.squares) / r.c +
        k.per_mean_length_s * static_cast<double>(r.squares) / static_cast<double>(r.tokens);
    return hop > attention / r.c;
  }

  [[nodiscard]] static double predict(const cost_coefficients& k, const cost_record& r) {
    return parts_of(k, {r.tokens, r.squares, 1}, r.c, r.over).total_s();
  }

  using fit_and_loss = std::pair<cost_coefficients, double>;

  /// The fit at one overlap, and its loss.
  [[nodiscard]] fit_and_loss at_overlap(double overlap) const {
    // Which of hop and attention is longer depends on the coefficients, and these on which is
    // longer: from either end, and the better of both.
    std::vector<bool> longer(records_.size(), false);
    fit_and_loss best = settle(overlap, longer);
    if (!crosses_) return best;
    for (std::size_t i = 0; i < records_.size(); ++i) longer[i] = records_[i].c > 1;
    keep_better(best, settle(overlap, longer));
    return best;
  }

  [[nodiscard]] fit_and_loss settle(double overlap, std::vector<bool> longer) const {
    cost_coefficients k = start_;
    k.overlap = overlap;
    fit_and_loss best{k, std::numeric_limits<double>::max()};
    std::vector<double> trust(records_.size(), 1.0);
    for (int round = 0; round < 24; ++round) {
      const cost_coefficients next = solve(overlap, longer, trust);
      const double before = best.second;
      keep_better(best, {next, loss(next)});
      bool settled = round > 0 && best.second >= before * (1.0 - 1e-9);
      for (std::size_t i = 0; i < records_.size(); ++i) {
        const bool now = is_hop_longer(next, records_[i]);
        settled = settled && now == longer[i];
        longer[i] = now;
      }
      if (settled) break;
      if (robust_) trust = huber(next);
    }
    return best;
  }

  /// Coefficients that no record has a part in keep their start.
  [[nodiscard]] cost_coefficients solve(double overlap, const std::vector<bool>& longer,
                                        const std::vector<double>& trust) const {
    const auto n = static_cast<Eigen::Index>(records_.size());
    Eigen::MatrixXd a(n, static_cast<Eigen::Index>(columns));
    Eigen::VectorXd b(n);
    for (Eigen::Index i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const cost_record& r = records_[at];
      const row values = row_of(r, overlap, longer[at]);
      const double scale = std::sqrt(weights_[at] * trust[at]) / r.seconds;
      for (std::size_t j = 0; j < columns; ++j) {
        a(i, static_cast<Eigen::Index>(j)) = values[j] * scale;
      }
      b(i) = r.seconds * scale;
    }
    const row known = values_of(start_);
    std::array<double, columns> norm{};
    std::vector<Eigen::Index> free;
    for (std::size_t j = 0; j < columns; ++j) {
      norm[j] = a.col(static_cast<Eigen::Index>(j)).norm();
      if (norm[j] > 0) free.push_back(static_cast<Eigen::Index>(j));
    }
    Eigen::MatrixXd scaled(n, static_cast<Eigen::Index>(free.size()));
    for (std::size_t j = 0; j < free.size(); ++j) {
      scaled.col(static_cast<Eigen::Index>(j)) =
          a.col(free[j]) / norm[static_cast<std::size_t>(free[j])];
    }
    const Eigen::VectorXd x = solve_nonnegative(scaled, b);
    row out = known;
    for (std::size_t j = 0; j < free.size(); ++j) {
      const auto column = static_cast<std::size_t>(free[j]);
      out[column] = std::max(0.0, x(static_cast<Eigen::Index>(j))) / norm[column];
    }
    return from_values(out, overlap);
  }

  [[nodiscard]] std::vector<double> errors(const cost_coefficients& k) const {
    std::vector<double> out;
    for (const cost_record& r : records_) out.push_back(std::abs(predict(k, r) / r.seconds - 1.0));
    return out;
  }

  /// Half a percent is measured noise; 1.4826 times the median is a standard deviation.
  [[nodiscard]] static double spread(std::vector<double> e) {
    const auto middle = e.begin() + static_cast<std::ptrdiff_t>(e.size() / 2);
    std::nth_element(e.begin(), middle, e.end());
    return std::max(0.005, 1.4826 * *middle);
  }

  [[nodiscard]] std::vector<double> huber(const cost_coefficients& k) const {
    std::vector<double> e = errors(k);
    const double limit = 1.345 * spread(e);
    for (double& x : e) x = x <= limit ? 1.0 : limit / x;
    return e;
  }

  [[nodiscard]] double loss(const cost_coefficients& k) const {
    const std::vector<double> e = errors(k);
    const double limit = robust_ ? 0.05 : std::numeric_limits<double>::max();
    double sum = 0;
    for (std::size_t i = 0; i < e.size(); ++i) {
      sum += weights_[i] * (e[i] <= limit ? e[i] * e[i] : limit * (2.0 * e[i] - limit));
    }
    return sum;
  }

  const std::vector<cost_record>& records_;
  const std::vector<double>& weights_;
  const cost_coefficients& start_;
  bool robust_;
  bool crosses_ = false;
};

}  // namespace detail

/// Coefficients from records of one pass on one class of stages.
///
/// Least squares of relative errors, no coefficient negative; outliers count by Huber's weight. The
/// overlap is searched. A coefficient that no record has a part in, such as that of a link that
/// none crossed, keeps its value of `start`, which comes from `coefficients_of` or the last fit:
/// nothing that was not measured is taken for free. `weights` (records), positive; empty: all 1.
///
/// Errors: invalid_argument for fewer than two records, one that is not positive, or weights that
/// do not pair up. Deterministic. O(folds * records).
[[nodiscard]] inline result<cost_fit> fit_cost(const std::vector<cost_record>& records,
                                               const cost_coefficients& start,
                                               const fit_options& options = {},
                                               std::vector<double> weights = {}) {
  if (records.size() < 2 || (!weights.empty() && weights.size() != records.size())) {
    return error{errc::invalid_argument, std::to_string(records.size()) + " records with " +
                 std::to_string(weights.size()) + " weights",
                 static_cast<std::int64_t>(records.size()), 2,
                 "record two packs or more, and one weight for each, or none"};
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    const cost_record& r = records[i];
    const bool bad = r.tokens < 1 || r.squares < 1 || r.c < 1 || !(r.seconds > 0) ||
                     !(r.seconds <= max_operation_s);
    const bool weightless = !weights.empty() && !(weights[i] > 0 && std::isfinite(weights[i]));
    if (bad || weightless) {
      return error{errc::invalid_argument, "record " + std::to_string(i) + " has " +
                   std::to_string(r.tokens) + " tokens, " + std::to_string(r.squares) +
                   " squares, c " + std::to_string(r.c) + " and " + std::to_string(r.seconds) +
                   " s", static_cast<std::int64_t>(i), 0,
                   "records have positive tokens, squares, c, seconds and weight"};
    }
  }
  if (weights.empty()) weights.assign(records.size(), 1.0);
  const auto fitted = [&](const std::vector<cost_record>& r, const std::vector<double>& w) {
    return detail::coefficient_fit(r, w, start, options.robust).run();
  };
  const auto error_of = [](const cost_coefficients& k, const cost_record& r) {
    return std::abs(parts_of(k, {r.tokens, r.squares, 1}, r.c, r.over).total_s() / r.seconds - 1.0);
  };
  cost_fit out;
  out.coefficients = fitted(records, weights);
  fit_quality& quality = out.quality;
  quality.records = static_cast<std::int64_t>(records.size());
  const auto count = static_cast<double>(records.size());
  for (const cost_record& r : records) {
    const double e = error_of(out.coefficients, r);
    quality.mean_error += e / count;
    quality.max_error = std::max(quality.max_error, e);
  }
  const std::size_t folds =
      std::min(records.size(), static_cast<std::size_t>(std::max(2, options.max_folds)));
  for (std::size_t fold = 0; fold < folds; ++fold) {
    std::vector<cost_record> rest;
    std::vector<double> rest_weights;
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (i % folds == fold) continue;
      rest.push_back(records[i]);
      rest_weights.push_back(weights[i]);
    }
    const cost_coefficients without = fitted(rest, rest_weights);
    for (std::size_t i = fold; i < records.size(); i += folds) {
      const double e = error_of(without, records[i]);
      quality.leave_one_out_mean += e / count;
      quality.leave_one_out_max = std::max(quality.leave_one_out_max, e);
    }
  }
  return out;
}

/// Keeps the latest records of a running job and fits to them: old ones fade.
///
///   dyncp::cost_fitter fitter(dyncp::coefficients_of(model, cluster, parallel).forward);
///   fitter.observe({load.tokens, load.squares, cp, link, seconds});   // after each pass
///   if (auto fit = fitter.fit()) plan_with(fit->coefficients);
///
/// Coefficients are inputs of the plan: one rank fits and sends them, or all observe the same
/// records; the digest tells if they do not. Thread safety: belongs to one thread.
class cost_fitter {
 public:
  struct options_type {
    double forgetting = 0.99;          ///< what a record weighs after the next one came, in (0, 1]
    std::int32_t max_records = 1024;   ///< the oldest are dropped
    fit_options fit = {};
  };

  explicit cost_fitter(const cost_coefficients& start) : cost_fitter(start, options_type{}) {}
  cost_fitter(const cost_coefficients& start, const options_type& options)
      : start_(start), options_(options) {}

  void observe(const cost_record& record) {
    for (double& w : weights_) w *= options_.forgetting;
    records_.push_back(record);
    weights_.push_back(1.0);
    if (records_.size() > static_cast<std::size_t>(std::max(2, options_.max_records))) {
      records_.erase(records_.begin());
      weights_.erase(weights_.begin());
    }
  }

  /// Errors: those of `fit_cost`. The coefficients become the start of the next fit: what later
  /// records do not tell is remembered from these.
  [[nodiscard]] result<cost_fit> fit() {
    auto out = fit_cost(records_, start_, options_.fit, weights_);
    if (out) start_ = out->coefficients;
    return out;
  }

  [[nodiscard]] std::int64_t records() const noexcept {
    return static_cast<std::int64_t>(records_.size());
  }

 private:
  cost_coefficients start_;
  options_type options_;
  std::vector<cost_record> records_;
  std::vector<double> weights_;
};

}  // namespace v0
}  // namespace dyncp
