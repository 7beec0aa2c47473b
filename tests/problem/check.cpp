// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "support/problems.hpp"

#include <dyncp/problem/problem.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

using dyncp::errc;
using dyncp_test::expect_error;

namespace {

dyncp::problem small_problem() {
  return dyncp_test::reference_problem({60, 20, 5}, 8, 2, 16);
}

constexpr std::int64_t longest = std::int64_t{1} << 40;

}  // namespace

TEST_CASE("an ordinary problem is accepted") {
  CHECK(check(small_problem()));
}

TEST_CASE("errors of the layout come first") {
  dyncp::problem p = small_problem();
  p.parallel.ranks = 0;
  p.limits.max_tokens_per_rank = 0;
  expect_error(check(p), errc::invalid_argument, 0, 1, "ranks");
}

TEST_CASE("an empty batch") {
  dyncp::problem p = small_problem();
  p.sequences.clear();
  const auto bad = check(p);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::empty_input);
  CHECK_FALSE(bad.error().hint.empty());
}

TEST_CASE("a sequence of length 0, negative or over 2^40 is named by its id") {
  for (const std::int64_t length : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN}) {
    dyncp::problem p = small_problem();
    p.sequences[1] = {.id = 77, .length = length};
    expect_error(check(p), errc::invalid_length, length, 1, "sequence 77");
  }
  dyncp::problem p = small_problem();
  p.sequences[2].length = longest + 1;
  expect_error(check(p), errc::invalid_length, longest + 1, longest, "sequence 2");
  p.sequences[2].length = longest;
  CHECK(check(p));
}

TEST_CASE("limits of 0 or below hold no token") {
  for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN}) {
    dyncp::problem p = small_problem();
    p.limits.max_tokens_per_rank = limit;
    expect_error(check(p), errc::invalid_argument, limit, 1, "max-tokens-per-rank");
  }
  dyncp::problem p = small_problem();
  p.limits.max_tokens_per_rank = 1;
  CHECK(check(p));
  p.limits.max_tokens_per_rank = std::int64_t{1} << 40;
  CHECK(check(p));
}

TEST_CASE("limits that no plan file holds are refused") {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  for (const std::int64_t limit : {most + 1, INT64_MAX}) {
    dyncp::problem p = small_problem();
    p.limits.max_tokens_per_rank = limit;
    expect_error(check(p), errc::invalid_argument, limit, most, "max-tokens-per-rank");
    p = small_problem();
    p.limits.max_inflight_tokens = limit;
    expect_error(check(p), errc::invalid_argument, limit, most, "max-inflight-tokens");
  }
}

TEST_CASE("a limit below the alignment of every group") {
  dyncp::problem p = small_problem();
  p.padding.multiple = 100;  // at cp 1 a sequence takes 100 tokens, on 8 ranks 13 a rank
  p.limits.max_tokens_per_rank = 12;
  p.parallel.max_cp = 4;
  expect_error(check(p), errc::invalid_argument, 12, 100, "max-tokens-per-rank 12");
  CHECK(check(p).error().hint.find("100 tokens a rank at cp 1") != std::string::npos);
  p.limits.max_tokens_per_rank = 25;  // on 4 ranks it fits
  CHECK(check(p));
  // The zigzag layout takes two chunks a rank, and tp tokens each with sequence parallelism.
  p = small_problem();
  p.padding.zigzag = true;
  p.padding.sequence_parallel = 8;
  p.parallel.min_cp = 2;
  p.limits.max_tokens_per_rank = 15;
  expect_error(check(p), errc::invalid_argument, 15, 16, "max-tokens-per-rank 15");
  p.limits.max_tokens_per_rank = 16;
  CHECK(check(p));
}

TEST_CASE("multiples of the padding lie in 1 .. 2^24, tp in 1 .. 4096") {
  const std::int64_t most = std::int64_t{1} << 24;
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-4}, most + 1}) {
    dyncp::problem p = small_problem();
    p.padding.multiple = value;
    expect_error(check(p), errc::invalid_argument, value, most, "padding multiple");
    p = small_problem();
    p.padding.shard_multiple = value;
    expect_error(check(p), errc::invalid_argument, value, most, "shard multiple");
    p = small_problem();
    p.padding.sequence_parallel = static_cast<std::int32_t>(value);
    expect_error(check(p), errc::invalid_argument, value, 4096, "sequence parallel size");
  }
}

TEST_CASE("the largest layout and padding do not overflow") {
  dyncp::problem p = small_problem();
  p.parallel.ranks = 1 << 20;
  p.padding = {.zigzag = true,
               .sequence_parallel = 4095,
               .multiple = (1 << 24) - 3,
               .shard_multiple = 1 << 24};
  // 2^21 * 4095 and 2^24 - 3 share no factor: their product.
  CHECK(dyncp::alignment(p.padding, 1 << 20) == 144079977940254720);
  p.limits.max_tokens_per_rank = std::int64_t{1} << 40;
  const auto bad = check(p);  // no pack of 2^31 - 1 tokens holds a multiple of it
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::invalid_argument);
}

TEST_CASE("negative limits and a micro-batch multiple of 0 are named") {
  dyncp::problem p = small_problem();
  p.limits.micro_batch_multiple = 0;
  expect_error(check(p), errc::invalid_argument, 0, 1, "micro-batch multiple");
  p = small_problem();
  p.limits.micro_batches = -1;
  expect_error(check(p), errc::invalid_argument, -1, 0, "micro-batches");
  p = small_problem();
  p.limits.max_sequences_per_pack = -7;
  expect_error(check(p), errc::invalid_argument, -7, 0, "sequences per pack");
  p = small_problem();
  p.limits.max_inflight_tokens = INT64_MIN;
  expect_error(check(p), errc::invalid_argument, INT64_MIN, 0, "max-inflight-tokens");
  p = small_problem();
  p.limits.micro_batch_multiple = (1 << 16) + 1;
  expect_error(check(p), errc::invalid_argument, (1 << 16) + 1, 1 << 16, "micro-batch multiple");
}

TEST_CASE("more than 2^20 micro-batches, by themselves or by their multiple") {
  dyncp::problem p = small_problem();
  p.limits.micro_batches = 1 << 20;
  CHECK(check(p));
  p.limits.micro_batches = (1 << 20) + 1;
  expect_error(check(p), errc::invalid_argument, (1 << 20) + 1, 1 << 20, "micro-batches");
  p = small_problem();
  p.limits.micro_batch_multiple = 65536;
  CHECK(check(p));
  p.parallel.pp = 4095;
  p.parallel.vpp = 2;  // lcm(65536, 4095)
  expect_error(check(p), errc::invalid_argument, 65536 * 4095, 1 << 20, "micro-batches");
}

TEST_CASE("fixed micro-batches are a multiple of the interleaving group") {
  dyncp::problem p = small_problem();
  p.limits.micro_batches = 5;
  p.limits.micro_batch_multiple = 4;
  expect_error(check(p), errc::invalid_argument, 5, 4, "micro-batches 5");
  p.limits.micro_batches = 8;
  CHECK(check(p));
  // Interleaving over 3 stages asks for multiples of 3 as well: lcm(4, 3).
  p.parallel.pp = 3;
  p.parallel.vpp = 2;
  expect_error(check(p), errc::invalid_argument, 8, 12, "micro-batches 8");
  p.limits.micro_batches = 12;
  CHECK(check(p));
}

TEST_CASE("the multiple of M is the least common one, and pp counts with interleaving only") {
  for (std::int32_t given = 1; given <= 8; ++given) {
    for (std::int32_t pp = 1; pp <= 8; ++pp) {
      dyncp::problem p = small_problem();
      p.limits.micro_batch_multiple = given;
      p.parallel.pp = pp;
      CHECK(micro_batch_multiple(p) == given);
      p.parallel.vpp = 2;
      std::int32_t expected = 1;
      while (expected % given != 0 || expected % pp != 0) ++expected;
      CHECK(micro_batch_multiple(p) == expected);
    }
  }
}

TEST_CASE("a pack holds limit * c tokens, at most 2^31 - 1") {
  dyncp::problem p = small_problem();
  for (const std::int32_t c : {1, 2, 4, 8}) CHECK(pack_capacity(p, c) == 16 * c);
  p.limits.max_tokens_per_rank = 2147483647;
  CHECK(pack_capacity(p, 1) == 2147483647);
  CHECK(pack_capacity(p, 2) == 2147483647);
  p.limits.max_tokens_per_rank = INT64_MAX;
  CHECK(pack_capacity(p, 1 << 20) == 2147483647);
  p.limits.max_tokens_per_rank = 1073741824;  // two of them are 2^31
  CHECK(pack_capacity(p, 2) == 2147483647);
  p.limits.max_tokens_per_rank = 1073741823;
  CHECK(pack_capacity(p, 2) == 2147483646);
}

TEST_CASE("a group lies in one node if all its ranks do") {
  for (std::int32_t per_node = 1; per_node <= 8; ++per_node) {
    for (std::int32_t begin = 0; begin < 20; ++begin) {
      for (std::int32_t size = 1; size <= 10; ++size) {
        bool same = true;
        for (std::int32_t r = begin; r < begin + size; ++r) {
          same = same && r / per_node == begin / per_node;
        }
        CHECK(dyncp::in_one_node(begin, size, per_node) == same);
      }
    }
  }
}
