// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "formulas.hpp"
#include "rollouts.hpp"

#include "megatron_style/model/config.hpp"
#include "megatron_style/model/interfaces.hpp"
#include "megatron_style/model/parameters.hpp"
#include "megatron_style/model/stage.hpp"
#include "megatron_style/model/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rl_style {

using megatron_style::attention;
using megatron_style::matrix;
using megatron_style::model_config;
using megatron_style::parameter_set;
using megatron_style::stage_context;

/// Rows of sequences, on one rank: all of them, or its share of a pack.
struct policy_rows {
  std::vector<std::int32_t> tokens;  // (rows)
  std::vector<std::int32_t> labels;  // (rows), -1: none
  matrix<double> patches;            // (rows, patch_width), centred; zeros for text
};

/// The patches of one whole sequence less the mean of its image. The mean is over all patches: who
/// has a share of the sequence alone cannot make it.
[[nodiscard]] inline matrix<double> centred(std::span<const double> pixels, std::int32_t patches) {
  const auto rows = static_cast<Eigen::Index>(pixels.size()) / patch_width;
  matrix<double> out = Eigen::Map<const matrix<double>>(pixels.data(), rows, patch_width);
  if (patches > 0) {
    const matrix<double> mean = out.topRows(patches).colwise().mean();
    out.topRows(patches).rowwise() -= mean.row(0);
  }
  return out;
}

/// The language model of examples/megatron_style, on one pipeline stage, with a matrix that turns
/// patches into embeddings.
class policy {
 public:
  policy(const model_config& config, std::uint64_t seed)
      : model_(seeded(config, seed), {}, alone_),
        vision_(patch_width, config.hidden),
        vision_gradient_(matrix<double>::Zero(patch_width, config.hidden)) {
    for (Eigen::Index i = 0; i < vision_.size(); ++i) {
      vision_.data()[i] = 0.2 * megatron_style::hashed({seed, static_cast<std::uint64_t>(i), 99});
    }
  }

  /// -log p of the labels, (rows); 0 where there is none.
  [[nodiscard]] const std::vector<double>& forward(const policy_rows& rows,
                                                   attention<double>& attend,
                                                   stage_context<double>& context) {
    const matrix<double> extra = rows.patches * vision_;
    static_cast<void>(model_.forward(0, batch_of(rows, attend, &extra), {}, context));
    return context.head.losses;
  }

  /// Adds the gradients of sum of weights * -log p.
  void backward(const policy_rows& rows, std::span<const double> weights, attention<double>& attend,
                stage_context<double>& context) {
    matrix<double>& dlogits = context.head.dlogits;
    for (Eigen::Index row = 0; row < dlogits.rows(); ++row) {
      dlogits.row(row) *= weights[static_cast<std::size_t>(row)];
    }
    const matrix<double> dx = model_.backward(0, batch_of(rows, attend, nullptr), {}, context);
    vision_gradient_.noalias() += rows.patches.transpose() * dx;
  }

  void clear_gradients() {
    model_.parameters().clear_gradients();
    vision_gradient_.setZero();
  }
  /// All gradients, the model's before those of the patches.
  [[nodiscard]] std::vector<double> gradients() {
    std::vector<double> out(model_.parameters().gradients().begin(),
                            model_.parameters().gradients().end());
    out.insert(out.end(), vision_gradient_.data(),
               vision_gradient_.data() + vision_gradient_.size());
    return out;
  }
  /// values -= rate * gradient.
  void descend(std::span<const double> gradient, double rate) {
    const std::span<double> values = model_.parameters().values();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= rate * gradient[i];
    for (Eigen::Index i = 0; i < vision_.size(); ++i) {
      vision_.data()[i] -= rate * gradient[values.size() + static_cast<std::size_t>(i)];
    }
  }

 private:
  class alone final : public megatron_style::tensor_parallel<double> {
   public:
    using megatron_style::tensor_parallel<double>::sum;
    void sum(std::span<double>) override {}
    void maximum(std::span<double>) override {}
  };

  [[nodiscard]] static model_config seeded(model_config config, std::uint64_t seed) {
    config.seed = seed;
    return config;
  }
  [[nodiscard]] static megatron_style::model_batch<double> batch_of(const policy_rows& rows,
                                                                    attention<double>& attend,
                                                                    const matrix<double>* extra) {
    return {static_cast<Eigen::Index>(rows.labels.size()), rows.tokens, rows.labels, &attend,
            extra};
  }

  alone alone_;
  megatron_style::stage<double> model_;
  matrix<double> vision_;  // (patch_width, hidden)
  matrix<double> vision_gradient_;
};

}  // namespace rl_style
