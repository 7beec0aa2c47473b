// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Eigen/Core>

namespace megatron_style {

// Rows are tokens, as in THD layout: row-major, so that a matrix is a packed tensor.
template <class T>
using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using column = Eigen::Matrix<T, Eigen::Dynamic, 1>;
template <class T>
using matrix_map = Eigen::Map<matrix<T>>;
template <class T>
using const_matrix_map = Eigen::Map<const matrix<T>>;

}  // namespace megatron_style
