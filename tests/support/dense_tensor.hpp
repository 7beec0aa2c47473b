// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the references of attention take and return.

#include <cstddef>
#include <vector>

namespace dyncp_test {

/// (rows, heads, dim), in double.
struct dense_tensor {
  std::size_t rows = 0;
  std::size_t heads = 0;
  std::size_t dim = 0;
  std::vector<double> values;

  dense_tensor() = default;
  dense_tensor(std::size_t r, std::size_t h, std::size_t d)
      : rows(r), heads(h), dim(d), values(r * h * d, 0.0) {}

  double& at(std::size_t r, std::size_t h, std::size_t c) {
    return values[(r * heads + h) * dim + c];
  }
  double at(std::size_t r, std::size_t h, std::size_t c) const {
    return values[(r * heads + h) * dim + c];
  }
};

struct dense_attention_result {
  dense_tensor out;  // (queries, q_heads, v_dim)
  dense_tensor lse;  // (queries, q_heads, 1)
  dense_tensor dq;
  dense_tensor dk;
  dense_tensor dv;
};

}  // namespace dyncp_test
