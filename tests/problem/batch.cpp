// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "support/random.hpp"

#include <dyncp/problem/sequence.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

using dyncp::errc;
using dyncp::int128;
using dyncp::make_batch;
using dyncp_test::expect_error;

namespace {

// Decimal digits by repeated division, of a number that no standard type prints.
std::string digits(int128 n) {
  std::string text;
  for (; n > 0; n /= 10)
    text.insert(text.begin(), static_cast<char>('0' + static_cast<int>(n % 10)));
  return text.empty() ? "0" : text;
}

constexpr std::int64_t longest = std::int64_t{1} << 40;

}  // namespace

TEST_CASE("ids count up, whatever the range") {
  const std::int32_t array[] = {7, 5, 9};
  const auto from_array = make_batch(array);
  const auto from_list = make_batch(std::list<std::uint16_t>{7, 5, 9});
  REQUIRE(from_array);
  REQUIRE(from_list);
  REQUIRE(*from_array == *from_list);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK((*from_array)[i].id == static_cast<std::int64_t>(i));
    CHECK((*from_array)[i].length == array[i]);
    CHECK((*from_array)[i].atom == -1);
  }
}

TEST_CASE("ids and atoms of sequences are kept") {
  const std::vector<dyncp::sequence> given = {{.id = 90, .length = 3, .atom = 4},
                                              {.id = 17, .length = 1, .atom = -1}};
  const auto batch = make_batch(given);
  REQUIRE(batch);
  CHECK(*batch == given);
}

TEST_CASE("lengths 0, -1, 2^63 and over 2^40 are refused, each named") {
  expect_error(make_batch(std::vector<std::int64_t>{4, 0}), errc::invalid_length, 0, 1,
               "sequence 1");
  expect_error(make_batch(std::vector<std::int64_t>{-1}), errc::invalid_length, -1, 1,
               "sequence 0");
  expect_error(make_batch(std::vector<std::int64_t>{INT64_MIN}), errc::invalid_length, INT64_MIN, 1,
               "sequence 0");
  expect_error(make_batch(std::vector<std::int64_t>{1, 1, longest + 1}), errc::invalid_length,
               longest + 1, longest, "sequence 2");
  expect_error(make_batch(std::vector<std::int64_t>{INT64_MAX}), errc::invalid_length, INT64_MAX,
               longest, "sequence 0");
  CHECK_FALSE(make_batch(std::vector<std::uint64_t>{std::uint64_t{1} << 63}));
  expect_error(make_batch(std::vector<dyncp::sequence>{{.id = 52, .length = 0}}),
               errc::invalid_length, 0, 1, "sequence 52");
}

TEST_CASE("lengths 1 and 2^40 are accepted") {
  CHECK(make_batch(std::vector<std::int64_t>{1, longest}));
  CHECK(make_batch(std::vector<std::int64_t>{})->empty());  // `check` refuses an empty batch
}

TEST_CASE("sums of 2^22 sequences of 2^40 tokens are exact") {
  const std::vector<dyncp::sequence> batch(std::size_t{1} << 22,
                                           dyncp::sequence{.id = 0, .length = longest});
  const dyncp::length_sums sums = dyncp::sum_lengths(batch);
  CHECK(digits(sums.tokens) == "4611686018427387904");               // 2^62
  CHECK(digits(sums.squares) == "5070602400912917605986812821504");  // 2^102
  CHECK(sums.count == 4194304);
  CHECK(sums.longest == longest);
}

TEST_CASE("64 sequences of 131072: squares 1.0995e12, which float32 rounds (Megatron-LM#5560)") {
  const auto batch = make_batch(std::vector<std::int64_t>(64, 131072));
  const dyncp::length_sums sums = dyncp::sum_lengths(*batch);
  CHECK(digits(sums.squares) == "1099511627776");
  CHECK(digits(sums.tokens) == "8388608");
  // 16777217 = 2^24 + 1 does not survive a float.
  const auto odd = make_batch(std::vector<std::int64_t>{16777217});
  CHECK(digits(dyncp::sum_lengths(*odd).tokens) == "16777217");
  CHECK(digits(dyncp::sum_lengths(*odd).squares) == "281475010265089");
}

TEST_CASE("squares agree with sums of odd numbers") {
  dyncp_test::random rng(dyncp_test::seed_or(7));
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = rng.between(0, 20); n > 0; --n) lengths.push_back(rng.between(1, 300));
    std::int64_t tokens = 0;
    std::int64_t squares = 0;
    std::int64_t most = 0;
    for (const std::int64_t s : lengths) {
      for (std::int64_t k = 1; k <= s; ++k) {
        squares += 2 * k - 1;  // n^2 = 1 + 3 + ... + (2n - 1)
        ++tokens;
      }
      if (s > most) most = s;
    }
    const dyncp::length_sums sums = dyncp::sum_lengths(*make_batch(lengths));
    CHECK(sums.tokens == tokens);
    CHECK(sums.squares == squares);
    CHECK(sums.count == static_cast<std::int64_t>(lengths.size()));
    CHECK(sums.longest == most);
  }
}
