// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/int_math.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using namespace dyncp;

TEST_CASE("ceil_div is the least q with q * b >= a") {
  for (std::int64_t a = 0; a <= 200; ++a) {
    for (std::int64_t b = 1; b <= 40; ++b) {
      const std::int64_t q = ceil_div(a, b);
      CAPTURE(a);
      CAPTURE(b);
      CHECK(q * b >= a);
      CHECK((q == 0 || (q - 1) * b < a));
    }
  }
}

TEST_CASE("ceil_div does not overflow at the ends of its domain") {
  CHECK(ceil_div(INT64_MAX, 1) == INT64_MAX);
  CHECK(ceil_div(INT64_MAX, 2) == std::int64_t{1} << 62);
  CHECK(ceil_div(INT64_MAX, INT64_MAX) == 1);
  CHECK(ceil_div(1, INT64_MAX) == 1);
}

TEST_CASE("round_up") {
  CHECK(round_up(0, 8) == 0);
  CHECK(round_up(1, 8) == 8);
  CHECK(round_up(8, 8) == 8);
  CHECK(round_up(9, 8) == 16);
  CHECK(round_up(7, 1) == 7);
  CHECK(round_up((std::int64_t{1} << 40) + 1, 6) == 1099511627778);  // 2^40 is 4 modulo 6
}

TEST_CASE("powers of two") {
  std::int64_t expected = 1;
  for (std::int64_t a = 1; a <= 4096; ++a) {
    if (a > expected) expected *= 2;
    CAPTURE(a);
    CHECK(next_power_of_two(a) == expected);
    CHECK(is_power_of_two(a) == (a == expected));
  }
  CHECK(!is_power_of_two(0));
  CHECK(!is_power_of_two(-4));
  CHECK(!is_power_of_two(INT64_MIN));
  CHECK(next_power_of_two(std::int64_t{1} << 62) == std::int64_t{1} << 62);
}

TEST_CASE("least_common_multiple is the least number that both divide") {
  for (std::int64_t a = 1; a <= 24; ++a) {
    for (std::int64_t b = 1; b <= 24; ++b) {
      std::int64_t expected = 1;
      while (expected % a != 0 || expected % b != 0) ++expected;
      CHECK(least_common_multiple(a, b) == expected);
    }
  }
}

TEST_CASE("sums of squares of the longest sequences stay exact") {
  const int128 length = int128{1} << 40;
  const int128 sum = length * length * (int128{1} << 22);
  CHECK((sum >> 102) == 1);
}
