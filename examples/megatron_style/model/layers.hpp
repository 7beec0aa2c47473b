// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensor.hpp"

namespace megatron_style {

/// y = x * inverse * weight by rows, inverse = 1 / sqrt(mean(x^2) + epsilon), which is kept.
template <class T, class Weight>
[[nodiscard]] matrix<T> rms_norm(const matrix<T>& x, const Weight& weight, double epsilon,
                                 column<T>& inverse) {
  inverse =
      ((x.rowwise().squaredNorm() / static_cast<T>(x.cols())).array() + static_cast<T>(epsilon))
          .rsqrt()
          .matrix();
  return (x.array().colwise() * inverse.array()).rowwise() * weight.row(0).array();
}

/// dx, and the gradient of the weight added to `dweight`.
template <class T, class Weight, class Gradient>
[[nodiscard]] matrix<T> rms_norm_backward(const matrix<T>& dy, const matrix<T>& x,
                                          const Weight& weight, const column<T>& inverse,
                                          Gradient&& dweight) {
  const matrix<T> normal = x.array().colwise() * inverse.array();
  dweight.row(0) += (dy.array() * normal.array()).matrix().colwise().sum();
  const matrix<T> scaled = dy.array().rowwise() * weight.row(0).array();
  const column<T> along =
      (scaled.array() * normal.array()).matrix().rowwise().sum() / static_cast<T>(x.cols());
  return (scaled.array() - normal.array().colwise() * along.array()).colwise() * inverse.array();
}

/// silu(gate) * up.
template <class T>
[[nodiscard]] matrix<T> swiglu(const matrix<T>& gate, const matrix<T>& up) {
  return gate.array() / (T{1} + (-gate.array()).exp()) * up.array();
}

/// dgate and dup, in the places of `gate` and `up`.
template <class T>
void swiglu_backward(const matrix<T>& dy, matrix<T>& gate, matrix<T>& up) {
  const matrix<T> sigmoid = (T{1} + (-gate.array()).exp()).inverse();
  const matrix<T> dup = dy.array() * gate.array() * sigmoid.array();
  gate =
      dy.array() * up.array() * sigmoid.array() * (T{1} + gate.array() * (T{1} - sigmoid.array()));
  up = dup;
}

}  // namespace megatron_style
