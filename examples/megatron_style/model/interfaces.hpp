// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensor.hpp"

#include <cstdint>
#include <span>

namespace megatron_style {

/// Sums over the ranks that share the matrices of a layer.
template <class T>
class tensor_parallel {
 public:
  virtual ~tensor_parallel() = default;
  virtual void sum(std::span<T> values) = 0;
  virtual void maximum(std::span<T> values) = 0;
  void sum(matrix<T>& values) { sum({values.data(), static_cast<std::size_t>(values.size())}); }
};

/// Rotary embedding and attention over the sequences of one micro-batch, on this rank's rows. Keys
/// and values stand in one matrix, the keys' rows above the values'.
template <class T>
class attention {
 public:
  virtual ~attention() = default;
  /// Turns q (rows, q heads * dim) and the keys of kv (2 * rows, kv heads * dim) by the positions
  /// of their tokens, in place; then out (rows, q heads * dim) and lse (rows, q heads).
  virtual void forward(matrix<T>& q, matrix<T>& kv, matrix<T>& out, matrix<T>& lse) = 0;
  /// dq and dkv, the gradients of what `forward` took, from what it left.
  virtual void backward(const matrix<T>& q, const matrix<T>& kv, const matrix<T>& out,
                        const matrix<T>& lse, const matrix<T>& dout, matrix<T>& dq,
                        matrix<T>& dkv) = 0;
};

/// One rank's rows of a micro-batch, as the model sees them. Views, valid while the micro-batch is.
template <class T>
struct model_batch {
  Eigen::Index rows = 0;
  std::span<const std::int32_t> tokens;  // (rows), for the first virtual stage
  std::span<const std::int32_t> labels;  // (rows), for the last; below 0: none
  attention<T>* attend = nullptr;
  const matrix<T>* extra = nullptr;  // (rows, hidden), added to the embedding; optional
};

}  // namespace megatron_style
