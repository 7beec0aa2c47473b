// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// Two ranks, two stages, no fixed time. [1000] and [600 400] side by side, then [2000] on both.
struct hand_made {
  dyncp::problem prob = dyncp_test::reference_problem({1000, 600, 400, 2000}, 2, 2, 1000);
  dyncp::plan plan{2, 1000, {}, {}};

  hand_made() {
    prob.cluster.fixed_s = 0;
    plan.micro_batches.resize(2);
    plan.micro_batches[0].packs = {{{0, 1}, {0}}, {{1, 1}, {1, 2}}};
    plan.micro_batches[1].packs = {{{0, 2}, {3}}};
  }
  [[nodiscard]] dyncp::plan_statistics statistics() const {
    const dyncp::planner planner{dyncp::analytic_cost(prob.model, prob.cluster, prob.parallel)};
    const auto made = planner.evaluate(prob, plan);
    REQUIRE(made);
    return made->statistics;
  }
};

// Seconds of a token's matrices and a squared token's attention on a stage of 20 layers.
constexpr double per_token = 20 * 2 * 317194240.0 / 600e12;
constexpr double per_square = 20 * 10240.0 / 500e12;

}  // namespace

TEST_CASE("sums, counts and the mix of CP sizes") {
  const auto s = hand_made{}.statistics();
  CHECK(s.micro_batches == 2);
  CHECK(s.sequences == 4);
  CHECK(s.real_tokens == 4000);
  CHECK(s.real_squares == 5520000);
  CHECK(s.padded_tokens == 4000);
  CHECK(s.padded_squares == 5520000);
  CHECK(s.idle_slots == 0);
  CHECK(s.peak_tokens_per_rank == 1000);
  CHECK(s.inflight_peak_tokens == 2000);
  REQUIRE(s.cp_mix.size() == 2);
  CHECK(s.cp_mix[0].cp == 1);
  CHECK(s.cp_mix[0].packs == 2);
  CHECK(s.cp_mix[0].sequences == 3);
  CHECK(s.cp_mix[0].tokens == 2000);
  CHECK(s.cp_mix[1].cp == 2);
  CHECK(s.cp_mix[1].packs == 1);
  CHECK(s.cp_mix[1].tokens == 2000);
}

TEST_CASE("times by hand: ideal, bubble, imbalance, exposed share") {
  hand_made job;
  job.prob.cluster.nvlink_bytes_per_s = 1e18;  // rings cost nothing
  job.prob.cluster.nvlink_latency_s = 0;
  const auto s = job.statistics();
  // Forwards of the first micro-batch on its ranks, and of the second; backward is 3 times as long.
  const double first = 1000 * per_token + 1000000 * per_square;
  const double second = 1000 * per_token + (360000 + 160000) * per_square;
  const double both = (2000 * per_token + 4000000 * per_square) / 2;
  // Stage 1: F B F B without a gap, since stage 0 feeds it in time: f, then 4f, then 4 of `both`,
  // and the last backward on stage 0.
  const double makespan = first + 4 * first + 4 * both + 3 * both;
  CHECK(s.makespan_s == doctest::Approx(makespan).epsilon(1e-10));
  CHECK(s.exposed_share == doctest::Approx(0.0).epsilon(1e-6));
  const double busy = 2 * 4 * (first + second + 2 * both);  // two stages
  CHECK(s.bubble == doctest::Approx(1 - busy / (4 * makespan)).epsilon(1e-9));
  CHECK(s.imbalance ==
        doctest::Approx((first + both) * 2 / (first + second + 2 * both)).epsilon(1e-9));
  const double ideal = 4 * (4000 * per_token + 5520000 * per_square) / 2;
  CHECK(s.ideal_s == doctest::Approx(ideal).epsilon(1e-12));
  CHECK(s.iteration_s == doctest::Approx(s.makespan_s + s.all_reduce_s));
  CHECK(s.efficiency == doctest::Approx(ideal / s.iteration_s));
}

TEST_CASE("exposed share: ring time over all time, by rank") {
  hand_made job;
  job.prob.cluster.ring_overlap = 0;
  job.prob.cluster.nvlink_latency_s = 0;
  const auto s = job.statistics();
  const double hop = 20 * 2 * 5120.0 * 2 * 1000 / 450e9;  // 20 layers of one hop
  const double ring = hop + (hop + 2 * hop);  // forward; again and twice the bytes in backward
  const double work = 4 * (4000 * per_token + 5520000 * per_square);
  CHECK(s.exposed_share == doctest::Approx(2 * ring / (work + 2 * ring)).epsilon(1e-9));
}

TEST_CASE("idle slots are counted by rank, and cost no work") {
  hand_made job;
  job.plan.micro_batches[1].packs[0].ranks = {0, 1};
  job.prob.limits.max_tokens_per_rank = 2000;
  job.plan.max_tokens_per_rank = 2000;
  job.plan.micro_batches.emplace_back();
  const auto s = job.statistics();
  CHECK(s.micro_batches == 3);
  CHECK(s.idle_slots == 3);
  CHECK(s.peak_tokens_per_rank == 2000);
}

TEST_CASE("padding counts in padded sums alone") {
  hand_made job;
  job.plan.padding.multiple = 7;  // 1001, 602, 406, 2002
  job.plan.max_tokens_per_rank = 1008;
  job.prob.limits.max_tokens_per_rank = 1008;
  const auto s = job.statistics();
  CHECK(s.real_tokens == 4000);
  CHECK(s.padded_tokens == 4011);
  CHECK(s.padded_squares == 1001 * 1001 + 602 * 602 + 406 * 406 + 2002 * 2002);
  CHECK(s.peak_tokens_per_rank == 1008);
}

TEST_CASE("a plan that breaks a promise is not evaluated") {
  hand_made job;
  job.plan.micro_batches.pop_back();
  const dyncp::planner planner{
      dyncp::analytic_cost(job.prob.model, job.prob.cluster, job.prob.parallel)};
  const auto bad = planner.evaluate(job.prob, job.plan);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == dyncp::errc::invalid_plan);
}

TEST_CASE("can_plan: of several sequences that fit nowhere the longest is named") {
  const dyncp::problem p = dyncp_test::reference_problem({100, 8001, 9000, 8002}, 8, 2, 1000);
  const auto bad = dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)}.plan(p);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().value == 9000);
  // 9000 on 8 ranks, without padding.
  CHECK(bad.error().hint.find("raise --max-tokens-per-rank to 1125,") != std::string::npos);
}

TEST_CASE("can_plan: what fits nowhere, what cu_seqlens cannot hold, what ticks cannot count") {
  const auto code_of = [](const dyncp::problem& p) {
    const auto ok =
        dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)}.can_plan(p);
    return ok ? dyncp::errc::cancelled : ok.error().code;
  };
  CHECK(code_of(dyncp_test::reference_problem({8000}, 8, 2, 1000)) == dyncp::errc::cancelled);
  CHECK(code_of(dyncp_test::reference_problem({8001}, 8, 2, 1000)) ==
        dyncp::errc::sequence_too_long);
  const std::int64_t wide = std::int64_t{1} << 40;
  CHECK(code_of(dyncp_test::reference_problem({std::int64_t{1} << 31}, 8, 2, wide)) ==
        dyncp::errc::overflow);
  // Large batches of ordinary times can be counted.
  CHECK(code_of(dyncp_test::reference_problem(std::vector<std::int64_t>(2048, 30000), 32, 4,
                                              65536)) == dyncp::errc::cancelled);
  CHECK(code_of(dyncp_test::reference_problem(std::vector<std::int64_t>(131072, 2800), 8192, 8,
                                              16384)) == dyncp::errc::cancelled);
  dyncp::problem slow = dyncp_test::reference_problem({8000}, 8, 2, 1000);
  slow.cluster.linear_flops_per_s = 1e6;  // 8000 tokens then take over 2^20 s
  slow.model.layers = 4000;
  CHECK(code_of(slow) == dyncp::errc::overflow);
  slow.cluster.linear_flops_per_s = 1;
  CHECK(code_of(slow) == dyncp::errc::invalid_argument);
}
