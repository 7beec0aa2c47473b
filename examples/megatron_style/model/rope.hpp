// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tensor.hpp"

#include <cmath>

namespace megatron_style {

/// Rotary embedding from its definition, for rows that are one sequence from its begin: pairs
/// (i, i + dim/2) of each head turn by position * base^(-2i/dim), or back (the gradient).
template <class T, class Rows>
void turn_sequence(Rows&& x, Eigen::Index dim, double base, bool back) {
  const Eigen::Index half = dim / 2;
  for (Eigen::Index i = 0; i < half; ++i) {
    const double frequency =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    for (Eigen::Index row = 0; row < x.rows(); ++row) {
      const double angle = static_cast<double>(row) * frequency;
      const T cosine = static_cast<T>(std::cos(angle));
      const T sine = static_cast<T>(back ? -std::sin(angle) : std::sin(angle));
      for (Eigen::Index head = 0; head < x.cols(); head += dim) {
        const T a = x(row, head + i);
        const T b = x(row, head + half + i);
        x(row, head + i) = a * cosine - b * sine;
        x(row, head + half + i) = b * cosine + a * sine;
      }
    }
  }
}

}  // namespace megatron_style
