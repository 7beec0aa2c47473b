// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"
#include "interfaces.hpp"
#include "parameters.hpp"
#include "tensor.hpp"

namespace megatron_style {

/// What the backward pass of a layer needs of its forward pass; the normed inputs are made again.
template <class T>
struct block_context {
  matrix<T> input;     // (rows, hidden)
  column<T> inverse;   // (rows), of the attention norm
  matrix<T> q;         // (rows, q width / tp), turned
  matrix<T> kv;        // (2 * rows, kv width / tp): turned keys, then values
  matrix<T> attended;  // (rows, q width / tp)
  matrix<T> lse;       // (rows, q heads / tp)
  matrix<T> middle;    // (rows, hidden), after attention
  column<T> middle_inverse;
  matrix<T> gate;  // (rows, ffn / tp)
  matrix<T> up;    // (rows, ffn / tp)
};

/// One transformer layer on one tensor-parallel rank: column-cut, then row-cut matrices, so that a
/// sum over the ranks follows each half in the forward and in the backward pass.
template <class T>
class block {
 public:
  block(const model_config& config, parameter_set<T>& parameters, const block_parameters& where,
        tensor_parallel<T>& tp)
      : config_(config), parameters_(&parameters), where_(where), tp_(&tp) {}

  [[nodiscard]] matrix<T> forward(matrix<T> x, const model_batch<T>& batch,
                                  block_context<T>& context) const;
  /// The gradient of the input from that of the output; gradients of the weights are added up.
  [[nodiscard]] matrix<T> backward(const matrix<T>& dy, const model_batch<T>& batch,
                                   block_context<T>& context) const;

 private:
  model_config config_;
  parameter_set<T>* parameters_;
  block_parameters where_;
  tensor_parallel<T>* tp_;
};

}  // namespace megatron_style
