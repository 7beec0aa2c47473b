// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The pipeline of the trainer: physical stages and virtual stages (chunks) on each.
struct pipeline {
  std::int32_t stages = 1;
  std::int32_t chunks = 1;  ///< vpp; above 1 the number of micro-batches is a multiple of stages
};

/// One operation of a stage: the forward or backward of a chunk for one micro-batch.
struct operation {
  std::int32_t micro_batch = 0;
  std::int32_t chunk = 0;
  bool backward = false;

  friend bool operator==(const operation&, const operation&) = default;
};

/// Forwards that stage `s` runs before its first backward.
/// 1F1B: min(p-s-1, M). Interleaved: min(M*V, 2(p-s-1) + (V-1)p), all M*V when M = p.
[[nodiscard]] constexpr std::int64_t warmup_forwards(pipeline pipe, std::int32_t stage,
                                                     std::int32_t micro_batches) noexcept {
  const std::int64_t p = pipe.stages;
  const std::int64_t all = std::int64_t{micro_batches} * pipe.chunks;
  if (pipe.chunks == 1) return std::min(p - stage - 1, all);
  if (micro_batches == pipe.stages) return all;
  return std::min(2 * (p - stage - 1) + (pipe.chunks - 1) * p, all);
}

/// The order in which a stage runs its operations: warm-up forwards, then one forward and one
/// backward in turn, then the remaining backwards. With chunks, the order of Megatron's
/// interleaved schedule: groups of p micro-batches pass through chunk 0, then chunk 1, ...
///
/// Requires micro_batches % stages == 0 when chunks > 1. O(M*V).
[[nodiscard]] inline std::vector<operation> stage_order(pipeline pipe, std::int32_t stage,
                                                        std::int32_t micro_batches) {
  const std::int64_t p = pipe.stages;
  const std::int64_t v = pipe.chunks;
  const std::int64_t all = std::int64_t{micro_batches} * v;
  const auto nth = [&](std::int64_t k, bool backward) {
    if (v == 1) return operation{static_cast<std::int32_t>(k), 0, backward};
    const std::int64_t chunk = (k % (p * v)) / p;
    const std::int64_t micro = p * (k / (p * v)) + k % p;
    return operation{static_cast<std::int32_t>(micro),
                     static_cast<std::int32_t>(backward ? v - 1 - chunk : chunk), backward};
  };
  std::vector<operation> order;
  order.reserve(static_cast<std::size_t>(2 * all));
  const std::int64_t warmup = warmup_forwards(pipe, stage, micro_batches);
  for (std::int64_t k = 0; k < warmup; ++k) order.push_back(nth(k, false));
  for (std::int64_t k = warmup; k < all; ++k) {
    order.push_back(nth(k, false));
    order.push_back(nth(k - warmup, true));
  }
  for (std::int64_t k = all - warmup; k < all; ++k) order.push_back(nth(k, true));
  return order;
}

}  // namespace v0
}  // namespace dyncp
