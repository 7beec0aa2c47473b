// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace rl_style {

/// Where the time of an iteration goes.
struct iteration_times {
  double log_prob_s = 0;
  double train_s = 0;    ///< updates
  double outside_s = 0;  ///< generating, judging: the same whoever plans

  [[nodiscard]] constexpr double training_s() const noexcept { return log_prob_s + train_s; }
  [[nodiscard]] constexpr double all_s() const noexcept { return training_s() + outside_s; }
};

/// The fastest of each pass; times differ by noise alone. Requires one iteration or more.
[[nodiscard]] inline iteration_times fastest(std::span<const iteration_result> iterations) {
  iteration_times out{iterations.front().log_prob_s, iterations.front().train_s, 0};
  for (const iteration_result& i : iterations) {
    out.log_prob_s = std::min(out.log_prob_s, i.log_prob_s);
    out.train_s = std::min(out.train_s, i.train_s);
  }
  return out;
}

struct gain_row {
  const char* what = "";
  double before_s = 0;
  double after_s = 0;
  /// How much more is done in a given time: 0.5 is half as much again.
  [[nodiscard]] constexpr double gain() const noexcept { return before_s / after_s - 1.0; }
};

/// The gain of each pass, of training, and end to end: what is spent outside training does not
/// become faster, so the last is the smaller one (Amdahl).
[[nodiscard]] constexpr std::array<gain_row, 4> gains(const iteration_times& before,
                                                      const iteration_times& after) noexcept {
  return {{{"log-probabilities", before.log_prob_s, after.log_prob_s},
           {"updates", before.train_s, after.train_s},
           {"training", before.training_s(), after.training_s()},
           {"end to end", before.all_s(), after.all_s()}}};
}

}  // namespace rl_style
