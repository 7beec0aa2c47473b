// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/rounded.hpp>
#include <dyncp/core/ticks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// Budgets of micro-batches relative to the plateau, descending; the order comes later.
///
/// Equal budgets are not optimal under 1F1B: while the pipeline fills, the last stage is fed
/// without a gap when each micro-batch exceeds the one before by the factor 1 + (b/f)/(p-1), and
/// while it drains, work shrinks again. The plateau sags to 0.8. Shape found by a linear program
/// over divisible work (p = 8, b = 3f), as docs/algorithms.md tells; `strength` in 0 .. 1 mixes it
/// with equal budgets.
[[nodiscard]] inline std::vector<double> ramp_profile(std::int32_t micro_batches,
                                                      std::int32_t stages, double backward_ratio,
                                                      double strength) {
  std::vector<double> profile(static_cast<std::size_t>(micro_batches), 1.0);
  if (stages < 2 || strength <= 0.0) return profile;
  const std::int32_t rise = std::min(stages - 1, micro_batches / 4);
  const std::int32_t fall = std::min(stages, micro_batches / 3);
  const double growth = 1.0 + backward_ratio / (stages - 1);
  double level = 1.0;
  for (std::int32_t j = rise - 1; j >= 0; --j) {
    level /= growth;
    profile[static_cast<std::size_t>(j)] = level;
  }
  const std::int32_t flat = micro_batches - rise - fall;
  for (std::int32_t j = 0; j < flat; ++j) {
    profile[static_cast<std::size_t>(rise + j)] =
        1.0 - rounded_product(0.2, j) / std::max(1, flat - 1);
  }
  for (std::int32_t j = 0; j < fall; ++j) {
    const double x = static_cast<double>(j) / std::max(1, fall - 1);
    profile[static_cast<std::size_t>(rise + flat + j)] =
        0.72 - rounded_product(0.5 * x, 0.8 + rounded_product(0.2, x));
  }
  for (double& w : profile) w = 1.0 + rounded_product(strength, w - 1.0);
  std::sort(profile.begin(), profile.end(), [](double a, double b) { return a > b; });
  return profile;
}

/// An order for plain 1F1B of micro-batches of the given times: left of the largest they grow by
/// `growth` a step, as far as there are such, and right of it they fall. Returns positions into
/// `times`. Ties go to the lower position. Complexity: O(M log M + M * stages).
[[nodiscard]] inline std::vector<std::int32_t> ramp_order(const std::vector<ticks>& times,
                                                          std::int32_t stages, double growth) {
  const auto count = static_cast<std::int32_t>(times.size());
  std::vector<std::int32_t> falling(times.size());
  for (std::int32_t j = 0; j < count; ++j) falling[static_cast<std::size_t>(j)] = j;
  const auto at = [&](std::int32_t j) { return times[static_cast<std::size_t>(j)]; };
  std::sort(falling.begin(), falling.end(), [&](std::int32_t a, std::int32_t b) {
    return at(a) != at(b) ? at(a) > at(b) : a < b;
  });
  if (count < 3 || stages < 2) return falling;

  std::vector<std::int32_t> rising;
  std::vector<std::int32_t> rest{falling[0]};
  double target = static_cast<double>(at(falling[0])) / growth;
  for (std::int32_t i = 1; i < count; ++i) {
    const std::int32_t j = falling[static_cast<std::size_t>(i)];
    const bool left = static_cast<std::int32_t>(rising.size()) < stages - 1 &&
                      static_cast<double>(at(j)) <= target;
    if (left) {
      rising.push_back(j);
      target = static_cast<double>(at(j)) / growth;
    } else {
      rest.push_back(j);
    }
  }
  std::reverse(rising.begin(), rising.end());
  rising.insert(rising.end(), rest.begin(), rest.end());
  return rising;
}

/// An order for interleaved 1F1B: the `head` least times rise, then the others fall. A stage starts
/// with up to 2(p-1) + (V-1)p forwards, so the longest micro-batches are not to be among the first
/// ones. Returns positions into `times`; ties go to the lower one. Complexity: O(M log M).
[[nodiscard]] inline std::vector<std::int32_t> headed_order(const std::vector<ticks>& times,
                                                            std::int32_t head) {
  std::vector<std::int32_t> order(times.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return times[static_cast<std::size_t>(a)] < times[static_cast<std::size_t>(b)];
  });
  std::reverse(order.begin() + std::min(head, static_cast<std::int32_t>(order.size())),
               order.end());
  return order;
}

/// Heads that are worth a simulation each: from none, all falling, in halves of p to 4p, then all.
[[nodiscard]] inline std::vector<std::int32_t> heads_to_try(std::int32_t micro_batches,
                                                            std::int32_t stages) {
  std::vector<std::int32_t> heads;
  for (std::int32_t half = 0; half <= 8 && half * stages / 2 < micro_batches; ++half) {
    heads.push_back(half * stages / 2);
  }
  heads.push_back(micro_batches);
  return heads;
}

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
