// SPDX-License-Identifier: Apache-2.0
// Allocation by Eigen is an assertion once it is switched off.
#define EIGEN_RUNTIME_NO_MALLOC
#include <dyncp/cpu/blocked_attention.hpp>
#include <dyncp/cpu/plain_attention.hpp>

#include "support/local_ring.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

std::int64_t allocations = 0;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr attention_mask causal = attention_mask::causal;
constexpr attention_mask full = attention_mask::full;

/// Operands of one call, each row that no segment names filled with NaN, accumulators with marks.
template <class T>
struct kernel_case {
  using acc = accumulator_t<T>;

  kernel_case(const attention_shape& s, std::int64_t q_rows, std::int64_t kv_rows,
              std::vector<attention_segment> named)
      : shape(s),
        segments(std::move(named)),
        q(q_rows, s.q_heads, s.qk_dim, not_a_number<T>(), 2),
        k(kv_rows, s.kv_heads, s.qk_dim, not_a_number<T>(), 1),
        v(kv_rows, s.kv_heads, s.v_dim, not_a_number<T>(), 3),
        dout(q_rows, s.q_heads, s.v_dim, not_a_number<T>()),
        out(q_rows, s.q_heads, s.v_dim, mark, 1),
        lse(q_rows, s.q_heads, 1, mark),
        delta(q_rows, s.q_heads, 1, not_a_number<acc>()),
        dq(q_rows, s.q_heads, s.qk_dim, mark, 4),
        dk(kv_rows, s.kv_heads, s.qk_dim, mark),
        dv(kv_rows, s.kv_heads, s.v_dim, mark, 1) {}

  void fill(std::uint64_t seed, double size = 1.0) {
    dyncp_test::random rng(seed);
    const auto fill_rows = [&](auto& tensor, std::int64_t first, std::int64_t rows) {
      for (std::int64_t r = first; r < first + rows; ++r) {
        for (std::int64_t c = 0; c < tensor.heads * tensor.dim; ++c) {
          tensor.at(r, 0, c) = from_double<T>(size * (2 * rng.unit() - 1));
        }
      }
    };
    for (const auto& s : segments) {
      fill_rows(q, s.q_row, s.q_rows);
      fill_rows(dout, s.q_row, s.q_rows);
      fill_rows(k, s.kv_row, s.kv_rows);
      fill_rows(v, s.kv_row, s.kv_rows);
    }
  }

  /// Forward, delta, backward.
  template <class Kernel>
  void run(Kernel& kernel, attention_mask mask) {
    kernel.template forward<T>(shape, mask, segments, {q.view(), k.view(), v.view()},
                               {out.view(), lse.view()});
    cpu::attention_delta<T, acc>(shape, segments, out.view(), dout.view(), delta.view());
    kernel.template backward<T>(shape, mask, segments,
                                {q.view(), k.view(), v.view(), dout.view(), lse.view(),
                                 delta.view(), dq.view(), dk.view(), dv.view()});
  }

  static constexpr acc mark = acc(0.5);  // exact in every type; gradients are added to it
  attention_shape shape;
  std::vector<attention_segment> segments;
  local_tensor<T> q, k, v, dout;
  local_tensor<acc> out, lse, delta, dq, dk, dv;
};

template <class T>
dense_tensor rows_of(const local_tensor<T>& from, std::int64_t first, std::int64_t rows,
                     double minus = 0) {
  dense_tensor to(static_cast<std::size_t>(rows), static_cast<std::size_t>(from.heads),
                  static_cast<std::size_t>(from.dim));
  std::size_t i = 0;
  for (std::int64_t r = first; r < first + rows; ++r) {
    for (std::int64_t h = 0; h < from.heads; ++h) {
      for (std::int64_t c = 0; c < from.dim; ++c)
        to.values[i++] = as_double(from.at(r, h, c)) - minus;
    }
  }
  return to;
}

/// The worst relative error over the segments, each against the oracle.
template <class T>
double error_of(const kernel_case<T>& got, attention_mask mask) {
  double worst = 0;
  const double mark = as_double(kernel_case<T>::mark);
  for (const auto& s : got.segments) {
    const auto expected =
        dense_attention(rows_of(got.q, s.q_row, s.q_rows), rows_of(got.k, s.kv_row, s.kv_rows),
                        rows_of(got.v, s.kv_row, s.kv_rows), rows_of(got.dout, s.q_row, s.q_rows),
                        got.shape.scale, mask == causal);
    const double errors[] = {
        relative_error(rows_of(got.out, s.q_row, s.q_rows).values, expected.out.values),
        relative_error(rows_of(got.lse, s.q_row, s.q_rows).values, expected.lse.values),
        relative_error(rows_of(got.dq, s.q_row, s.q_rows, mark).values, expected.dq.values),
        relative_error(rows_of(got.dk, s.kv_row, s.kv_rows, mark).values, expected.dk.values),
        relative_error(rows_of(got.dv, s.kv_row, s.kv_rows, mark).values, expected.dv.values)};
    for (const double e : errors) worst = e > worst || std::isnan(e) ? e : worst;
  }
  return worst;
}

/// Rows that no segment names must be as they were.
template <class T>
bool others_untouched(const kernel_case<T>& got) {
  const auto named = [&](std::int64_t row, bool query) {
    return std::any_of(got.segments.begin(), got.segments.end(), [&](const auto& s) {
      const std::int64_t first = query ? s.q_row : s.kv_row;
      return row >= first && row < first + (query ? s.q_rows : s.kv_rows);
    });
  };
  const auto same = [&](const auto& tensor, bool query) {
    for (std::int64_t r = 0; r < tensor.rows; ++r) {
      if (named(r, query)) continue;
      for (std::int64_t c = 0; c < tensor.stride; ++c) {
        const auto x = tensor.values[static_cast<std::size_t>(r * tensor.stride + c)];
        if (x != kernel_case<T>::mark) return false;
      }
    }
    return true;
  };
  return same(got.out, true) && same(got.lse, true) && same(got.dq, true) && same(got.dk, false) &&
         same(got.dv, false);
}

template <class T, class Kernel>
void check_case(Kernel& kernel, const attention_shape& shape, attention_mask mask,
                const std::vector<attention_segment>& segments, double limit,
                std::uint64_t seed = 1) {
  std::int64_t q_rows = 3;
  std::int64_t kv_rows = 2;
  for (const auto& s : segments) {
    q_rows = std::max<std::int64_t>(q_rows, s.q_row + s.q_rows + 3);
    kv_rows = std::max<std::int64_t>(kv_rows, s.kv_row + s.kv_rows + 2);
  }
  kernel_case<T> c(shape, q_rows, kv_rows, segments);
  c.fill(seed);
  c.run(kernel, mask);
  CAPTURE(segments[0].q_rows);
  CAPTURE(segments[0].kv_rows);
  CHECK(error_of(c, mask) <= limit);
  CHECK(others_untouched(c));
}

constexpr std::int32_t around_tiles[] = {1, 2, 15, 16, 17, 33, 63, 64, 65, 80, 127, 128, 129, 200};
const attention_shape small{2, 1, 5, 3, 0.6};

/// A single head of size 1: scores are q * k.
double one_head(std::vector<double> scores, std::vector<double> values, double* lse) {
  const auto n = static_cast<std::int32_t>(scores.size());
  const double q = 1;
  double out = 0;
  const attention_segment segment{0, 1, 0, n};
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  const attention_operands<double> in{{&q, 1}, {scores.data(), 1}, {values.data(), 1}};
  double blocked_out = 0;
  double blocked_lse = 0;
  plain.forward<double>({}, full, {&segment, 1}, in, {{&out, 1}, {lse, 1}});
  blocked.forward<double>({}, full, {&segment, 1}, in, {{&blocked_out, 1}, {&blocked_lse, 1}});
  CHECK(blocked_out == doctest::Approx(out).epsilon(1e-14));
  CHECK(blocked_lse == doctest::Approx(*lse).epsilon(1e-14));
  return out;
}

}  // namespace

// Counts what the program allocates, so that kernels can be shown to allocate nothing.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

TEST_CASE("diagonal: causal over lengths around the tiles") {
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  for (const std::int32_t n : around_tiles) {
    check_case<double>(plain, small, causal, {{2, n, 1, n}}, 1e-12);
    check_case<double>(blocked, small, causal, {{2, n, 1, n}}, 1e-12);
  }
}

TEST_CASE("off the diagonal: any number of queries meets any number of keys") {
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  for (const std::int32_t q : around_tiles) {
    for (const std::int32_t kv : around_tiles) {
      if (q * kv < 2000) check_case<double>(plain, small, full, {{2, q, 1, kv}}, 1e-12);
      check_case<double>(blocked, small, full, {{2, q, 1, kv}}, 1e-12);
    }
  }
}

TEST_CASE("the four shapes of a ring on one slot of 2 x 24 rows, in one call for two sequences") {
  const std::int32_t c = 24;
  const std::vector<attention_segment> diagonal{{0, 2 * c, 0, 2 * c}, {50, 7, 50, 7}};
  const std::vector<attention_segment> front{{0, 2 * c, 0, c}, {50, 8, 50, 4}};
  const std::vector<attention_segment> back{{c, c, 0, 2 * c}, {54, 4, 50, 8}};
  const std::vector<attention_segment> all{{0, 2 * c, 0, 2 * c - 5}, {50, 7, 50, 3}};
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  check_case<double>(plain, small, causal, diagonal, 1e-12);
  check_case<double>(blocked, small, causal, diagonal, 1e-12);
  for (const auto& segments : {front, back, all}) {
    check_case<double>(plain, small, full, segments, 1e-12);
    check_case<double>(blocked, small, full, segments, 1e-12);
  }
}

TEST_CASE("grouped heads and head sizes, float") {
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  const attention_shape shapes[] = {{1, 1, 1, 1, 1.0},   {4, 4, 8, 8, 0.35},
                                    {6, 2, 16, 8, 0.25}, {8, 1, 64, 64, 0.125},
                                    {2, 2, 72, 40, 0.1}, {3, 3, 1, 17, -0.8}};
  for (const auto& shape : shapes) {
    check_case<float>(plain, shape, causal, {{0, 70, 0, 70}, {71, 20, 75, 20}}, 1e-5);
    check_case<float>(blocked, shape, causal, {{0, 70, 0, 70}, {71, 20, 75, 20}}, 1e-5);
    check_case<float>(blocked, shape, full, {{0, 70, 0, 33}, {71, 20, 75, 140}}, 1e-5);
  }
}

TEST_CASE("FA#1155, #2470, #2421, #1537: zero queries or zero keys: no work, no NaN, no division") {
  const std::vector<attention_segment> segments{
      {0, 0, 0, 0}, {0, 1, 0, 3}, {1, 0, 3, 0}, {1, 1, 3, 5}, {2, 1, 8, 0}};
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  check_case<double>(plain, small, full, segments, 1e-12);
  check_case<double>(blocked, small, full, segments, 1e-12);
}

TEST_CASE("FA#2562, #2568: a sequence without queries at head size 256") {
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  const attention_shape wide{1, 1, 256, 256, default_scale(256)};
  const std::vector<attention_segment> segments{{0, 0, 0, 0}, {0, 40, 0, 40}, {40, 0, 40, 0}};
  check_case<double>(plain, wide, causal, segments, 1e-12);
  check_case<double>(blocked, wide, causal, segments, 1e-12);
}

TEST_CASE(
    "TE#1539, Automodel#2384: an output gradient that is one row for all, as expand() makes") {
  for (const bool tiles : {false, true}) {
    kernel_case<double> c(small, 80, 80, {{0, 80, 0, 80}});
    c.fill(7);
    kernel_case<double> repeated = c;
    for (std::int64_t r = 0; r < 80; ++r) {
      for (std::int64_t h = 0; h < small.q_heads; ++h) {
        for (std::int64_t d = 0; d < small.v_dim; ++d)
          repeated.dout.at(r, h, d) = c.dout.at(0, h, d);
      }
    }
    c.dout.stride = 0;
    cpu::plain_attention plain;
    cpu::blocked_attention blocked;
    if (tiles) {
      c.run(blocked, causal);
      repeated.run(blocked, causal);
    } else {
      c.run(plain, causal);
      repeated.run(plain, causal);
    }
    CAPTURE(tiles);
    CHECK(c.dq.values == repeated.dq.values);
    CHECK(c.dk.values == repeated.dk.values);
    CHECK(c.dv.values == repeated.dv.values);
  }
}

TEST_CASE("FA#978, pytorch#134650: a row without keys has output 0 and log-sum-exp -inf") {
  kernel_case<float> c(small, 2, 1, {{0, 2, 0, 0}});
  c.fill(1);
  cpu::plain_attention plain;
  c.run(plain, full);
  for (const std::int64_t row : {0, 1}) {
    CHECK(c.lse.at(row, 0, 0) == -std::numeric_limits<float>::infinity());
    CHECK(c.out.at(row, 1, 2) == 0.0F);
  }
  kernel_case<float> d(small, 2, 1, {{0, 2, 0, 0}});
  d.fill(1);
  cpu::blocked_attention blocked;
  d.run(blocked, full);
  CHECK(d.out.values == c.out.values);
  CHECK(d.lse.values == c.lse.values);
  CHECK(d.dq.values == c.dq.values);
}

TEST_CASE("a row whose scores are all -inf is a row without keys, and adds no gradient") {
  for (const bool tiles : {false, true}) {
    kernel_case<double> c({1, 1, 1, 1, 1.0}, 2, 2, {{0, 2, 0, 2}});
    c.fill(1);
    c.q.at(0, 0, 0) = infinity;  // scores -inf; the other row stays ordinary
    c.k.at(0, 0, 0) = c.k.at(1, 0, 0) = -1;
    cpu::plain_attention plain;
    cpu::blocked_attention blocked;
    if (tiles) {
      blocked.forward<double>(c.shape, full, c.segments, {c.q.view(), c.k.view(), c.v.view()},
                              {c.out.view(), c.lse.view()});
    } else {
      plain.forward<double>(c.shape, full, c.segments, {c.q.view(), c.k.view(), c.v.view()},
                            {c.out.view(), c.lse.view()});
    }
    CHECK(c.lse.at(0, 0, 0) == -infinity);
    CHECK(c.out.at(0, 0, 0) == 0.0);
    CHECK(std::isfinite(c.lse.at(1, 0, 0)));
    c.delta.at(0, 0, 0) = nan_value;
    c.delta.at(1, 0, 0) = c.out.at(1, 0, 0) * c.dout.at(1, 0, 0);
    c.q.at(0, 0, 0) = 1;  // an infinite q would itself make the gradient of k infinite
    const attention_gradients<double> io{c.q.view(),    c.k.view(),   c.v.view(),
                                         c.dout.view(), c.lse.view(), c.delta.view(),
                                         c.dq.view(),   c.dk.view(),  c.dv.view()};
    if (tiles) {
      blocked.backward<double>(c.shape, full, c.segments, io);
    } else {
      plain.backward<double>(c.shape, full, c.segments, io);
    }
    CHECK(c.dq.at(0, 0, 0) == 0.5);
    CHECK(std::isfinite(c.dk.at(0, 0, 0)));
    CHECK(std::isfinite(c.dv.at(1, 0, 0)));
  }
}

TEST_CASE("masked keys and values may be NaN: later tokens never reach earlier rows") {
  // Query i sees keys 0..i, so NaN in token n - 1 shows in the last row alone.
  for (const std::int32_t n : {2, 9, 16, 17, 65, 130}) {
    for (const bool tiles : {false, true}) {
      kernel_case<double> c(small, n, n, {{0, n, 0, n}});
      c.fill(3);
      for (std::int64_t d = 0; d < small.qk_dim; ++d) c.k.at(n - 1, 0, d) = nan_value;
      for (std::int64_t d = 0; d < small.v_dim; ++d) c.v.at(n - 1, 0, d) = infinity;
      cpu::plain_attention plain;
      cpu::blocked_attention blocked;
      if (tiles) {
        c.run(blocked, causal);
      } else {
        c.run(plain, causal);
      }
      bool clean = true;
      for (std::int64_t row = 0; row < n - 1; ++row) {
        for (std::int64_t h = 0; h < 2; ++h) {
          clean = clean && std::isfinite(c.lse.at(row, h, 0));
          for (std::int64_t d = 0; d < small.v_dim; ++d)
            clean &= std::isfinite(c.out.at(row, h, d));
          for (std::int64_t d = 0; d < small.qk_dim; ++d)
            clean &= std::isfinite(c.dq.at(row, h, d));
        }
      }
      CAPTURE(n);
      CHECK(clean);
      CHECK(std::isnan(c.lse.at(n - 1, 0, 0)));
    }
  }
}

TEST_CASE("lattice#361, flashinfer#4401: no finite number stands for a mask") {
  double lse = 0;
  // One visible key of score -20000 and, masked, one that a sentinel of -10000 would have beaten.
  CHECK(one_head({-2e4}, {1}, &lse) == 1.0);
  CHECK(lse == -2e4);
  CHECK(one_head({-6e4, -6e4}, {1, 3}, &lse) == 2.0);
  CHECK(lse == doctest::Approx(-6e4 + std::log(2.0)).epsilon(1e-15));
}

TEST_CASE("pytorch#196678: 192 keys of score -100: uniform weights, log-sum-exp below -88.7") {
  double lse = 0;
  std::vector<double> values(192);
  for (std::size_t j = 0; j < values.size(); ++j) values[j] = static_cast<double>(j);
  CHECK(one_head(std::vector<double>(192, -100.0), values, &lse) ==
        doctest::Approx(95.5).epsilon(1e-13));
  CHECK(lse == doctest::Approx(std::log(192.0) - 100.0).epsilon(1e-14));
  // The same in float, with a gradient: keys do not differ, so dq is zero but for rounding.
  for (const attention_mask mask : {full, causal}) {
    kernel_case<float> c({1, 1, 1, 1, 1.0}, 192, 192, {{0, 192, 0, 192}});
    c.fill(2);
    for (std::int64_t i = 0; i < 192; ++i) {
      c.q.at(i, 0, 0) = 10;
      c.k.at(i, 0, 0) = -10;
    }
    cpu::blocked_attention kernel;
    c.run(kernel, mask);
    CHECK(c.lse.at(191, 0, 0) == doctest::Approx(std::log(192.0) - 100.0).epsilon(1e-6));
    double dv = 0;
    for (std::int64_t i = 0; i < 192; ++i) {
      const auto seen = static_cast<double>(mask == causal ? i + 1 : 192);
      dv += as_double(c.dout.at(i, 0, 0)) / seen;
      CHECK(std::abs(c.dq.at(i, 0, 0) - 0.5F) <= 1e-4F);
    }
    CHECK(c.dv.at(0, 0, 0) - 0.5 == doctest::Approx(dv).epsilon(1e-4));
  }
}

TEST_CASE("keys of score -inf count as none, be they a whole tile before the first that counts") {
  double lse = 0;
  for (const std::size_t hidden : {1U, 127U, 128U, 300U}) {
    std::vector<double> scores(hidden + 2, -infinity);
    std::vector<double> values(hidden + 2, 7.0);
    scores[hidden] = scores[hidden + 1] = 2.0;
    values[hidden] = 1.0;
    values[hidden + 1] = 4.0;
    CHECK(one_head(scores, values, &lse) == doctest::Approx(2.5).epsilon(1e-14));
    CHECK(lse == doctest::Approx(2.0 + std::log(2.0)).epsilon(1e-14));
  }
}

TEST_CASE("large scores: the maximum is taken out before exp") {
  double lse = 0;
  CHECK(one_head({900, 902, 901}, {1, 1, 1}, &lse) == doctest::Approx(1.0).epsilon(1e-14));
  CHECK(lse == doctest::Approx(902 + std::log1p(std::exp(-1.0) + std::exp(-2.0))).epsilon(1e-15));
  // Ascending scores: every tile raises the maximum and rescales what came before.
  std::vector<double> scores(400);
  for (std::size_t j = 0; j < scores.size(); ++j) scores[j] = 3.0 * static_cast<double>(j);
  CHECK(one_head(scores, scores, &lse) ==
        doctest::Approx(1197.0 - 3.0 * std::exp(-3.0) / (1 - std::exp(-3.0))).epsilon(1e-13));
}

TEST_CASE("analytic: q = 0 and v_j = j give log-sum-exp ln(i + 1), output i / 2, known gradients") {
  const std::int32_t n = 9;
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  for (const bool tiles : {false, true}) {
    kernel_case<double> c({1, 1, 1, 1, 0.25}, n, n, {{0, n, 0, n}});
    for (std::int64_t i = 0; i < n; ++i) {
      c.q.at(i, 0, 0) = 0;
      c.k.at(i, 0, 0) = c.v.at(i, 0, 0) = static_cast<double>(i);
      c.dout.at(i, 0, 0) = 1;
    }
    if (tiles) {
      c.run(blocked, causal);
    } else {
      c.run(plain, causal);
    }
    double dv = 0;  // sum over i >= j of 1 / (i + 1)
    for (std::int64_t i = n - 1; i >= 0; --i) {
      const auto x = static_cast<double>(i);
      dv += 1 / (x + 1);
      CHECK(c.lse.at(i, 0, 0) == doctest::Approx(std::log(x + 1)).epsilon(1e-14));
      CHECK(c.out.at(i, 0, 0) == doctest::Approx(x / 2).epsilon(1e-14));
      CHECK(c.dv.at(i, 0, 0) - 0.5 == doctest::Approx(dv).epsilon(1e-13));
      CHECK(c.dq.at(i, 0, 0) - 0.5 == doctest::Approx(0.25 * x * (x + 2) / 12).epsilon(1e-13));
      CHECK(c.dk.at(i, 0, 0) - 0.5 == doctest::Approx(0.0));
    }
    CHECK(c.dv.at(0, 0, 0) - 0.5 == doctest::Approx(2.828968).epsilon(1e-6));
    CHECK(c.dv.at(2, 0, 0) - 0.5 == doctest::Approx(1.328968).epsilon(1e-6));
  }
  kernel_case<double> f({1, 1, 1, 1, 1.0}, n, n, {{0, n, 0, n}});
  for (std::int64_t i = 0; i < n; ++i) {
    f.q.at(i, 0, 0) = f.dout.at(i, 0, 0) = 0;
    f.k.at(i, 0, 0) = f.v.at(i, 0, 0) = static_cast<double>(i);
  }
  f.run(blocked, full);
  for (std::int64_t i = 0; i < n; ++i) CHECK(f.out.at(i, 0, 0) == doctest::Approx(4.0));
}

TEST_CASE("analytic: one-hot values show which keys each row saw, with equal weights") {
  const std::int32_t n = 37;
  for (const attention_mask mask : {causal, full}) {
    kernel_case<double> c({1, 1, 2, n, 1.0}, n, n, {{0, n, 0, n}});
    c.fill(4);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t d = 0; d < 2; ++d)
        c.k.at(i, 0, d) = 0.75;  // constant keys: any q is uniform
      for (std::int64_t d = 0; d < n; ++d) c.v.at(i, 0, d) = i == d ? 1 : 0;
    }
    cpu::blocked_attention kernel;
    c.run(kernel, mask);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto seen = mask == causal ? i + 1 : n;
      for (std::int64_t d = 0; d < n; ++d) {
        CHECK(c.out.at(i, 0, d) ==
              doctest::Approx(d < seen ? 1.0 / static_cast<double>(seen) : 0.0).epsilon(1e-13));
      }
    }
  }
}

TEST_CASE("the same call gives the same bits, whatever was computed before") {
  cpu::blocked_attention fresh;
  cpu::blocked_attention used;
  check_case<float>(used, {2, 2, 80, 96, 0.1}, causal, {{0, 200, 0, 200}}, 1e-5);
  for (const attention_mask mask : {causal, full}) {
    kernel_case<float> a({4, 2, 24, 16, 0.2}, 150, 150, {{0, 90, 0, 90}, {100, 50, 95, 50}});
    kernel_case<float> b = a;
    a.fill(5);
    b.fill(5);
    a.run(fresh, mask);
    b.run(used, mask);
    CHECK(a.out.values == b.out.values);
    CHECK(a.lse.values == b.lse.values);
    CHECK(a.dq.values == b.dq.values);
    CHECK(a.dk.values == b.dk.values);
    CHECK(a.dv.values == b.dv.values);
  }
}

TEST_CASE("no allocation once a shape has been seen, scratch within what is declared") {
  const attention_shape shape{2, 1, 128, 128, 0.1};
  kernel_case<float> c(shape, 300, 300, {{0, 300, 0, 300}});
  c.fill(6);
  cpu::blocked_attention kernel;
  c.run(kernel, causal);
  c.run(kernel, full);
  const std::int64_t before = allocations;
  Eigen::internal::set_is_malloc_allowed(false);
  c.run(kernel, causal);
  c.run(kernel, full);
  Eigen::internal::set_is_malloc_allowed(true);
  CHECK(allocations == before);
  CHECK(cpu::blocked_attention::scratch_bytes(shape) < 1024 * 1024);
}
