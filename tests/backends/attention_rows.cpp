// SPDX-License-Identifier: Apache-2.0
#include <dyncp/cpu/attention_rows.hpp>

#include "support/local_ring.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

/// Partials of one row, one head, one column.
template <class T>
struct partial_value {
  T out;
  T lse;
};

template <class T>
partial_value<T> merged(partial_value<T> total, partial_value<T> part) {
  const attention_segment segment{0, 1, 0, 1};
  cpu::merge_partials<T>({}, {&segment, 1}, {{&part.out, 1}, {&part.lse, 1}},
                         {{&total.out, 1}, {&total.lse, 1}});
  return total;
}

}  // namespace

TEST_CASE("TE#716, RFA#30, #34, EasyContext#14: exp(l' - l) would overflow: l -50, l' 45") {
  for (const bool swapped : {false, true}) {
    const partial_value<float> small{3.0F, -50.0F};
    const partial_value<float> large{7.0F, 45.0F};
    const auto m = swapped ? merged(large, small) : merged(small, large);
    CHECK(m.out == 7.0F);
    CHECK(m.lse == 45.0F);
  }
}

TEST_CASE("TE#1401, #1546: log1p keeps what log(1 + x) loses: l 0, l' -18") {
  const auto m = merged<float>({0.0F, 0.0F}, {0.0F, -18.0F});
  CHECK(m.lse == doctest::Approx(std::exp(-18.0)).epsilon(1e-6));  // 1.523e-8, below 2^-24
  CHECK(m.lse > 0.0F);
}

TEST_CASE("flashinfer#4401, #4452: -inf is no number: empty partials change nothing") {
  const partial_value<float> none{0.0F, -infinite};
  const partial_value<float> some{2.5F, -1.25F};
  const auto a = merged(none, some);
  const auto b = merged(some, none);
  const auto c = merged(none, none);
  CHECK(a.out == 2.5F);
  CHECK(a.lse == -1.25F);
  CHECK(b.out == 2.5F);
  CHECK(b.lse == -1.25F);
  CHECK(c.out == 0.0F);
  CHECK(c.lse == -infinite);
}

TEST_CASE("tilelang#2461: a weight of zero does not multiply NaN") {
  CHECK(merged<float>({1.5F, 100.0F}, {nan_value, -100.0F}).out == 1.5F);
  CHECK(merged<float>({nan_value, -100.0F}, {1.5F, 100.0F}).out == 1.5F);
  CHECK(merged<float>({1.5F, 0.0F}, {nan_value, -infinite}).out == 1.5F);
  CHECK(merged<float>({nan_value, -infinite}, {1.5F, 0.0F}).out == 1.5F);
  CHECK(merged<float>({0.0F, -infinite}, {nan_value, -infinite}).out == 0.0F);
}

TEST_CASE("merging is the partial over the keys of both, in any order, for all gaps of the two") {
  for (double gap = -120; gap <= 120; gap += 0.37) {
    const double l = 0.5;
    const double m = l + gap;
    const auto a = merged<double>({-2.0, l}, {3.0, m});
    const auto b = merged<double>({3.0, m}, {-2.0, l});
    const long double shift = std::max(l, m);
    const long double wl = std::exp(static_cast<long double>(l) - shift);
    const long double wm = std::exp(static_cast<long double>(m) - shift);
    const auto lse = static_cast<double>(shift + std::log(wl + wm));
    const auto out = static_cast<double>((-2.0L * wl + 3.0L * wm) / (wl + wm));
    CHECK(a.lse == doctest::Approx(lse).epsilon(1e-14));
    CHECK(std::abs(a.out - out) <= 1e-13);
    CHECK(a.lse == b.lse);
    CHECK(a.out == doctest::Approx(b.out).epsilon(1e-15));
  }
}

TEST_CASE("merge touches the query rows of segments with keys, and no others") {
  const attention_shape shape{2, 1, 4, 3, 1.0};
  local_tensor<float> part_out(8, 2, 3, 1.0F);
  local_tensor<float> part_lse(8, 2, 1, 0.0F);
  local_tensor<float> out(8, 2, 3, 5.0F, 2);
  local_tensor<float> lse(8, 2, 1, 0.0F, 1);
  const std::vector<attention_segment> segments{{1, 2, 0, 4}, {4, 3, 7, 0}};
  cpu::merge_partials<float>(shape, segments, {part_out.view(), part_lse.view()},
                             {out.view(), lse.view()});
  for (std::int64_t row = 0; row < 8; ++row) {
    const bool touched = row == 1 || row == 2;
    CHECK(out.at(row, 1, 2) == (touched ? 3.0F : 5.0F));
    CHECK(lse.at(row, 1, 0) == doctest::Approx(touched ? std::log(2.0) : 0.0));
  }
}

TEST_CASE("clear_partial: output 0 and log-sum-exp -inf, whatever was there") {
  const attention_shape shape{2, 1, 4, 3, 1.0};
  local_tensor<float> out(4, 2, 3, nan_value, 1);
  local_tensor<float> lse(4, 2, 1, nan_value, 1);
  cpu::clear_partial<float>(shape, 3, {out.view(), lse.view()});
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t h = 0; h < 2; ++h) {
      CHECK(lse.at(row, h, 0) == -infinite);
      for (std::int64_t c = 0; c < 3; ++c) CHECK(out.at(row, h, c) == 0.0F);
    }
  }
  CHECK(std::isnan(out.at(3, 0, 0)));
}

TEST_CASE("delta: the product of output and its gradient, a head at a time") {
  const attention_shape shape{2, 2, 4, 3, 1.0};
  local_tensor<bfloat16> out(3, 2, 3, not_a_number<bfloat16>());
  local_tensor<bfloat16> dout(3, 2, 3, not_a_number<bfloat16>());
  local_tensor<float> delta(3, 2, 1, -1.0F);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t c = 0; c < 3; ++c) {
      out.at(1, h, c) = bfloat16(static_cast<float>(c + 1));
      dout.at(1, h, c) = bfloat16(static_cast<float>(10 * h + c));
    }
  }
  const attention_segment segment{1, 1, 0, 0};
  cpu::attention_delta<bfloat16, bfloat16>(shape, {&segment, 1}, out.view(), dout.view(),
                                           delta.view());
  CHECK(delta.at(0, 0, 0) == -1.0F);
  CHECK(delta.at(1, 0, 0) == 8.0F);   // 0 1 + 1 2 + 2 3
  CHECK(delta.at(1, 1, 0) == 68.0F);  // 10 1 + 11 2 + 12 3
  CHECK(delta.at(2, 1, 0) == -1.0F);
}

TEST_CASE("convert_rows rounds each element once and leaves the gaps alone") {
  local_tensor<float> from(3, 1, 2, 1.0F + 0x1.8p-8F, 1);
  local_tensor<bfloat16> to(3, 1, 2, bfloat16(9.0F), 2);
  cpu::convert_rows<bfloat16, float>(2, 2, from.view(), to.view());
  CHECK(as_double(to.at(0, 0, 0)) == 1.0 + 0x1p-7);
  CHECK(as_double(to.at(1, 0, 1)) == 1.0 + 0x1p-7);
  CHECK(as_double(to.at(2, 0, 0)) == 9.0);
  CHECK(as_double(to.values[2]) == 9.0);
}
