// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/interfaces.hpp"
#include "model/stage.hpp"
#include "ring_layers.hpp"

#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/positions.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace megatron_style {

/// A micro-batch of one chunk on one rank, from its forward to its backward pass. Nothing is shared
/// between chunks: each has views and contexts of its own.
template <class T>
struct micro_batch {
  std::optional<dyncp::packed_seq_params> params;  ///< nothing: the rank is idle
  std::vector<std::int32_t> tokens;     // (rows), on the first virtual stage
  std::vector<std::int32_t> labels;     // (rows), on the last; -1: none
  std::vector<std::int32_t> positions;  // (rows)
  std::unique_ptr<attention<T>> attend;
  stage_context<T> context;

  [[nodiscard]] model_batch<T> view() const noexcept {
    return {tokens, labels, positions, attend.get()};
  }
};

/// What a rank works on in one step: the parameters of its micro-batches, and its rows of the token
/// fields in all of them, one behind the other.
struct rank_step {
  std::vector<std::optional<dyncp::packed_seq_params>> params;  // (micro-batches)
  std::vector<std::int32_t> tokens;  // (rows of all micro-batches), where the stage needs them
  std::vector<std::int32_t> labels;

  [[nodiscard]] std::int32_t num_micro_batches() const noexcept {
    return static_cast<std::int32_t>(params.size());
  }
};

/// The iterator that the schedule asks for micro-batches: one per chunk.
template <class T, dyncp::backend B>
class chunk_iterator {
 public:
  chunk_iterator(const rank_step& step, ring_layers<T, B>& layers, bool tokens, bool labels)
      : step_(&step), layers_(&layers), tokens_(tokens), labels_(labels) {}

  [[nodiscard]] std::unique_ptr<micro_batch<T>> next() {
    auto batch = std::make_unique<micro_batch<T>>();
    batch->params = step_->params[at_++];
    if (!batch->params) return batch;
    const auto rows = static_cast<std::size_t>(batch->params->local_tokens());
    batch->positions = dyncp::positions(batch->params->view(), batch->params->cp_rank());
    batch->attend = layers_->bind(*batch->params);
    if (tokens_) batch->tokens = cut(step_->tokens, rows);
    if (labels_) batch->labels = cut(step_->labels, rows);
    row_ += rows;
    return batch;
  }

 private:
  [[nodiscard]] std::vector<std::int32_t> cut(const std::vector<std::int32_t>& field,
                                              std::size_t rows) const {
    const auto part = std::span(field).subspan(row_, rows);
    return {part.begin(), part.end()};
  }

  const rank_step* step_;
  ring_layers<T, B>* layers_;
  bool tokens_;
  bool labels_;
  std::size_t at_ = 0;
  std::size_t row_ = 0;
};

}  // namespace megatron_style
