// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"
#include "interfaces.hpp"
#include "parameters.hpp"
#include "tensor.hpp"

#include <vector>

namespace megatron_style {

/// What the backward pass of the head needs; `losses` is what the forward pass is for.
template <class T>
struct head_context {
  matrix<T> input;        // (rows, hidden)
  column<T> inverse;      // (rows)
  matrix<T> normal;       // (rows, hidden)
  matrix<T> dlogits;      // (rows, vocabulary / tp): gradient of the summed loss
  std::vector<T> losses;  // (rows), 0 without a label
};

/// Token embedding and output head on one tensor-parallel rank, which holds vocabulary / tp rows of
/// the table that both share. The loss is the summed cross-entropy: who divides it by the tokens of
/// the batch knows them all.
template <class T>
class head {
 public:
  head(const model_config& config, const model_part& part, parameter_set<T>& parameters,
       tensor_parallel<T>& tp);

  [[nodiscard]] matrix<T> embed(const model_batch<T>& batch) const;
  void embed_backward(const matrix<T>& dx, const model_batch<T>& batch) const;

  void forward(matrix<T> x, const model_batch<T>& batch, head_context<T>& context) const;
  [[nodiscard]] matrix<T> backward(head_context<T>& context) const;

 private:
  model_config config_;
  parameter_set<T>* parameters_;
  tensor_parallel<T>* tp_;
  Eigen::Index first_ = 0;  // of this rank's part of the vocabulary
  Eigen::Index size_ = 0;
};

}  // namespace megatron_style
