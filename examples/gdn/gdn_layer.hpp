// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Eigen/Core>

#include <cstdint>
#include <span>
#include <vector>

namespace gdn {

using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A gated-delta-rule layer:
///   z = x W_in                              [q | k | v | beta | alpha] of all heads
///   q, k, v = silu(conv(z))                 causal, `taps` wide, within a sequence
///   q, k    = q / |q|, k / |k|              by heads
///   beta, alpha = sigmoid(z)                one number a head
///   S_t = alpha_t S_(t-1) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T        S_0 = 0 in each
///   sequence o_t = S_t q_t,   y = o W_out
/// Source: Yang, Kautz, Hatamizadeh, Gated Delta Networks (2024), without its output norm and gate.
struct layer_shape {
  Eigen::Index hidden = 16;
  Eigen::Index heads = 2;
  Eigen::Index key = 4;    ///< size of q and k
  Eigen::Index value = 6;  ///< size of v
  Eigen::Index taps = 4;   ///< of the convolution

  [[nodiscard]] Eigen::Index mixed() const noexcept { return heads * (2 * key + value); }
  /// Columns of z: mixed(), then beta and alpha of each head.
  [[nodiscard]] Eigen::Index width() const noexcept { return mixed() + 2 * heads; }
  [[nodiscard]] Eigen::Index out() const noexcept { return heads * value; }
  /// Numbers of the states of all heads, (heads, value, key).
  [[nodiscard]] Eigen::Index state() const noexcept { return heads * value * key; }
  /// Numbers of what a run of tokens does to them: S -> S M + U; (heads, key, key) and state().
  [[nodiscard]] Eigen::Index transition() const noexcept { return heads * key * key + state(); }
};

struct layer_weights {
  matrix in;    // (hidden, width)
  matrix conv;  // (taps, mixed): tap j of a channel multiplies the token j places before
  matrix out;   // (heads * value, hidden)

  [[nodiscard]] static layer_weights zeros(const layer_shape& shape);
  [[nodiscard]] static layer_weights random(const layer_shape& shape, std::uint64_t seed);
};

/// Consecutive tokens of one sequence on one rank, from their z to their o. `halo` tokens before
/// them lead the rows of z, for the convolution; there are fewer than taps - 1 at the begin of a
/// sequence alone.
///
/// Calls in order: `begin`, then with the state before the first token `forward`; for gradients
/// `backward_begin`, then with the gradient of the state behind the last token `backward`.
class token_run {
 public:
  token_run(const layer_shape& shape, const matrix& conv) : shape_(shape), conv_(&conv) {}

  /// What the run does to a state, (transition).
  [[nodiscard]] std::vector<double> begin(matrix z, Eigen::Index halo);
  /// o, (tokens, heads * value).
  [[nodiscard]] matrix forward(std::span<const double> state);

  /// What the run does to the gradient of a state on its way back, (transition): D -> D M^T + V.
  [[nodiscard]] std::vector<double> backward_begin(const matrix& dout);
  /// dz, (halo + tokens, width), and the gradient of the taps added to `dconv`.
  [[nodiscard]] matrix backward(std::span<const double> dstate, matrix& dconv);

 private:
  struct head_token;
  [[nodiscard]] head_token at(Eigen::Index head, Eigen::Index token) const;
  [[nodiscard]] matrix& state_before(Eigen::Index head, Eigen::Index token) {
    return states_[static_cast<std::size_t>(head * (tokens_ + 1) + token)];
  }

  layer_shape shape_;
  const matrix* conv_;
  Eigen::Index halo_ = 0;
  Eigen::Index tokens_ = 0;
  matrix z_;                    // (halo + tokens, width)
  matrix convolved_;            // (tokens, mixed), before silu
  matrix mixed_;                // (tokens, mixed): q and k normed, v
  matrix norms_;                // (tokens, 2 * heads): of q and k before
  matrix gates_;                // (tokens, 2 * heads): beta, alpha
  matrix dout_;                 // (tokens, heads * value)
  std::vector<matrix> states_;  // (heads, tokens + 1)
};

/// The transition of a run `first` followed by a run `second`.
[[nodiscard]] std::vector<double> compose(const layer_shape& shape, std::span<const double> first,
                                          std::span<const double> second);
/// state <- state M + U.
void apply(const layer_shape& shape, std::span<const double> transition, std::span<double> state);

}  // namespace gdn
