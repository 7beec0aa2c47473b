// SPDX-License-Identifier: Apache-2.0
#include <dyncp/plan/plan.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using dyncp::load;

TEST_CASE("a pack's load: padded lengths, their squares, and the tail") {
  const auto batch = *dyncp::make_batch(std::vector<std::int64_t>{5, 3, 100});
  const dyncp::pack pk{{0, 2}, {0, 1}};
  CHECK(dyncp::pack_load(pk, batch, {}) == load{8, 34, 2});
  CHECK(dyncp::pack_load(pk, batch, {.zigzag = true}) == load{12, 80, 2});
  // Shards of 32 tokens: 12 tokens become 64; the tail attends to nothing.
  CHECK(dyncp::pack_load(pk, batch, {.zigzag = true, .shard_multiple = 32}) == load{64, 80, 2});
  CHECK(dyncp::pack_load({{0, 1}, {2}}, batch, {.zigzag = true}) == load{100, 10000, 1});
  CHECK(dyncp::pack_load({{0, 4}, {}}, batch, {}) == load{});
}

TEST_CASE("plans compare by value") {
  dyncp::plan a;
  a.num_ranks = 2;
  a.micro_batches = {{{{{0, 2}, {0}}}}};
  dyncp::plan b = a;
  CHECK(a == b);
  CHECK(b.num_micro_batches() == 1);
  b.micro_batches[0].packs[0].sequences[0] = 1;
  CHECK(a != b);
}
