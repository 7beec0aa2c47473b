// SPDX-License-Identifier: Apache-2.0
#include <dyncp/thd/cu_seqlens.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <vector>

using namespace dyncp;

namespace {
using ints = std::vector<std::int32_t>;
using longs = std::vector<std::int64_t>;
constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
}  // namespace

TEST_CASE("prefix sums, real and padded") {
  CHECK(*prefix_sums(longs{}) == ints{0});
  CHECK(*prefix_sums(longs{5, 0, 7}) == ints{0, 5, 5, 12});
  CHECK(*prefix_sums(longs{5, 0, 7}, 4) == ints{0, 8, 8, 16});
  CHECK(*make_cu_seqlens(longs{5, 3}, 4) == cu_seqlens{{0, 5, 8}, {0, 8, 12}});
}

TEST_CASE("the largest pack is 2^31 - 1 tokens; one more is a typed error") {
  CHECK(prefix_sums(longs{largest})->back() == largest);
  CHECK(prefix_sums(longs{largest - 1, 1})->back() == largest);
  CHECK(prefix_sums(longs{largest - 1, 1, 0})->back() == largest);
  const auto over = prefix_sums(longs{largest, 1});
  REQUIRE(!over);
  CHECK(over.error().code == errc::overflow);
  CHECK(over.error().limit == largest);
  CHECK(over.error().value == 1);
}

TEST_CASE("padding alone can overflow, and lengths near 2^63 do not wrap") {
  CHECK(prefix_sums(longs{largest}, 2).error().code == errc::overflow);
  CHECK(make_cu_seqlens(longs{largest}, 8).error().code == errc::overflow);
  CHECK(prefix_sums(longs{INT64_MAX}, 32).error().code == errc::overflow);
  CHECK(prefix_sums(longs{INT64_MAX, INT64_MAX}).error().code == errc::overflow);
  CHECK(prefix_sums(longs{1}, INT64_MAX).error().code == errc::overflow);
}

TEST_CASE("bad lengths and multiples are named") {
  const auto negative = prefix_sums(longs{4, -3});
  REQUIRE(!negative);
  CHECK(negative.error().code == errc::invalid_length);
  CHECK(negative.error().what == "sequence 1 of the pack has length -3");
  CHECK(prefix_sums(longs{1}, 0).error().code == errc::invalid_argument);
  CHECK(prefix_sums(longs{1}, -4).error().code == errc::invalid_argument);
}

TEST_CASE("sequence_at finds the sequence of every token, never an empty one") {
  // All lists of four lengths of 0 to 3 tokens.
  for (std::int32_t code = 0; code < 256; ++code) {
    ints cu{0};
    ints owner;
    for (std::int32_t s = 0; s < 4; ++s) {
      const std::int32_t length = (code >> (2 * s)) & 3;
      cu.push_back(cu.back() + length);
      for (std::int32_t i = 0; i < length; ++i) owner.push_back(s);
    }
    for (std::int32_t token = 0; token < cu.back(); ++token) {
      CHECK(sequence_at(cu.data(), 4, token) == owner[static_cast<std::size_t>(token)]);
    }
    CHECK(sequence_at(cu.data(), 4, cu.back()) == 4);
    CHECK(sequence_at(cu.data(), 4, cu.back() + 5) == 4);
  }
  const ints none{0};
  CHECK(sequence_at(none.data(), 0, 0) == 0);
}

TEST_CASE("max_length is over neighbours, not the first entry") {
  CHECK(max_length(ints{0}) == 0);
  CHECK(max_length(ints{0, 5, 22, 25}) == 17);
  static constexpr std::int32_t cu[] = {0, 4, 4, 13};
  constexpr std::int32_t longest = max_length(cu);
  constexpr std::int32_t sequence = sequence_at(cu, 3, 4);
  CHECK(longest == 9);
  CHECK(sequence == 2);
}
