// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dyncp_test {

/// Attention over one whole sequence in double, written from its definition: the oracle of every
/// ring. Shares no code with the library's kernels.
struct dense_attention {
  // inputs, (length, heads, dim)
  std::vector<double> q, k, v, dout;
  // results
  std::vector<double> out, lse, dq, dk, dv;
  // What the sums of each result come to without signs, at most: the scale of rounding errors
  // where the sums cancel.
  double out_size = 0, dq_size = 0, dk_size = 0, dv_size = 0;
  double largest_score = 0;

  static std::size_t at(std::int64_t row, std::int64_t heads, std::int64_t head, std::int64_t dim,
                        std::int64_t c) {
    return static_cast<std::size_t>((row * heads + head) * dim + c);
  }

  void run(const dyncp::attention_shape& s, dyncp::attention_mask mask, std::int64_t length,
           std::int64_t kv_length) {
    out.assign(static_cast<std::size_t>(length * s.q_heads * s.v_dim), 0);
    lse.assign(static_cast<std::size_t>(length * s.q_heads), 0);
    dq.assign(q.size(), 0);
    dk.assign(k.size(), 0);
    dv.assign(v.size(), 0);
    const auto largest = [](const std::vector<double>& values) {
      double top = 0;
      for (double x : values) top = std::fmax(top, std::fabs(x));
      return top;
    };
    out_size = dv_size = dq_size = dk_size = largest_score = 0;
    std::vector<double> p(static_cast<std::size_t>(kv_length));
    std::vector<double> dp(static_cast<std::size_t>(kv_length));
    const std::int64_t group = s.q_heads / s.kv_heads;
    const double v_top = largest(v);
    const double dout_top = largest(dout);
    out_size = v_top;
    dq_size = 2 * std::fabs(s.scale) * s.v_dim * v_top * dout_top * largest(k);
    std::vector<double> seen(static_cast<std::size_t>(kv_length), 0);  // sums of p over the queries
    for (std::int64_t h = 0; h < s.q_heads; ++h) {
      const std::int64_t g = h / group;
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t keys = mask == dyncp::attention_mask::causal ? i + 1 : kv_length;
        double top = -std::numeric_limits<double>::infinity();
        for (std::int64_t j = 0; j < keys; ++j) {
          double dot = 0;
          for (std::int64_t c = 0; c < s.qk_dim; ++c) {
            dot += q[at(i, s.q_heads, h, s.qk_dim, c)] * k[at(j, s.kv_heads, g, s.qk_dim, c)];
          }
          p[static_cast<std::size_t>(j)] = s.scale * dot;
          largest_score = std::fmax(largest_score, std::fabs(s.scale * dot));
          top = std::fmax(top, s.scale * dot);
        }
        double sum = 0;
        for (std::int64_t j = 0; j < keys; ++j)
          sum += std::exp(p[static_cast<std::size_t>(j)] - top);
        const double l = keys == 0 ? -std::numeric_limits<double>::infinity() : top + std::log(sum);
        lse[at(i, s.q_heads, h, 1, 0)] = l;
        for (std::int64_t j = 0; j < keys; ++j) {
          double& weight = p[static_cast<std::size_t>(j)];
          weight = std::exp(weight - top) / sum;
          for (std::int64_t c = 0; c < s.v_dim; ++c) {
            out[at(i, s.q_heads, h, s.v_dim, c)] += weight * v[at(j, s.kv_heads, g, s.v_dim, c)];
          }
        }
        for (std::int64_t j = 0; j < keys; ++j) {
          seen[static_cast<std::size_t>(j)] += p[static_cast<std::size_t>(j)];
        }
        double dot = 0;  // sum_j p_j dp_j
        for (std::int64_t j = 0; j < keys; ++j) {
          double sum_v = 0;
          for (std::int64_t c = 0; c < s.v_dim; ++c) {
            const double g_out = dout[at(i, s.q_heads, h, s.v_dim, c)];
            sum_v += g_out * v[at(j, s.kv_heads, g, s.v_dim, c)];
            dv[at(j, s.kv_heads, g, s.v_dim, c)] += p[static_cast<std::size_t>(j)] * g_out;
          }
          dp[static_cast<std::size_t>(j)] = sum_v;
          dot += p[static_cast<std::size_t>(j)] * sum_v;
        }
        for (std::int64_t j = 0; j < keys; ++j) {
          const double ds =
              s.scale * p[static_cast<std::size_t>(j)] * (dp[static_cast<std::size_t>(j)] - dot);
          for (std::int64_t c = 0; c < s.qk_dim; ++c) {
            dq[at(i, s.q_heads, h, s.qk_dim, c)] += ds * k[at(j, s.kv_heads, g, s.qk_dim, c)];
            dk[at(j, s.kv_heads, g, s.qk_dim, c)] += ds * q[at(i, s.q_heads, h, s.qk_dim, c)];
          }
        }
      }
    }
    dv_size = largest(seen) * dout_top;
    dk_size = 2 * std::fabs(s.scale) * dv_size * s.v_dim * v_top * largest(q);
  }
};

}  // namespace dyncp_test
