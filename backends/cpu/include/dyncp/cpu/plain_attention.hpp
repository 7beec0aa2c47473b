// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/config.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/ring_steps.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace dyncp {
inline namespace v0 {
namespace cpu {

/// Attention as it is defined, pair by pair, in the accumulator type: what the other kernels are
/// measured by. Its order of additions is that of the keys and queries.
///
/// Thread safety: stateless. Determinism: bit for bit. Complexity: pairs * (qk_dim + v_dim).
class plain_attention {
 public:
  /// Writes the partial of the query rows of `segments`; all other rows are left alone.
  ///
  /// Under the causal mask query row i of a segment sees its keys 0..i. Keys outside the segment,
  /// or masked, are never read. Requires q_rows == kv_rows under the causal mask; segments do not
  /// share query rows.
  template <class T>
  void forward(const attention_shape& shape, attention_mask mask,
               std::span<const attention_segment> segments, const attention_operands<T>& in,
               const attention_partial<T>& out) const {
    using acc = accumulator_t<T>;
    for (const attention_segment& segment : segments) {
      DYNCP_ASSERT(mask == attention_mask::full || segment.q_rows == segment.kv_rows);
      for (std::int32_t head = 0; head < shape.q_heads; ++head) {
        for (std::int32_t i = 0; i < segment.q_rows; ++i) {
          const std::int64_t row = segment.q_row + i;
          const std::int32_t keys = mask == attention_mask::causal ? i + 1 : segment.kv_rows;
          const row_context<T> context{shape, in.q, in.k, head, row, segment.kv_row};
          acc* const o = out.out.at(row, head, shape.v_dim);
          for (std::int32_t c = 0; c < shape.v_dim; ++c) o[c] = acc(0);

          acc largest = -std::numeric_limits<acc>::infinity();
          for (std::int32_t j = 0; j < keys; ++j) {
            const acc s = context.score(j);
            if (s > largest || std::isnan(s)) largest = s;
          }
          acc* const lse = out.lse.at(row, head, 1);
          if (largest == -std::numeric_limits<acc>::infinity()) {
            *lse = largest;
            continue;
          }
          acc sum = 0;
          for (std::int32_t j = 0; j < keys; ++j) {
            const acc p = std::exp(context.score(j) - largest);
            if (p == acc(0)) continue;
            sum += p;
            const T* const v = in.v.at(segment.kv_row + j, head / shape.group(), shape.v_dim);
            for (std::int32_t c = 0; c < shape.v_dim; ++c) o[c] += p * static_cast<acc>(v[c]);
          }
          for (std::int32_t c = 0; c < shape.v_dim; ++c) o[c] /= sum;
          *lse = largest + std::log(sum);
        }
      }
    }
  }

  /// Adds the gradients of `segments` to dq, dk and dv. Requirements as for `forward`.
  ///
  /// With P_ij = exp(scale q_i k_j - lse_i) and dS_ij = P_ij (dout_i v_j - delta_i):
  /// dv_j += P_ij dout_i, dq_i += scale dS_ij k_j, dk_j += scale dS_ij q_i. Rows whose lse is -inf
  /// contribute nothing.
  template <class T>
  void backward(const attention_shape& shape, attention_mask mask,
                std::span<const attention_segment> segments,
                const attention_gradients<T>& io) const {
    using acc = accumulator_t<T>;
    const acc scale = static_cast<acc>(shape.scale);
    for (const attention_segment& segment : segments) {
      DYNCP_ASSERT(mask == attention_mask::full || segment.q_rows == segment.kv_rows);
      for (std::int32_t head = 0; head < shape.q_heads; ++head) {
        const std::int32_t kv_head = head / shape.group();
        for (std::int32_t i = 0; i < segment.q_rows; ++i) {
          const std::int64_t row = segment.q_row + i;
          const std::int32_t keys = mask == attention_mask::causal ? i + 1 : segment.kv_rows;
          const row_context<T> context{shape, io.q, io.k, head, row, segment.kv_row};
          const acc lse = *io.lse.at(row, head, 1);
          if (lse == -std::numeric_limits<acc>::infinity()) continue;
          const acc delta = *io.delta.at(row, head, 1);
          const T* const q = io.q.at(row, head, shape.qk_dim);
          const T* const dout = io.dout.at(row, head, shape.v_dim);
          acc* const dq = io.dq.at(row, head, shape.qk_dim);
          for (std::int32_t j = 0; j < keys; ++j) {
            const acc p = std::exp(context.score(j) - lse);
            if (p == acc(0)) continue;
            const std::int64_t key = segment.kv_row + j;
            const T* const k = io.k.at(key, kv_head, shape.qk_dim);
            const T* const v = io.v.at(key, kv_head, shape.v_dim);
            acc* const dk = io.dk.at(key, kv_head, shape.qk_dim);
            acc* const dv = io.dv.at(key, kv_head, shape.v_dim);
            acc dp = 0;
            for (std::int32_t c = 0; c < shape.v_dim; ++c) {
              dp += static_cast<acc>(dout[c]) * static_cast<acc>(v[c]);
              dv[c] += p * static_cast<acc>(dout[c]);
            }
            const acc ds = scale * p * (dp - delta);
            for (std::int32_t c = 0; c < shape.qk_dim; ++c) {
              dq[c] += ds * static_cast<acc>(k[c]);
              dk[c] += ds * static_cast<acc>(q[c]);
            }
          }
        }
      }
    }
  }

 private:
  /// The scores of one query row and head.
  template <class T>
  struct row_context {
    const attention_shape& shape;
    thd_view<const T> q;
    thd_view<const T> k;
    std::int32_t head;
    std::int64_t row;
    std::int64_t kv_row;

    [[nodiscard]] accumulator_t<T> score(std::int32_t key) const noexcept {
      using acc = accumulator_t<T>;
      const T* const a = q.at(row, head, shape.qk_dim);
      const T* const b = k.at(kv_row + key, head / shape.group(), shape.qk_dim);
      acc sum = 0;
      for (std::int32_t c = 0; c < shape.qk_dim; ++c) {
        sum += static_cast<acc>(a[c]) * static_cast<acc>(b[c]);
      }
      return static_cast<acc>(shape.scale) * sum;
    }
  };
};

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
