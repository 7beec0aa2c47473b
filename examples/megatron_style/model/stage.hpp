// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block.hpp"
#include "config.hpp"
#include "head.hpp"
#include "interfaces.hpp"
#include "parameters.hpp"
#include "tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace megatron_style {

/// What a stage keeps of one micro-batch between its forward and its backward pass.
template <class T>
struct stage_context {
  std::vector<block_context<T>> blocks;  // (layers of the chunk)
  head_context<T> head;
};

/// The chunks of the model that one rank runs. A micro-batch on which the rank has no rows costs
/// nothing and passes on.
template <class T>
class stage {
 public:
  stage(const model_config& config, const model_part& part, tensor_parallel<T>& tp)
      : config_(config),
        part_(part),
        parameters_(config, part),
        head_(config, part, parameters_, tp) {
    for (std::int32_t chunk = 0; chunk < part.chunks; ++chunk) {
      for (std::int32_t i = 0; i < parameters_.layers_per_chunk(); ++i) {
        blocks_.emplace_back(config, parameters_, parameters_.block(chunk, i), tp);
      }
    }
  }
  stage(const stage&) = delete;
  stage& operator=(const stage&) = delete;

  /// The output of chunk `chunk` from that of the virtual stage before, which is empty for the
  /// first. The last one has no output but context.head.losses.
  [[nodiscard]] matrix<T> forward(std::int32_t chunk, const model_batch<T>& batch, matrix<T> x,
                                  stage_context<T>& context) {
    if (batch.rows == 0) return matrix<T>(0, config_.hidden);
    if (part_.first(chunk)) x = head_.embed(batch);
    context.blocks.resize(static_cast<std::size_t>(parameters_.layers_per_chunk()));
    for (std::size_t i = 0; i < context.blocks.size(); ++i) {
      x = block_at(chunk, i).forward(std::move(x), batch, context.blocks[i]);
    }
    if (!part_.last(chunk)) return x;
    head_.forward(std::move(x), batch, context.head);
    return matrix<T>(0, config_.hidden);
  }

  /// The gradient of what `forward` took, on the first virtual stage of the embedding, from that of
  /// what it gave; the last one differentiates the summed loss instead. Gradients of weights are
  /// added up.
  [[nodiscard]] matrix<T> backward(std::int32_t chunk, const model_batch<T>& batch, matrix<T> dy,
                                   stage_context<T>& context) {
    if (batch.rows == 0) return matrix<T>(0, config_.hidden);
    if (part_.last(chunk)) dy = head_.backward(context.head);
    for (std::size_t i = context.blocks.size(); i > 0; --i) {
      dy = block_at(chunk, i - 1).backward(dy, batch, context.blocks[i - 1]);
    }
    if (part_.first(chunk)) head_.embed_backward(dy, batch);
    return dy;
  }

  [[nodiscard]] parameter_set<T>& parameters() noexcept { return parameters_; }
  [[nodiscard]] const model_config& config() const noexcept { return config_; }
  [[nodiscard]] const model_part& part() const noexcept { return part_; }

 private:
  [[nodiscard]] const block<T>& block_at(std::int32_t chunk, std::size_t i) const {
    return blocks_[static_cast<std::size_t>(chunk * parameters_.layers_per_chunk()) + i];
  }

  model_config config_;
  model_part part_;
  parameter_set<T> parameters_;
  head<T> head_;
  std::vector<block<T>> blocks_;  // (chunks, layers per chunk)
};

}  // namespace megatron_style
