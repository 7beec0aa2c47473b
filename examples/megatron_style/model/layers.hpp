// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensor.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace megatron_style {

/// y = x * inverse * weight by rows, inverse = 1 / sqrt(mean(x^2) + epsilon), which is kept.
template <class T, class Weight>
[[nodiscard]] matrix<T> rms_norm(const matrix<T>& x, const Weight& weight, double epsilon,
                                 column<T>& inverse) {
  inverse = ((x.rowwise().squaredNorm() / static_cast<T>(x.cols())).array() +
             static_cast<T>(epsilon)).rsqrt().matrix();
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

/// Rotary embedding: pairs (i, i + dim/2) of each head turn by position * base^(-2i/dim).
template <class T>
class rope {
 public:
  rope(std::int32_t head_dim, double base) : half_(head_dim / 2), base_(base) {}

  /// Turns all heads of `x` (rows, heads * dim) by their positions, or back (the gradient).
  template <class Matrix>
  void turn(Matrix&& x, std::span<const std::int32_t> positions, bool back) {
    const Eigen::Index dim = 2 * half_;
    for (std::size_t row = 0; row < positions.size(); ++row) {
      const T* const angle = angles_of(positions[row]);
      T* const data = x.data() + static_cast<Eigen::Index>(row) * x.cols();
      for (Eigen::Index head = 0; head < x.cols(); head += dim) {
        for (Eigen::Index i = 0; i < half_; ++i) {
          const T a = data[head + i];
          const T b = data[head + half_ + i];
          const T cosine = angle[2 * i];
          const T sine = back ? -angle[2 * i + 1] : angle[2 * i + 1];
          data[head + i] = a * cosine - b * sine;
          data[head + half_ + i] = b * cosine + a * sine;
        }
      }
    }
  }

 private:
  const T* angles_of(std::int32_t position) {
    const std::size_t width = static_cast<std::size_t>(2 * half_);
    for (std::size_t p = table_.size() / width; p <= static_cast<std::size_t>(position); ++p) {
      for (Eigen::Index i = 0; i < half_; ++i) {
        const double angle = static_cast<double>(p) *
                             std::pow(base_, -static_cast<double>(i) / static_cast<double>(half_));
        table_.push_back(static_cast<T>(std::cos(angle)));
        table_.push_back(static_cast<T>(std::sin(angle)));
      }
    }
    return table_.data() + static_cast<std::size_t>(position) * width;
  }

  Eigen::Index half_;
  double base_;
  std::vector<T> table_;  // (positions, half, 2): cosine and sine
};

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
  gate = dy.array() * up.array() * sigmoid.array() *
         (T{1} + gate.array() * (T{1} - sigmoid.array()));
  up = dup;
}

}  // namespace megatron_style
