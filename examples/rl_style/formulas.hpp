// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rollouts.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// What the algorithm computes, on whole sequences and in the caller's order: nothing here knows of
// ranks. Per-token values stand on the row whose logits score the token, one place before it.

namespace rl_style {

struct algorithm {
  double kl_weight = 0.05;  ///< of log p - log p of the reference, in the reward
  double discount = 0.99;
  double clip = 0.2;
};

/// Scores against the mean of the other answers to the same prompt, in units of their deviation.
[[nodiscard]] inline std::vector<double> normalized_scores(std::span<const rollout> all,
                                                           std::span<const double> scores) {
  std::vector<double> out(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    double sum = 0;
    double squares = 0;
    double n = 0;
    for (std::size_t j = 0; j < all.size(); ++j) {
      if (all[j].prompt != all[i].prompt) continue;
      sum += scores[j];
      squares += scores[j] * scores[j];
      n += 1;
    }
    const double mean = sum / n;
    out[i] = (scores[i] - mean) / (std::sqrt(std::max(0.0, squares / n - mean * mean)) + 1e-3);
  }
  return out;
}

/// Rewards of the tokens of a response, (length), 0 elsewhere: the penalty for leaving the
/// reference, and the score with the last token.
[[nodiscard]] inline std::vector<double> token_rewards(const rollout& r, double score,
                                                       std::span<const double> log_probs,
                                                       std::span<const double> reference,
                                                       const algorithm& a) {
  std::vector<double> rewards(static_cast<std::size_t>(r.length), 0.0);
  for (std::int32_t at = r.length - r.response - 1; at < r.length - 1; ++at) {
    const auto i = static_cast<std::size_t>(at);
    rewards[i] = -a.kl_weight * (log_probs[i] - reference[i]);
  }
  rewards[static_cast<std::size_t>(r.length) - 2] += score;
  return rewards;
}

/// Discounted sums of the rewards from each token on, in place.
inline void to_returns(const rollout& r, std::span<double> rewards, const algorithm& a) {
  double later = 0;
  for (std::int32_t at = r.length - 2; at >= r.length - r.response - 1; --at) {
    const auto i = static_cast<std::size_t>(at);
    later = rewards[i] + a.discount * later;
    rewards[i] = later;
  }
}

/// Sums from which all response tokens of a batch are whitened; counted once each.
struct moments {
  double sum = 0;
  double squares = 0;
  std::int64_t count = 0;

  void add(const rollout& r, std::span<const double> returns) {
    for (std::int32_t at = r.length - r.response - 1; at < r.length - 1; ++at) {
      const double x = returns[static_cast<std::size_t>(at)];
      sum += x;
      squares += x * x;
      ++count;
    }
  }
  moments& operator+=(const moments& other) noexcept {
    sum += other.sum;
    squares += other.squares;
    count += other.count;
    return *this;
  }
  [[nodiscard]] double mean() const noexcept { return sum / static_cast<double>(count); }
  [[nodiscard]] double deviation() const noexcept {
    const double variance = squares / static_cast<double>(count) - mean() * mean();
    return std::sqrt(std::max(0.0, variance)) + 1e-6;
  }
};

/// Returns to advantages, in place.
inline void whiten(const rollout& r, std::span<double> returns, const moments& m) {
  for (std::int32_t at = r.length - r.response - 1; at < r.length - 1; ++at) {
    double& x = returns[static_cast<std::size_t>(at)];
    x = (x - m.mean()) / m.deviation();
  }
}

/// The clipped policy loss of a token, and its derivative by -log p.
struct token_loss {
  double loss = 0;
  double weight = 0;
};
[[nodiscard]] inline token_loss policy_loss(double log_prob, double old_log_prob, double advantage,
                                            const algorithm& a) noexcept {
  const double ratio = std::exp(log_prob - old_log_prob);
  const double clipped = std::clamp(ratio, 1.0 - a.clip, 1.0 + a.clip);
  if (ratio * advantage <= clipped * advantage) return {-ratio * advantage, ratio * advantage};
  return {-clipped * advantage, 0.0};
}

}  // namespace rl_style
