// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/plan/lower_bounds.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

void check_bounds(const dyncp::problem& p) {
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const auto made = dyncp::planner{cost}.plan(p);
  if (!made) return;
  for (const dyncp::lower_bound& b : dyncp::lower_bounds(p, cost).bounds) {
    CAPTURE(b.name);
    CHECK(dyncp::to_seconds(b.value) <= made->statistics.makespan_s);
  }
  const auto at_m = dyncp::bound_at(p, cost, made->statistics.micro_batches);
  CHECK(dyncp::to_seconds(at_m.value) <= made->statistics.makespan_s);
}

}  // namespace

TEST_CASE("no certificate is above a plan, whatever the cluster") {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    dyncp_test::random rng(seed);
    dyncp::problem p = dyncp_test::random_problem(rng);
    // Corners that no real cluster has: slow small kernels, a network faster than NVLink, no
    // fixed time, partial overlap.
    if (rng.one_in(2)) {
      p.cluster.attention_half_tokens = static_cast<double>(rng.between(1, 100000));
    }
    if (rng.one_in(2)) p.cluster.linear_half_tokens = static_cast<double>(rng.between(1, 1000));
    if (rng.one_in(3)) p.cluster.fixed_s = 0;
    if (rng.one_in(3)) p.cluster.nvlink_latency_s = 1;
    if (rng.one_in(3)) p.cluster.network_bytes_per_s = 1e15;
    if (rng.one_in(3)) p.cluster.ring_overlap = 0.5;
    if (rng.one_in(4)) p.cluster.linear_flops_per_s = 1e21;
    if (rng.one_in(4)) p.model.vocabulary = 32000;
    if (!dyncp::check(p)) continue;
    CAPTURE(seed);
    CAPTURE(dyncp_test::describe(p));
    check_bounds(p);
  }
}

TEST_CASE("a companion can make a slow small attention kernel faster") {
  // 1000 alone: attention 1000^2 * (1 + 1e6/1000); with 500 beside it 1.25e6 * (1 + 1e6/1500).
  dyncp::problem p = dyncp_test::reference_problem({1000, 500}, 1, 1, 100000);
  p.cluster.attention_half_tokens = 1e6;
  p.cluster.linear_flops_per_s = 1e21;
  p.cluster.fixed_s = 0;
  check_bounds(p);
}

TEST_CASE("a specification that prices nothing is refused, not planned") {
  const dyncp::problem good = dyncp_test::reference_problem({100, 200}, 2, 2, 1000);
  const auto refused = [](dyncp::problem p) {
    const auto made =
        dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)}.plan(p);
    REQUIRE_FALSE(made);
    CHECK(made.error().code == dyncp::errc::invalid_argument);
    return made.error().message();
  };
  dyncp::problem p = good;
  p.model = {};
  CHECK(refused(p).find("layers") != std::string::npos);
  p = good;
  p.cluster = {};
  CHECK(refused(p).find("linear_flops_per_s") != std::string::npos);
  p = good;
  p.cluster.linear_flops_per_s = std::numeric_limits<double>::quiet_NaN();
  CHECK(refused(p).find("linear_flops_per_s") != std::string::npos);
  p = good;
  p.cluster.gpus_per_node = 0;
  CHECK(refused(p).find("gpus_per_node") != std::string::npos);
  p = good;
  p.cluster.fixed_s = std::numeric_limits<double>::infinity();
  CHECK(refused(p).find("fixed_s") != std::string::npos);
}

TEST_CASE("slow clusters overflow no sort key") {
  dyncp::problem p = dyncp_test::reference_problem({2000, 100}, 8, 1, 250);
  p.parallel.min_cp = 8;
  p.cluster.linear_flops_per_s = 2.2e7;
  const auto made = dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)}.plan(p);
  CHECK((made || made.error().code == dyncp::errc::overflow));
}

TEST_CASE("a plan for another job is not valid for this one") {
  const dyncp::problem p = dyncp_test::reference_problem({100, 200}, 4, 2, 1000);
  const auto made = dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)}.plan(p);
  REQUIRE(made);
  dyncp::problem other = p;
  other.parallel.ranks = 8;
  REQUIRE(dyncp::validate(made->plan, other).size() == 1);
  CHECK(dyncp::validate(made->plan, other)[0].kind == dyncp::violation_kind::wrong_job);
  other = p;
  other.limits.max_tokens_per_rank = 999;
  REQUIRE(dyncp::validate(made->plan, other).size() == 1);
  CHECK(dyncp::validate(made->plan, other)[0].kind == dyncp::violation_kind::wrong_job);
}

TEST_CASE("many groups on the same ranks are told in linear time") {
  dyncp::problem p =
      dyncp_test::reference_problem(std::vector<std::int64_t>(20000, 1), 1 << 20, 1, 8);
  dyncp::plan bad{1 << 20, 8, {}, std::vector<dyncp::micro_batch>(1)};
  for (std::int32_t i = 0; i < 20000; ++i) {
    bad.micro_batches[0].packs.push_back({{0, 1 << 20}, {i}});
  }
  // 20,000 * 2^20 rank visits would take most of a minute; the count of breaches is what is told.
  CHECK(dyncp::validate(bad, p).size() == 19999);
}

TEST_CASE("one sequence in flight at a time: the bound is the plan") {
  // Five equal sequences on one rank, four stages, room for one: each goes all the way alone.
  dyncp::problem p = dyncp_test::reference_problem(std::vector<std::int64_t>(5, 1000), 1, 4, 1000);
  p.limits.max_inflight_tokens = 1000;
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  dyncp::ticks way = 0;
  for (std::int32_t stage = 0; stage < 4; ++stage) {
    way += cost.cost(dyncp::sequence_load(1000, 1), 1, dyncp::link::nvlink,
                     cost.stage_class(stage)).total();
  }
  const auto made = dyncp::planner{cost}.plan(p);
  REQUIRE(made);
  CHECK(made->statistics.makespan_s == dyncp::to_seconds(5 * way));
  CHECK(made->certificate.binding().name == "inflight");
  CHECK(made->certificate.binding().value == 5 * way);
}
