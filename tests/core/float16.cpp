// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/float16.hpp>

#include <dyncp/core/accumulator.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

using namespace dyncp;

namespace {

float value(std::uint32_t bits) {
  float16 x;
  x.bits = static_cast<std::uint16_t>(bits);
  return static_cast<float>(x);
}

/// The number that the bits stand for, from the definition of the format.
double defined(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double mantissa = static_cast<double>(bits & 1023);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("every float16 has its value as a float, and comes back as it was") {
  std::int64_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float f = value(bits);
    if ((bits & 0x7c00U) == 0x7c00U) {
      if ((bits & 0x3ffU) == 0 ? !std::isinf(f) : !std::isnan(f)) ++wrong;
    } else if (static_cast<double>(f) != defined(bits)) {
      ++wrong;
    }
    const float16 back(f);
    if (std::isnan(f) ? !std::isnan(static_cast<float>(back)) : back.bits != bits) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("float16: rounding is to nearest, ties to even, over every gap between neighbours") {
  std::int64_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {  // positive, finite, with a neighbour above
    const auto middle = static_cast<float>((defined(bits) + defined(bits + 1)) / 2);
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    if (float16(middle).bits != even) ++wrong;
    if (float16(std::nextafter(middle, 0.0F)).bits != bits) ++wrong;
    const float above = std::nextafter(middle, INFINITY);
    if (float16(above).bits != bits + 1) ++wrong;
    if (float16(-above).bits != (0x8000U | (bits + 1))) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("float16: ends of the range") {
  CHECK(value(0x7bff) == 65504.0F);
  CHECK(float16(65519.0F).bits == 0x7bff);
  CHECK(float16(65520.0F).bits == 0x7c00);
  CHECK(float16(std::numeric_limits<float>::max()).bits == 0x7c00);
  CHECK(float16(-INFINITY).bits == 0xfc00);
  CHECK(float16(-0.0F).bits == 0x8000);
  CHECK(float16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(std::isnan(static_cast<float>(float16(std::numeric_limits<float>::quiet_NaN()))));
  static_assert(float16(1.0F).bits == 0x3c00);
  static_assert(std::is_same_v<accumulator_t<float16>, float>);
}
