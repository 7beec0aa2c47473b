// SPDX-License-Identifier: Apache-2.0
#include "brute_scheduler.hpp"
#include "random_priced.hpp"

#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/one_f_one_b.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

using dyncp_test::brute_scheduler;

TEST_CASE("random small plans: the simulators agree with a scheduler written from the rules") {
  const std::uint64_t seed = dyncp_test::seed_or(1977);
  dyncp::one_f_one_b fast;  // one object for all, as packers use it
  int interleaved = 0;
  const std::int64_t rounds = dyncp_test::count_or(6000);
  for (std::int64_t round = 0; round < rounds; ++round) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    const dyncp_test::priced_case c = dyncp_test::random_priced(rng);
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    CAPTURE(describe(c));
    brute_scheduler brute(c.plan, c.pipe);
    const std::int64_t expected = brute.run();
    REQUIRE(expected >= 0);
    REQUIRE(dyncp::event_simulator{}.makespan(c.plan, c.pipe) == expected);
    if (c.pipe.chunks == 1) REQUIRE(fast.makespan(c.plan, c.pipe.stages) == expected);
    interleaved += c.pipe.chunks > 1 ? 1 : 0;

    const dyncp::timeline trace = dyncp::event_simulator{}.trace(c.plan, c.pipe);
    REQUIRE(trace.makespan == expected);
    REQUIRE(trace.slices.size() == 2 * c.plan.num_groups() * c.pipe.chunks * c.pipe.stages);
    for (const dyncp::timeline_slice& s : trace.slices) {
      const dyncp::rank_range ranks = c.plan.ranks[static_cast<std::size_t>(s.group)];
      for (std::int32_t r = ranks.begin; r < ranks.end(); ++r) {
        const auto it = brute.spans.find({s.stage, r, s.micro_batch, s.chunk, s.backward});
        REQUIRE(it != brute.spans.end());
        REQUIRE(it->second.start == s.start);
        REQUIRE(it->second.end == s.end);
      }
    }
  }
  CHECK(3 * interleaved > rounds);
}

TEST_CASE("two stages, two micro-batches, by hand") {
  dyncp::priced_plan p;
  p.num_ranks = 1;
  p.class_of_stage = {0, 0};
  p.first_group = {0, 1, 2};
  p.ranks = {{0, 1}, {0, 1}};
  p.costs = {{2, 4, 0}, {3, 6, 0}};
  // Stage 1 runs F0 2-4, B0 4-8, F1 8-11 (its input came at 5), B1 11-17; stage 0 ends B0 at 12,
  // B1 at 23.
  CHECK(dyncp::event_simulator{}.makespan(p, {2, 1}) == 23);
  // A transfer of 1 tick for the first, 2 for the second: F0 3-5, B0 5-9, F1 9-12, B1 12-18; B1's
  // gradient comes at 20, so 26.
  p.costs = {{2, 4, 1}, {3, 6, 2}};
  CHECK(dyncp::event_simulator{}.makespan(p, {2, 1}) == 26);
}

TEST_CASE("a group waits for its slowest member; an idle rank waits for nobody") {
  // One stage. Rank 0 works 10 + 10 alone, then both share a pack of 1 + 1.
  dyncp::priced_plan p;
  p.num_ranks = 2;
  p.class_of_stage = {0};
  p.first_group = {0, 1, 2};
  p.ranks = {{0, 1}, {0, 2}};
  p.costs = {{10, 10, 0}, {1, 1, 0}};
  CHECK(dyncp::event_simulator{}.makespan(p, {1, 1}) == 22);
  p.ranks = {{0, 1}, {1, 1}};
  CHECK(dyncp::event_simulator{}.makespan(p, {1, 1}) == 20);
}

TEST_CASE("nothing to do takes no time") {
  dyncp::priced_plan p;
  p.num_ranks = 3;
  p.class_of_stage = {0, 0};
  p.first_group = {0, 0, 0};
  CHECK(dyncp::event_simulator{}.makespan(p, {2, 1}) == 0);
  p.class_of_stage = {0, 0, 0, 0};
  CHECK(dyncp::event_simulator{}.makespan(p, {2, 2}) == 0);
  CHECK(dyncp::event_simulator{}.trace(p, {2, 2}).slices.empty());
}
