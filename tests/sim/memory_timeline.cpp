// SPDX-License-Identifier: Apache-2.0
#include "plan/random_plan.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/sim/memory_timeline.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

using dyncp::pipeline;
using dyncp::stage_inflight;
using dyncp::trace_memory;

namespace {

// One rank; micro-batch j holds one sequence of lengths[j] tokens.
struct single {
  std::vector<dyncp::sequence> batch;
  dyncp::plan plan;
  explicit single(const std::vector<std::int64_t>& lengths)
      : batch(*dyncp::make_batch(lengths)), plan{1, 1000, {}, {}} {
    for (std::size_t j = 0; j < lengths.size(); ++j) {
      plan.micro_batches.push_back({{{{0, 1}, {static_cast<std::int32_t>(j)}}}});
      plan.micro_batches.back().packs = {{{0, 1}, {static_cast<std::int32_t>(j)}}};
    }
  }
};

}  // namespace

TEST_CASE("three stages, four micro-batches: what each stage holds after each operation") {
  const single s({10, 20, 30, 40});
  const auto t = trace_memory(s.plan, s.batch, {3, 1});
  REQUIRE(t.stages.size() == 3);
  // F0 F1 F2 B0 F3 B1 B2 B3
  CHECK(t.stages[0].chunk_tokens == std::vector<std::int64_t>{10, 30, 60, 50, 90, 70, 40, 0});
  // F0 F1 B0 F2 B1 F3 B2 B3
  CHECK(t.stages[1].chunk_tokens == std::vector<std::int64_t>{10, 30, 20, 50, 30, 70, 40, 0});
  CHECK(t.stages[2].chunk_tokens == std::vector<std::int64_t>{10, 0, 20, 0, 30, 0, 40, 0});
  CHECK(t.peak_tokens(0) == 90);  // 20 + 30 + 40, not 3 * 40
  CHECK(t.peak_tokens(1) == 70);
  CHECK(t.peak_tokens(2) == 40);
  CHECK(t.stages[0].after(4)[0] == 90);
}

TEST_CASE("two stages of two chunks: chunk tokens, and a peak in whole-stage tokens") {
  const single s({10, 20});
  const auto t = trace_memory(s.plan, s.batch, {2, 2});
  // F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1
  const std::vector<std::int64_t> expected = {10, 30, 40, 60, 50, 30, 20, 0};
  CHECK(t.stages[0].chunk_tokens == expected);
  CHECK(t.stages[1].chunk_tokens == expected);
  CHECK(t.peak_tokens(0) == 30);
}

TEST_CASE("shards, idle ranks and padding") {
  const auto batch = *dyncp::make_batch(std::vector<std::int64_t>{5, 3, 9});
  dyncp::plan p{4, 100, {.zigzag = true}, {}};
  p.micro_batches.resize(2);
  p.micro_batches[0].packs = {{{0, 2}, {0, 1}}, {{3, 1}, {2}}};
  const auto t = trace_memory(p, batch, {2, 1});
  CHECK(t.shard_tokens == std::vector<std::int64_t>{6, 6, 0, 9, 0, 0, 0, 0});
  CHECK(t.stages[0].peak == std::vector<std::int64_t>{6, 6, 0, 9});
  CHECK(t.peak_tokens(0) == 9);
}

TEST_CASE("bytes of a stage by hand") {
  // Kept 2 bytes a token, 5 more in a backward, 3 of logits; states 1000.
  const dyncp::stage_memory_spec memory{1000, 2, 5, 3};
  const single s({10, 20, 30, 40});
  const auto t = trace_memory(s.plan, s.batch, {3, 1});
  // The last stage holds what runs: 40 tokens of 2 + 5 + 3 bytes.
  CHECK(dyncp::peak_bytes(t, 2, memory) == std::vector<double>{1400});
  // The first: 1000 + 2 * 90 + 3 * 40 after F3 = 1300; B1 holds 90 of 2 and runs 20 of 8: 1340;
  // B2 70 and 30 of 8: 1380; B3 40 and 40 of 8: 1400.
  CHECK(dyncp::peak_bytes(t, 0, memory) == std::vector<double>{1400});
  CHECK(dyncp::peak_bytes(t, 0, {1000, 2, 0, 0}) == std::vector<double>{1180});
  // Chunks hold their share: 60 chunk tokens of two chunks are 30 tokens.
  const single two({10, 20});
  CHECK(dyncp::peak_bytes(trace_memory(two.plan, two.batch, {2, 2}), 0, {0, 2, 0, 0}) ==
        std::vector<double>{60});
}

TEST_CASE("random plans: the timeline ends empty, never goes below zero and has the known peaks") {
  const std::uint64_t seed = dyncp_test::seed_or(99);
  int planned = 0;
  const std::int64_t rounds = dyncp_test::count_or(1200);
  for (std::int64_t round = 0; round < rounds; ++round) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    const auto made = dyncp_test::random_plan(rng);
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    if (!made) continue;
    ++planned;
    const dyncp::problem& prob = made->prob;
    const pipeline pipe{prob.parallel.pp, prob.parallel.vpp};
    const auto t = trace_memory(made->plan, prob.sequences, pipe);
    REQUIRE(t.stages.size() == static_cast<std::size_t>(pipe.stages));
    std::int64_t before = INT64_MAX;
    for (std::int32_t s = 0; s < pipe.stages; ++s) {
      const stage_inflight& stage = t.stages[static_cast<std::size_t>(s)];
      for (const std::int64_t n : stage.chunk_tokens) REQUIRE(n >= 0);
      for (const std::int64_t n : stage.after(stage.order.size() - 1)) REQUIRE(n == 0);
      const std::int64_t peak = *std::max_element(stage.peak.begin(), stage.peak.end());
      REQUIRE(peak == *std::max_element(stage.chunk_tokens.begin(), stage.chunk_tokens.end()));
      REQUIRE(peak == dyncp::peak_inflight(t.shard_tokens, t.num_ranks, pipe, s));
      REQUIRE(t.peak_tokens(s) <= before);  // earlier stages hold more
      before = t.peak_tokens(s);
      const auto memory = dyncp::stage_memory(prob.model, prob.parallel, s);
      for (const double bytes : dyncp::peak_bytes(t, s, memory)) {
        REQUIRE(bytes >= memory.state_bytes);
      }
    }
    REQUIRE(t.peak_tokens(0) == dyncp::peak_inflight_tokens(made->plan, prob.sequences, pipe));
  }
  CHECK(2 * planned > rounds);
}

TEST_CASE("what --memory-gib allows fits the GPU: plans within the tokens are within the bytes") {
  const std::uint64_t seed = dyncp_test::seed_or(123);
  dyncp_test::random rng(seed);
  int planned = 0;
  const std::int64_t rounds = dyncp_test::count_or(60);
  for (std::int64_t round = 0; round < rounds; ++round) {
    CAPTURE(seed);
    CAPTURE(round);
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = rng.between(5, 40); n > 0; --n) lengths.push_back(rng.between(1, 9000));
    dyncp::problem prob = dyncp_test::reference_problem(
        lengths, 1 << rng.between(1, 3), static_cast<std::int32_t>(rng.between(1, 4)), 9000);
    prob.model.recompute = static_cast<dyncp::recomputation>(rng.between(0, 2));
    prob.model.vocabulary = rng.one_in(2) ? 32000 : 0;
    if (rng.one_in(3)) prob.parallel.vpp = 2;
    const double gib = 60 + 100 * rng.unit();
    const auto budget = dyncp::max_inflight_tokens_for(gib, prob.model, prob.cluster, prob.parallel,
                                                       prob.limits.max_tokens_per_rank);
    if (!budget) continue;
    prob.limits.max_inflight_tokens = *budget;
    const dyncp::analytic_cost cost(prob.model, prob.cluster, prob.parallel);
    const auto plan = dyncp::dynamic_cp{}.pack(prob, cost);
    if (!plan) continue;
    ++planned;
    const pipeline pipe{prob.parallel.pp, prob.parallel.vpp};
    const auto t = trace_memory(*plan, prob.sequences, pipe);
    for (std::int32_t s = 0; s < pipe.stages; ++s) {
      const auto memory = dyncp::stage_memory(prob.model, prob.parallel, s);
      for (const double bytes : dyncp::peak_bytes(t, s, memory)) {
        REQUIRE(bytes <= gib * 1073741824.0);
      }
    }
  }
  CHECK(4 * planned > rounds);
}
