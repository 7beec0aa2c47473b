// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/attention_mask.hpp>

#include <cstdint>
#include <string>

namespace dyncp {
inline namespace v0 {

/// What the backward pass computes again: nothing, the attention of each layer, or all of it.
enum class recomputation : std::int8_t { none, selective, full };

/// The shape of the model, as far as cost and memory see it. Field names are the JSON keys.
struct model_spec {
  std::string name;
  std::int32_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;             ///< inner width of the MLP (of one expert in an MoE)
  std::int64_t query_hidden = 0;    ///< query heads * head_dim
  std::int64_t kv_hidden = 0;       ///< key/value heads * head_dim (GQA: below query_hidden)
  bool gated_mlp = true;            ///< three MLP matrices (SwiGLU) instead of two
  std::int32_t experts = 0;         ///< experts of a layer; 0: dense
  std::int32_t experts_per_token = 0;
  std::int64_t vocabulary = 0;      ///< 0: embedding and output head are not counted
  std::int32_t dtype_bytes = 2;     ///< of activations, keys and values
  attention_mask mask = attention_mask::causal;
  recomputation recompute = recomputation::full;

  friend bool operator==(const model_spec&, const model_spec&) = default;
};

/// Weights of one layer that a token multiplies with; 2 FLOPs each in the forward pass.
/// Attention: h*(q + 2*kv) + q*h; MLP: (gated ? 3 : 2)*h*ffn, times the experts of a token.
[[nodiscard]] constexpr double active_parameters_per_layer(const model_spec& m) noexcept {
  const double h = static_cast<double>(m.hidden);
  const double q = static_cast<double>(m.query_hidden);
  const double kv = static_cast<double>(m.kv_hidden);
  const double mlp = (m.gated_mlp ? 3.0 : 2.0) * h * static_cast<double>(m.ffn);
  const double used = m.experts > 0 ? static_cast<double>(m.experts_per_token) : 1.0;
  const double router = m.experts > 0 ? h * static_cast<double>(m.experts) : 0.0;
  return h * (q + 2.0 * kv) + q * h + used * mlp + router;
}

/// All weights of one layer, every expert included.
[[nodiscard]] constexpr double parameters_per_layer(const model_spec& m) noexcept {
  const double idle_experts =
      m.experts > 0 ? static_cast<double>(m.experts - m.experts_per_token) : 0.0;
  return active_parameters_per_layer(m) + idle_experts * (m.gated_mlp ? 3.0 : 2.0) *
                                              static_cast<double>(m.hidden) *
                                              static_cast<double>(m.ffn);
}

/// Forward attention FLOPs of one layer per squared token: a causal mask computes half the pairs.
[[nodiscard]] constexpr double attention_flops_per_square(const model_spec& m) noexcept {
  return (m.mask == attention_mask::causal ? 2.0 : 4.0) * static_cast<double>(m.query_hidden);
}

}  // namespace v0
}  // namespace dyncp
