// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention as a framework without a fused kernel does it in bfloat16: every matrix (scores,
// weights, output, their gradients) is rounded before the next product, sums are kept in float.
// Its error is the yardstick for kernels: they may have at most twice of it.

#include "support/dense_tensor.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace dyncp_test {

/// Nearest bfloat16, ties to even; for finite numbers.
inline double round_bf16(double x) {
  const float f = static_cast<float>(x);
  std::uint32_t word = 0;
  std::memcpy(&word, &f, sizeof word);
  word = (word + 0x7fffU + ((word >> 16) & 1U)) & 0xffff0000U;
  float rounded = 0;
  std::memcpy(&rounded, &word, sizeof word);
  return static_cast<double>(rounded);
}

inline dense_tensor round_bf16(dense_tensor t) {
  for (double& x : t.values) x = round_bf16(x);
  return t;
}

/// Arguments as `dense_attention`; inputs must be bfloat16 already.
inline dense_attention_result bf16_attention(const dense_tensor& q, const dense_tensor& k,
                                             const dense_tensor& v, const dense_tensor& dout,
                                             double scale, bool causal) {
  const std::size_t group = q.heads / k.heads;
  dense_attention_result r{dense_tensor(q.rows, q.heads, v.dim), dense_tensor(q.rows, q.heads, 1),
                           dense_tensor(q.rows, q.heads, q.dim),
                           dense_tensor(k.rows, k.heads, k.dim),
                           dense_tensor(v.rows, v.heads, v.dim)};
  const auto scale_f = static_cast<float>(scale);
  for (std::size_t h = 0; h < q.heads; ++h) {
    const std::size_t g = h / group;
    for (std::size_t i = 0; i < q.rows; ++i) {
      const std::size_t keys = causal ? (i + 1 < k.rows ? i + 1 : k.rows) : k.rows;
      r.lse.at(i, h, 0) = -std::numeric_limits<double>::infinity();
      if (keys == 0) continue;
      std::vector<float> s(keys), p(keys), dp(keys);
      float largest = -std::numeric_limits<float>::infinity();
      for (std::size_t j = 0; j < keys; ++j) {
        float sum = 0;
        for (std::size_t c = 0; c < q.dim; ++c) {
          sum += static_cast<float>(q.at(i, h, c)) * static_cast<float>(k.at(j, g, c));
        }
        s[j] = static_cast<float>(round_bf16(static_cast<double>(scale_f * sum)));
        largest = s[j] > largest ? s[j] : largest;
      }
      float total = 0;
      for (const float x : s) total += std::exp(x - largest);
      r.lse.at(i, h, 0) = static_cast<double>(largest + std::log(total));
      float mean = 0;
      for (std::size_t j = 0; j < keys; ++j) {
        p[j] =
            static_cast<float>(round_bf16(static_cast<double>(std::exp(s[j] - largest) / total)));
        float sum = 0;
        for (std::size_t c = 0; c < v.dim; ++c) {
          sum += static_cast<float>(dout.at(i, h, c)) * static_cast<float>(v.at(j, g, c));
        }
        dp[j] = static_cast<float>(round_bf16(static_cast<double>(sum)));
        mean += p[j] * dp[j];
      }
      for (std::size_t j = 0; j < keys; ++j) {
        const double weight = static_cast<double>(p[j]);
        const double ds = round_bf16(static_cast<double>(p[j] * (dp[j] - mean))) * scale;
        for (std::size_t c = 0; c < v.dim; ++c) {
          r.out.at(i, h, c) += weight * v.at(j, g, c);
          r.dv.at(j, g, c) += weight * dout.at(i, h, c);
        }
        for (std::size_t c = 0; c < q.dim; ++c) {
          r.dq.at(i, h, c) += ds * k.at(j, g, c);
          r.dk.at(j, g, c) += ds * q.at(i, h, c);
        }
      }
    }
  }
  r.out = round_bf16(std::move(r.out));
  r.dq = round_bf16(std::move(r.dq));
  r.dk = round_bf16(std::move(r.dk));
  r.dv = round_bf16(std::move(r.dv));
  return r;
}

}  // namespace dyncp_test
