// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/padding.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

using namespace dyncp;

namespace {

std::int64_t padded(const padding_rule& rule, std::int32_t c, std::int64_t length) {
  return padded_length(length, alignment(rule, c));
}

}  // namespace

TEST_CASE("no rule pads nothing") {
  const padding_rule none;
  for (std::int32_t c : {1, 2, 3, 8}) {
    CHECK(alignment(none, c) == 1);
    CHECK(padded(none, c, 17) == 17);
    CHECK(padded_pack_tokens(none, 1, 17) == 17);
  }
}

TEST_CASE("zigzag pads to 2c chunks, and not at all on one rank") {
  const padding_rule rule{.zigzag = true};
  CHECK(alignment(rule, 1) == 1);
  CHECK(alignment(rule, 2) == 4);
  CHECK(alignment(rule, 6) == 12);
  CHECK(alignment(rule, 64) == 128);
}

TEST_CASE("odd lengths on two ranks: [5, 3] becomes [8, 4] (Megatron-LM#4494)") {
  const padding_rule rule{.zigzag = true};
  CHECK(padded(rule, 2, 5) == 8);
  CHECK(padded(rule, 2, 3) == 4);
  // Offsets 0, 8, 12; two chunks of each sequence per rank make local sizes 4 and 2.
  CHECK(padded(rule, 2, 5) / 2 == 4);
  CHECK(padded(rule, 2, 3) / 2 == 2);
}

TEST_CASE("sequence parallelism: length 20 on cp 2, tp 4 becomes 32 (Megatron-LM#2574)") {
  const padding_rule rule{.zigzag = true, .sequence_parallel = 4};
  CHECK(alignment(rule, 2) == 16);
  CHECK(padded(rule, 2, 20) == 32);
}

TEST_CASE("a pack of 1000 on two ranks with shards of 128 or 32 becomes 1024 (NeMo-RL#1569)") {
  CHECK(padded_pack_tokens(padding_rule{.shard_multiple = 128}, 2, 1000) == 1024);
  CHECK(padded_pack_tokens(padding_rule{.shard_multiple = 32}, 2, 1000) == 1024);
}

TEST_CASE("padding is for the CP size chosen: length 100, tp 8, cp 1 becomes 104, not 1024") {
  const padding_rule rule{.zigzag = true, .sequence_parallel = 8};
  CHECK(padded(rule, 1, 100) == 104);
  CHECK(padded(rule, 64, 100) == 1024);
}

TEST_CASE("an extra multiple combines as the least common multiple") {
  CHECK(alignment(padding_rule{.zigzag = true, .multiple = 6}, 2) == 12);
  CHECK(alignment(padding_rule{.zigzag = false, .multiple = 6}, 2) == 6);
  CHECK(alignment(padding_rule{.zigzag = true, .sequence_parallel = 3, .multiple = 4}, 4) == 24);
}

TEST_CASE("padded is the least admissible length") {
  for (std::int32_t tp : {1, 2, 3}) {
    for (std::int64_t multiple : {1, 2, 5}) {
      const padding_rule rule{.zigzag = true, .sequence_parallel = tp, .multiple = multiple};
      for (std::int32_t c = 1; c <= 6; ++c) {
        const std::int64_t chunks = c > 1 ? 2 * c : 1;
        for (std::int64_t length = 1; length <= 60; ++length) {
          std::int64_t expected = length;
          while (expected % (chunks * tp) != 0 || expected % multiple != 0) ++expected;
          CHECK(padded(rule, c, length) == expected);
        }
      }
    }
  }
}
