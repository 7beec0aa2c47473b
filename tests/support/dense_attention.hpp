// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention over whole sequences by its definition, in double, with the whole matrix of weights in
// memory: the oracle for kernels and rings. Nothing here includes the library, and the gradient
// goes through the Jacobian of the softmax instead of the row sums (delta) that kernels use.

#include "support/dense_tensor.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace dyncp_test {

/// One sequence: q and dout of the queries, k and v of the keys. Under a causal mask query i sees
/// keys 0..i. A query without keys gives output 0, log-sum-exp -inf and no gradient.
inline dense_attention_result dense_attention(const dense_tensor& q, const dense_tensor& k,
                                              const dense_tensor& v, const dense_tensor& dout,
                                              double scale, bool causal) {
  const std::size_t group = q.heads / k.heads;
  dense_attention_result r{dense_tensor(q.rows, q.heads, v.dim), dense_tensor(q.rows, q.heads, 1),
                           dense_tensor(q.rows, q.heads, q.dim),
                           dense_tensor(k.rows, k.heads, k.dim),
                           dense_tensor(v.rows, v.heads, v.dim)};
  for (std::size_t h = 0; h < q.heads; ++h) {
    const std::size_t g = h / group;
    for (std::size_t i = 0; i < q.rows; ++i) {
      const std::size_t keys = causal ? (i + 1 < k.rows ? i + 1 : k.rows) : k.rows;
      r.lse.at(i, h, 0) = -std::numeric_limits<double>::infinity();
      if (keys == 0) continue;
      std::vector<double> s(keys, 0.0);
      double largest = -std::numeric_limits<double>::infinity();
      for (std::size_t j = 0; j < keys; ++j) {
        for (std::size_t c = 0; c < q.dim; ++c) s[j] += q.at(i, h, c) * k.at(j, g, c);
        s[j] *= scale;
        if (s[j] > largest) largest = s[j];
      }
      double sum = 0;
      for (const double x : s) sum += std::exp(x - largest);
      r.lse.at(i, h, 0) = largest + std::log(sum);
      std::vector<double> p(keys);
      for (std::size_t j = 0; j < keys; ++j) p[j] = std::exp(s[j] - largest) / sum;
      std::vector<double> dp(keys, 0.0);
      for (std::size_t j = 0; j < keys; ++j) {
        for (std::size_t c = 0; c < v.dim; ++c) {
          r.out.at(i, h, c) += p[j] * v.at(j, g, c);
          dp[j] += dout.at(i, h, c) * v.at(j, g, c);
          r.dv.at(j, g, c) += p[j] * dout.at(i, h, c);
        }
      }
      double mean = 0;  // of dp under p
      for (std::size_t j = 0; j < keys; ++j) mean += p[j] * dp[j];
      for (std::size_t j = 0; j < keys; ++j) {
        const double ds = p[j] * (dp[j] - mean) * scale;
        for (std::size_t c = 0; c < q.dim; ++c) {
          r.dq.at(i, h, c) += ds * k.at(j, g, c);
          r.dk.at(j, g, c) += ds * q.at(i, h, c);
        }
      }
    }
  }
  return r;
}

/// The root mean square of a - b over that of b, or over 0.01 where b is smaller: gradients of a
/// sequence of one token are zero but for rounding. NaN if anything is NaN.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const bool same = a[i] == b[i];  // -inf equals -inf, and its difference is none
    if (!same) difference += (a[i] - b[i]) * (a[i] - b[i]);
    if (!same || std::isfinite(b[i])) size += b[i] * b[i];
  }
  if (difference == 0) return 0;
  const double floor = 1e-4 * static_cast<double>(b.size());
  return std::sqrt(difference / (size < floor ? floor : size));
}

}  // namespace dyncp_test
