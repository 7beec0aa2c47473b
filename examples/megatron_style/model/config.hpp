// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace megatron_style {

/// A small Llama-like model: RMSNorm, RoPE, grouped-query attention, SwiGLU, tied output head.
struct model_config {
  std::int32_t layers = 4;
  std::int32_t hidden = 32;
  std::int32_t ffn = 64;
  std::int32_t q_heads = 4;
  std::int32_t kv_heads = 2;
  std::int32_t head_dim = 8;
  std::int32_t vocabulary = 96;
  double rope_base = 10000.0;
  double norm_epsilon = 1e-5;
  std::uint64_t seed = 1;

  [[nodiscard]] constexpr std::int32_t q_width() const noexcept { return q_heads * head_dim; }
  [[nodiscard]] constexpr std::int32_t kv_width() const noexcept { return kv_heads * head_dim; }
};

/// The part of the model that a rank holds: `chunks` times layers / (stages * chunks) layers, and
/// 1 / tp of each matrix. Chunk c of stage s is virtual stage c * stages + s.
struct model_part {
  std::int32_t stage = 0;
  std::int32_t stages = 1;
  std::int32_t chunks = 1;
  std::int32_t tp_rank = 0;
  std::int32_t tp = 1;

  [[nodiscard]] constexpr bool first(std::int32_t chunk) const noexcept {
    return stage == 0 && chunk == 0;
  }
  [[nodiscard]] constexpr bool last(std::int32_t chunk) const noexcept {
    return stage == stages - 1 && chunk == chunks - 1;
  }
};

}  // namespace megatron_style
