// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace dyncp {
inline namespace v0 {
namespace cpu {

// The row-wise kernels around attention. All are stateless, deterministic bit for bit, linear in
// what they touch, and allocate nothing.

/// Sets rows [0, rows) to the partial over no keys: output 0, log-sum-exp -inf.
template <class T>
void clear_partial(const attention_shape& shape, std::int64_t rows,
                   const attention_partial<T>& out) {
  using acc = accumulator_t<T>;
  const std::int64_t width = std::int64_t{shape.q_heads} * shape.v_dim;
  for (std::int64_t row = 0; row < rows; ++row) {
    acc* const o = out.out.at(row, 0, 0);
    for (std::int64_t c = 0; c < width; ++c) o[c] = acc(0);
    acc* const lse = out.lse.at(row, 0, 0);
    for (std::int32_t h = 0; h < shape.q_heads; ++h) {
      lse[h] = -std::numeric_limits<acc>::infinity();
    }
  }
}

/// Merges `part` into `total` on the query rows of `segments`: the partial over the keys of both.
///
/// lse = m + log1p(exp(min - m)) with m the larger; outputs are weighted by exp(lse_i - lse). The
/// smaller exponent alone is taken, so nothing overflows; -inf is never subtracted from -inf, and
/// an output of weight zero is not multiplied.
template <class T>
void merge_partials(const attention_shape& shape, std::span<const attention_segment> segments,
                    const attention_partial<T>& part, const attention_partial<T>& total) {
  using acc = accumulator_t<T>;
  constexpr acc none = -std::numeric_limits<acc>::infinity();
  for (const attention_segment& segment : segments) {
    if (segment.kv_rows == 0) continue;
    for (std::int32_t i = 0; i < segment.q_rows; ++i) {
      const std::int64_t row = segment.q_row + i;
      for (std::int32_t head = 0; head < shape.q_heads; ++head) {
        const acc a = *total.lse.at(row, head, 1);
        const acc b = *part.lse.at(row, head, 1);
        if (b == none) continue;
        acc* const to = total.out.at(row, head, shape.v_dim);
        const acc* const from = part.out.at(row, head, shape.v_dim);
        if (a == none) {
          *total.lse.at(row, head, 1) = b;
          for (std::int32_t c = 0; c < shape.v_dim; ++c) to[c] = from[c];
          continue;
        }
        const acc larger = a > b ? a : b;
        const acc smaller = a > b ? b : a;
        const acc lse = larger + std::log1p(std::exp(smaller - larger));
        const acc weight_a = std::exp(a - lse);
        const acc weight_b = std::exp(b - lse);
        *total.lse.at(row, head, 1) = lse;
        if (weight_b == acc(0)) {
          for (std::int32_t c = 0; c < shape.v_dim; ++c) to[c] *= weight_a;
        } else if (weight_a == acc(0)) {
          for (std::int32_t c = 0; c < shape.v_dim; ++c) to[c] = weight_b * from[c];
        } else {
          for (std::int32_t c = 0; c < shape.v_dim; ++c) {
            to[c] = weight_a * to[c] + weight_b * from[c];
          }
        }
      }
    }
  }
}

/// delta_i = sum over the head of dout_i * out_i, with the final output, on the query rows of
/// `segments`; a segment per sequence with all of its query rows covers every token.
///
/// `Out` is the element type or its accumulator: what the forward pass saved.
template <class T, class Out>
void attention_delta(const attention_shape& shape, std::span<const attention_segment> segments,
                     thd_view<const Out> out, thd_view<const T> dout,
                     thd_view<accumulator_t<T>> delta) {
  using acc = accumulator_t<T>;
  for (const attention_segment& segment : segments) {
    for (std::int32_t i = 0; i < segment.q_rows; ++i) {
      const std::int64_t row = segment.q_row + i;
      for (std::int32_t head = 0; head < shape.q_heads; ++head) {
        const Out* const o = out.at(row, head, shape.v_dim);
        const T* const g = dout.at(row, head, shape.v_dim);
        acc sum = 0;
        for (std::int32_t c = 0; c < shape.v_dim; ++c) {
          sum += static_cast<acc>(g[c]) * static_cast<acc>(o[c]);
        }
        *delta.at(row, head, 1) = sum;
      }
    }
  }
}

/// to = from, rounded to the type of `to`, on rows [0, rows) of `width` elements.
template <class To, class From>
void convert_rows(std::int64_t rows, std::int64_t width, thd_view<const From> from,
                  thd_view<To> to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const From* const a = from.at(row, 0, 0);
    To* const b = to.at(row, 0, 0);
    for (std::int64_t c = 0; c < width; ++c) b[c] = static_cast<To>(a[c]);
  }
}

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
