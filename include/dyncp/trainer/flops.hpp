// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/thd/pack_view.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// Exact sums over the real lengths of a pack, from which FLOPs are counted.
///
/// Attention costs the sum of squares, not the square of the sum: 4 sequences of 2048 tokens in a
/// pack of 8192 have 16,777,216, not 67,108,864. The repeats and dummies of a bucket have no
/// tokens, and are not counted as sequences. Complexity: linear in the sequences.
[[nodiscard]] constexpr length_sums real_sums(const pack_view& pack) noexcept {
  length_sums sums;
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const std::int64_t length = pack.length(s);
    sums.tokens += length;
    sums.squares += int128{length} * length;
    sums.count += length > 0 ? 1 : 0;
    if (length > sums.longest) sums.longest = length;
  }
  return sums;
}

/// FLOPs of a training step, on all GPUs together.
struct step_flops {
  double model = 0;     ///< what the mathematics needs: forward, and twice that backward (for MFU)
  double hardware = 0;  ///< with what is computed again: activations, scores in backward (for HFU)
};

/// FLOPs, forward and backward, of sequences with these sums, from real lengths.
///
/// forward = layers * (2 * W * tokens + A * squares) + 2 * hidden * vocabulary * tokens, with W the
/// active weights of a layer and A = 2 * query_hidden under a causal mask, else 4. Backward is
/// twice that. The hardware count adds what recomputation runs again in the layers, and half of the
/// forward attention, as backward kernels compute the scores once more (5 products after 2).
/// Source: Narayanan et al. 2021, appendix; Dao 2023 for the backward kernel.
[[nodiscard]] constexpr step_flops training_flops(const model_spec& m,
                                                  const length_sums& sums) noexcept {
  const double tokens = static_cast<double>(sums.tokens);
  const double layers = static_cast<double>(m.layers);
  const double linear = layers * 2.0 * active_parameters_per_layer(m) * tokens;
  const double attention =
      layers * attention_flops_per_square(m) * static_cast<double>(sums.squares);
  const double head =
      2.0 * static_cast<double>(m.hidden) * static_cast<double>(m.vocabulary) * tokens;
  const double model = 3.0 * (linear + attention + head);
  double again = 0.5 * attention;
  if (m.recompute == recomputation::selective) again += attention;
  if (m.recompute == recomputation::full) again += linear + attention;
  return {model, model + again};
}

}  // namespace v0
}  // namespace dyncp
