// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The solution of equations 2 and 3 of the Dynamic-CP article.
struct quota_solution {
  std::vector<double> per_micro_batch;  ///< (ranks): W_i, in the unit of `total`
  double time = 0;                      ///< W_i * (m_i*V + p - 1), the same for all ranks
};

/// Workload of one micro-batch of each rank on one virtual stage, so that all ranks end together:
///
///   W_i * (m_i*V + p - 1) = time  for every rank i          (equation 2)
///   sum over ranks of W_i * m_i = total                     (equation 3)
///
/// hence time = total / sum_i m_i/(m_i*V + p - 1). `micro_batches` holds m_i, shape (ranks): ranks
/// of the DPxCP domain, or DP lanes if `total` is in units of theirs. `total` is the workload of
/// the whole batch on one virtual stage, in any unit (seconds, FLOPs). p = `stages`,
/// V = `chunks`. With equal m all quotas are total/(ranks*m): then m alone decides.
///
/// Equal quotas are where a search starts, not the optimum of 1F1B: see `ramp_profile`.
/// Complexity: O(ranks). Deterministic: no product feeds a sum. Safe to call concurrently.
/// Errors: empty_input without ranks; invalid_argument for m_i, p or V below one, or a total that
/// is not positive and finite.
[[nodiscard]] inline result<quota_solution> quota(const std::vector<std::int32_t>& micro_batches,
                                                  std::int32_t chunks, std::int32_t stages,
                                                  double total) {
  const auto below_one = [](const std::string& name, std::int64_t value) {
    return error{errc::invalid_argument, name + " is " + std::to_string(value), value, 1,
                 name + " must be 1 or more"};
  };
  if (micro_batches.empty()) {
    return make_error(errc::empty_input, "quotas of no rank were asked for",
                      "give the micro-batches of at least one rank");
  }
  if (chunks < 1) return below_one("vpp", chunks);
  if (stages < 1) return below_one("pp", stages);
  if (!(total > 0) || !std::isfinite(total)) {
    return make_error(errc::invalid_argument, "the total workload is " + std::to_string(total),
                      "it must be positive and finite");
  }
  const auto slots = [&](std::int32_t m) {  // m*V + p - 1
    return static_cast<double>(std::int64_t{m} * chunks + stages - 1);
  };
  double share = 0;
  for (std::size_t i = 0; i < micro_batches.size(); ++i) {
    const std::int32_t m = micro_batches[i];
    if (m < 1) return below_one("micro-batches of rank " + std::to_string(i), m);
    share += m / slots(m);
  }
  quota_solution out;
  out.time = total / share;
  out.per_micro_batch.reserve(micro_batches.size());
  for (const std::int32_t m : micro_batches) out.per_micro_batch.push_back(out.time / slots(m));
  return out;
}

/// The fall that counts as flat where the article speaks of the knee of the curve over M.
inline constexpr double knee_fall = 0.05;

/// The knee of a curve over M: the least M in first, first + step, ... for which going on to
/// M + pp lowers the value by less than `fall` of itself. The article names a knee without
/// defining one; this is our definition.
///
/// `value(M)` is a quota or a time, positive. The quotas of equal m, total/(ranks*M), have their
/// knee at the first M over pp*(1/fall - 1), 19*pp; a time has it earlier. For curves whose
/// relative fall shrinks with M, as these do, it stays below `fall` ever after.
///
/// Complexity: 2 calls of `value` per M tried, (last - first)/step of them at most.
/// Errors: invalid_argument for pp, step or first below one; not_found when no M up to `last` is
/// one.
template <std::invocable<std::int32_t> Curve>
  requires std::convertible_to < std::invoke_result_t<Curve, std::int32_t>,
double > [[nodiscard]] result<std::int32_t> knee(Curve value, std::int32_t pp, std::int32_t first,
                                                 std::int32_t step, std::int32_t last,
                                                 double fall = knee_fall) {
  if (pp < 1 || step < 1 || first < 1) {
    return make_error(errc::invalid_argument, "a knee needs pp, step and first M of 1 or more");
  }
  // m + pp stays an int32.
  const std::int64_t end =
      std::min<std::int64_t>(last, std::numeric_limits<std::int32_t>::max() - pp);
  for (std::int64_t m = first; m <= end; m += step) {
    const auto here = static_cast<double>(value(static_cast<std::int32_t>(m)));
    const auto there = static_cast<double>(value(static_cast<std::int32_t>(m + pp)));
    // A fall of exactly `fall` is none, whatever the last bits say.
    if (here - there < fall * (1.0 - 1e-12) * here) return static_cast<std::int32_t>(m);
  }
  return error{errc::not_found, "the curve has no knee up to M = " + std::to_string(last), last,
               last, "look at more micro-batches, or allow a larger fall"};
}

}  // namespace v0
}  // namespace dyncp
