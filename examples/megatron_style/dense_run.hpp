// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/config.hpp"
#include "model/dense_attention.hpp"
#include "model/stage.hpp"
#include "samples.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace megatron_style {

/// A model on one rank that takes samples one by one, with attention from its definition: no packs,
/// no groups, no library. What all other runs are compared with.
template <class T>
class dense_run {
 public:
  explicit dense_run(const model_config& config) : model_(config, {}, alone_), attend_(config) {}

  /// Gradients of the mean loss of a token over `batch`; returns that loss.
  double run(std::span<const sample> batch) {
    model_.parameters().clear_gradients();
    double sum = 0;
    std::int64_t count = 0;
    for (const sample& s : batch) {
      const token_sample loaded = load(s, model_.config().vocabulary);
      const model_batch<T> rows{loaded.length(), loaded.tokens, loaded.labels, &attend_};
      stage_context<T> context;
      static_cast<void>(model_.forward(0, rows, {}, context));
      static_cast<void>(model_.backward(0, rows, {}, context));
      for (const T loss : context.head.losses) sum += static_cast<double>(loss);
      for (const std::int32_t label : loaded.labels) count += label >= 0 ? 1 : 0;
    }
    const double scale = count > 0 ? 1.0 / static_cast<double>(count) : 0.0;
    for (T& g : model_.parameters().gradients()) g *= static_cast<T>(scale);
    return sum * scale;
  }

  [[nodiscard]] parameter_set<T>& parameters() noexcept { return model_.parameters(); }

 private:
  class alone final : public tensor_parallel<T> {
   public:
    using tensor_parallel<T>::sum;
    void sum(std::span<T>) override {}
    void maximum(std::span<T>) override {}
  };

  alone alone_;
  stage<T> model_;
  dense_attention<T> attend_;
};

}  // namespace megatron_style
