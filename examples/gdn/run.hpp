// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gdn_layer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace gdn {

struct run_options {
  layer_shape shape;
  std::int32_t ranks = 8;
  std::int64_t max_tokens_per_rank = 64;
  std::vector<std::int64_t> lengths;
  std::uint64_t seed = 1;
};

/// x and dy of a sequence, (length, hidden), functions of its number and the seed.
[[nodiscard]] matrix input_of(const run_options& options, std::int64_t sequence);
[[nodiscard]] matrix output_gradient_of(const run_options& options, std::int64_t sequence);

/// The layer on one rank that has a whole sequence: no packs, no groups.
struct alone {
  matrix y;   // (length, hidden)
  matrix dx;  // (length, hidden)
};
[[nodiscard]] alone run_alone(const layer_shape& shape, const layer_weights& weights,
                              const matrix& x, const matrix& dy, layer_weights& gradients);

struct run_result {
  std::int32_t micro_batches = 0;
  std::vector<std::int32_t> cp_sizes;  ///< that came up, ascending
  double output_error = 0;             ///< largest, relative to the largest value
  double input_gradient_error = 0;
  double weight_gradient_error = 0;
  std::int64_t row_bytes = 0;  ///< sent by all ranks, both passes
  std::int64_t state_bytes = 0;
  std::vector<std::string> failures;
};

/// Plans the sequences, runs the layer forward and backward on a thread for each rank, and compares
/// with one rank.
[[nodiscard]] run_result run_ranks(const run_options& options);

}  // namespace gdn
