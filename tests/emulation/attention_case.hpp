// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "emulation/cuda_kernel.hpp"
#include "support/bf16_attention.hpp"
#include "support/dense_attention.hpp"
#include "support/local_ring.hpp"
#include "support/random.hpp"

#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/cpu/attention_rows.hpp>
#include <dyncp/thd/ring_steps.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace dyncp_test {

/// Operands of one call, rows apart; what no segment names is NaN in the inputs and `mark` in the
/// outputs, to which gradients are added.
template <class T>
struct attention_case {
  static constexpr float mark = 0.5F;

  dyncp::attention_shape shape;
  dyncp::attention_mask mask;
  std::vector<dyncp::attention_segment> segments;
  local_tensor<T> q, k, v, dout;
  local_tensor<float> out, lse, delta, dq, dk, dv;

  attention_case(const dyncp::attention_shape& s, dyncp::attention_mask m,
                 std::vector<dyncp::attention_segment> named, std::uint64_t seed,
                 double size = 1.0)
      : shape(s), mask(m), segments(std::move(named)) {
    std::int64_t q_rows = 1;
    std::int64_t kv_rows = 1;
    for (const auto& g : segments) {
      q_rows = std::max<std::int64_t>(q_rows, g.q_row + g.q_rows + 2);
      kv_rows = std::max<std::int64_t>(kv_rows, g.kv_row + g.kv_rows + 1);
    }
    const T nan = not_a_number<T>();
    q = {q_rows, s.q_heads, s.qk_dim, nan, 5};
    k = {kv_rows, s.kv_heads, s.qk_dim, nan, 3};
    v = {kv_rows, s.kv_heads, s.v_dim, nan, 0};
    dout = {q_rows, s.q_heads, s.v_dim, nan, 1};
    out = {q_rows, s.q_heads, s.v_dim, mark, 2};
    lse = {q_rows, s.q_heads, 1, mark};
    delta = {q_rows, s.q_heads, 1, std::numeric_limits<float>::quiet_NaN()};
    dq = {q_rows, s.q_heads, s.qk_dim, mark, 7};
    dk = {kv_rows, s.kv_heads, s.qk_dim, mark};
    dv = {kv_rows, s.kv_heads, s.v_dim, mark, 1};
    random rng(seed);
    const auto fill = [&](auto& tensor, std::int64_t first, std::int64_t rows, double scale) {
      for (std::int64_t r = first; r < first + rows; ++r) {
        for (std::int64_t c = 0; c < tensor.heads * tensor.dim; ++c) {
          tensor.at(r, 0, c) = from_double<T>(scale * (2 * rng.unit() - 1));
        }
      }
    };
    for (const auto& g : segments) {
      fill(q, g.q_row, g.q_rows, size);
      fill(dout, g.q_row, g.q_rows, 1);
      fill(k, g.kv_row, g.kv_rows, size);
      fill(v, g.kv_row, g.kv_rows, 1);
    }
  }

  /// Forward, delta on the CPU, backward.
  template <class Kernel>
  void run(Kernel& kernel) {
    kernel.template forward<T>(shape, mask, segments, {q.view(), k.view(), v.view()},
                               {out.view(), lse.view()});
    dyncp::cpu::attention_delta<T, float>(shape, segments, out.view(), dout.view(), delta.view());
    kernel.template backward<T>(shape, mask, segments,
                                {q.view(), k.view(), v.view(), dout.view(), lse.view(),
                                 delta.view(), dq.view(), dk.view(), dv.view()});
  }

  /// True if rows that no segment names are as they were.
  [[nodiscard]] bool others_untouched() const {
    const auto named = [&](std::int64_t row, bool query) {
      return std::any_of(segments.begin(), segments.end(), [&](const auto& g) {
        const std::int64_t first = query ? g.q_row : g.kv_row;
        return row >= first && row < first + (query ? g.q_rows : g.kv_rows);
      });
    };
    const auto same = [&](const local_tensor<float>& tensor, bool query) {
      for (std::int64_t r = 0; r < tensor.rows; ++r) {
        const std::int64_t used = named(r, query) ? tensor.heads * tensor.dim : 0;
        for (std::int64_t c = used; c < tensor.stride; ++c) {
          if (tensor.values[static_cast<std::size_t>(r * tensor.stride + c)] != mark) return false;
        }
      }
      return true;
    };
    return same(out, true) && same(lse, true) && same(dq, true) && same(dk, false) &&
           same(dv, false);
  }
};

/// Errors of out, lse, dq, dk, dv against dense attention in double, all segments as one vector:
/// those of the kernel, outputs rounded to bfloat16 as they are handed out, and those of attention
/// done in bfloat16 without a fused kernel.
struct case_errors {
  std::array<double, 5> kernel{};
  std::array<double, 5> plain{};
};
inline constexpr std::array<const char*, 5> case_fields = {"out", "lse", "dq", "dk", "dv"};

template <class T>
case_errors errors_of_case(const attention_case<T>& c, bool rounded = true) {
  const auto rows_of = [](const auto& from, std::int64_t first, std::int64_t rows, double minus) {
    dense_tensor to(static_cast<std::size_t>(rows), static_cast<std::size_t>(from.heads),
                    static_cast<std::size_t>(from.dim));
    std::size_t i = 0;
    for (std::int64_t r = first; r < first + rows; ++r) {
      for (std::int64_t x = 0; x < from.heads * from.dim; ++x) {
        to.values[i++] = as_double(from.at(r, 0, x)) - minus;
      }
    }
    return to;
  };
  std::array<std::vector<double>, 5> got, plain, want;
  const auto append = [](std::vector<double>& to, const dense_tensor& from) {
    to.insert(to.end(), from.values.begin(), from.values.end());
  };
  const double mark = attention_case<T>::mark;
  const bool causal = c.mask == dyncp::attention_mask::causal;
  for (const auto& g : c.segments) {
    const auto q = rows_of(c.q, g.q_row, g.q_rows, 0);
    const auto k = rows_of(c.k, g.kv_row, g.kv_rows, 0);
    const auto v = rows_of(c.v, g.kv_row, g.kv_rows, 0);
    const auto dout = rows_of(c.dout, g.q_row, g.q_rows, 0);
    const auto exact = dense_attention(q, k, v, dout, c.shape.scale, causal);
    const auto half = bf16_attention(q, k, v, dout, c.shape.scale, causal);
    const dense_tensor* const exact_fields[] = {&exact.out, &exact.lse, &exact.dq, &exact.dk,
                                                &exact.dv};
    const dense_tensor* const half_fields[] = {&half.out, &half.lse, &half.dq, &half.dk, &half.dv};
    const dense_tensor kernel_fields[] = {
        rows_of(c.out, g.q_row, g.q_rows, 0), rows_of(c.lse, g.q_row, g.q_rows, 0),
        rows_of(c.dq, g.q_row, g.q_rows, mark), rows_of(c.dk, g.kv_row, g.kv_rows, mark),
        rows_of(c.dv, g.kv_row, g.kv_rows, mark)};
    for (std::size_t f = 0; f < 5; ++f) {
      append(want[f], *exact_fields[f]);
      append(plain[f], *half_fields[f]);
      append(got[f], rounded && f != 1 ? round_bf16(kernel_fields[f]) : kernel_fields[f]);
    }
  }
  case_errors e;
  for (std::size_t f = 0; f < 5; ++f) {
    e.kernel[f] = relative_error(got[f], want[f]);
    e.plain[f] = relative_error(plain[f], want[f]);
  }
  return e;
}

/// The rule for kernels: at most twice the error of a plain computation in bfloat16. float16 has 8
/// times its precision, which the rule then asks for a half of.
template <class T>
void check_rule(const attention_case<T>& c) {
  constexpr bool half = std::is_same_v<T, dyncp::float16>;
  const case_errors e = errors_of_case(c, !half);
  for (std::size_t f = 0; f < 5; ++f) {
    const double limit = (half ? 0.5 : 2.0) * e.plain[f];
    // lse is float on both sides, and exact to rounding where there is one key.
    const double floor = f == 1 ? 1e-6 : 0.0;
    CHECK_MESSAGE(e.kernel[f] <= std::max(limit, floor),
                  case_fields[f] << ": " << e.kernel[f] << " against " << e.plain[f]);
  }
  CHECK(c.others_untouched());
}

}  // namespace dyncp_test
