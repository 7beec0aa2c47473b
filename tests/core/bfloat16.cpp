// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/bfloat16.hpp>

#include <dyncp/core/accumulator.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

using namespace dyncp;

namespace {

bfloat16 from_bits(std::uint32_t bits) {
  bfloat16 x;
  x.bits = static_cast<std::uint16_t>(bits);
  return x;
}

float value(std::uint32_t bits) {
  return static_cast<float>(from_bits(bits));
}

}  // namespace

TEST_CASE("every bfloat16 is a float and comes back as it was") {
  std::int64_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float f = value(bits);
    std::uint32_t word = 0;
    std::memcpy(&word, &f, sizeof word);
    if (word != bits << 16) ++wrong;
    const bfloat16 back(f);
    if (std::isnan(f) ? !std::isnan(static_cast<float>(back)) : back.bits != bits) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("rounding is to nearest, ties to even, over every gap between neighbours") {
  std::int64_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7f7f; ++bits) {  // positive, finite, with a neighbour above
    const double low = value(bits);
    const double high = value(bits + 1);
    const double middle = (low + high) / 2;
    const float below = std::nextafter(static_cast<float>(middle), 0.0F);
    const float above = std::nextafter(static_cast<float>(middle), INFINITY);
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    if (bfloat16(static_cast<float>(middle)).bits != even) ++wrong;
    if (bfloat16(below).bits != bits) ++wrong;
    if (bfloat16(above).bits != bits + 1) ++wrong;
    if (bfloat16(-above).bits != (0x8000U | (bits + 1))) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("ends of the range") {
  constexpr float most = std::numeric_limits<float>::max();
  CHECK(std::isinf(static_cast<float>(bfloat16(most))));
  CHECK(static_cast<float>(bfloat16(-INFINITY)) == -INFINITY);
  CHECK(std::signbit(static_cast<float>(bfloat16(-0.0F))));
  // A NaN whose payload lies in the lower half must not become infinite.
  std::uint32_t word = 0x7f800001U;
  float signalling = 0;
  std::memcpy(&signalling, &word, sizeof word);
  CHECK(std::isnan(static_cast<float>(bfloat16(signalling))));
  constexpr float one = static_cast<float>(bfloat16(1.0F));
  constexpr bfloat16 tie_down(1.00390625F);
  constexpr bfloat16 tie_up(1.01171875F);
  CHECK(one == 1.0F);
  CHECK(tie_down.bits == 0x3f80);
  CHECK(tie_up.bits == 0x3f82);
}

TEST_CASE("sums are kept in float, or in double for double") {
  static_assert(std::is_same_v<accumulator_t<bfloat16>, float>);
  static_assert(std::is_same_v<accumulator_t<float>, float>);
  static_assert(std::is_same_v<accumulator_t<double>, double>);
  CHECK(sizeof(bfloat16) == 2);
}
