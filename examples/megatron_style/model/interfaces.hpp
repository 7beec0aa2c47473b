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

/// Attention over the sequences of one micro-batch, on this rank's rows. Keys and values stand in
/// one matrix, the keys' rows above the values'.
template <class T>
class attention {
 public:
  virtual ~attention() = default;
  /// out (rows, q heads * dim) and lse (rows, q heads), from q (rows, q heads * dim) and kv
  /// (2 * rows, kv heads * dim).
  virtual void forward(const matrix<T>& q, const matrix<T>& kv, matrix<T>& out,
                       matrix<T>& lse) = 0;
  /// dq and dkv, like q and kv, from what the forward pass took and gave.
  virtual void backward(const matrix<T>& q, const matrix<T>& kv, const matrix<T>& out,
                        const matrix<T>& lse, const matrix<T>& dout, matrix<T>& dq,
                        matrix<T>& dkv) = 0;
};

/// One rank's rows of a micro-batch, as the model sees them. Views, valid while the micro-batch is.
template <class T>
struct model_batch {
  std::span<const std::int32_t> tokens;     // (rows)
  std::span<const std::int32_t> labels;     // (rows); below 0: none
  std::span<const std::int32_t> positions;  // (rows), in their sequences
  attention<T>* attend = nullptr;

  [[nodiscard]] Eigen::Index rows() const noexcept {
    return static_cast<Eigen::Index>(positions.size());
  }
};

}  // namespace megatron_style
