// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/tiled_plan.hpp>
#include <dyncp/plan/validate.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using dyncp::analytic_cost;
using dyncp::detail::item_table;
using dyncp::detail::tiled_planner;

TEST_CASE("nine sequences, sixteen ranks: any M up to nine, no rank idle") {
  dyncp::problem p =
      dyncp_test::reference_problem({100, 200, 300, 400, 500, 600, 700, 800, 900}, 16, 1, 4096);
  p.limits.no_idle_ranks = true;
  const analytic_cost cost(p.model, p.cluster, p.parallel);
  const auto items = dyncp::detail::make_items(p, cost);
  REQUIRE(items);
  tiled_planner<analytic_cost> tiled(p, cost, *items);
  CHECK(tiled.most_micro_batches() == 9);
  for (std::int32_t m = 1; m <= 9; ++m) {
    dyncp::plan plan;
    REQUIRE(tiled.build(m, 1, plan));
    CHECK(plan.num_micro_batches() == m);
    CHECK(dyncp::validate(plan, p).empty());
  }
  dyncp::plan none;
  CHECK_FALSE(tiled.build(10, 1, none));
  CHECK_FALSE(tiled.build(0, 1, none));
}

TEST_CASE("the floor widens the tiles, and no size that divides the ranks makes no plan") {
  dyncp::problem p = dyncp_test::reference_problem(std::vector<std::int64_t>(20, 50), 6, 2, 100);
  p.parallel.cp_sizes = {1, 3, 4, 6};
  const analytic_cost cost(p.model, p.cluster, p.parallel);
  auto items = dyncp::detail::make_items(p, cost);
  REQUIRE(items);
  dyncp::plan plan;
  REQUIRE(tiled_planner<analytic_cost>(p, cost, *items).build(2, 1, plan));
  CHECK(plan.micro_batches[0].packs.size() == 6);
  REQUIRE(tiled_planner<analytic_cost>(p, cost, *items).build(2, 2, plan));
  CHECK(plan.micro_batches[0].packs.size() == 2);  // groups of three
  p.parallel.cp_sizes = {4};
  items = dyncp::detail::make_items(p, cost);
  REQUIRE(items);
  CHECK(tiled_planner<analytic_cost>(p, cost, *items).most_micro_batches() == 0);
  CHECK_FALSE(tiled_planner<analytic_cost>(p, cost, *items).build(1, 1, plan));
}

TEST_CASE("random problems: whatever is built keeps every promise, and with room it is built") {
  const std::uint64_t seed = dyncp_test::seed_or(77);
  int built = 0;
  const std::int64_t rounds = dyncp_test::count_or(2000);
  for (std::int64_t round = 0; round < rounds; ++round) {
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    dyncp::problem p = dyncp_test::random_problem(rng);
    p.limits.no_idle_ranks = true;
    p.limits.max_inflight_tokens = 0;
    p.limits.micro_batch_multiple = 1;
    p.limits.micro_batches = 0;
    p.parallel.vpp = 1;
    if (!dyncp::check(p)) continue;
    const analytic_cost cost(p.model, p.cluster, p.parallel);
    const auto items = dyncp::detail::make_items(p, cost);
    if (!items) continue;
    tiled_planner<analytic_cost> tiled(p, cost, *items);
    const auto m = static_cast<std::int32_t>(rng.between(1, 1 + tiled.most_micro_batches()));
    dyncp::plan plan;
    CAPTURE(dyncp_test::describe(p));
    CAPTURE(m);
    if (tiled.build(m, static_cast<std::int32_t>(rng.between(1, p.parallel.ranks)), plan)) {
      ++built;
      REQUIRE(dyncp::validate(plan, p).empty());
      REQUIRE(plan.num_micro_batches() == m);
      continue;
    }
    // Room for everything on the whole domain: then every M up to the items must have been built.
    dyncp::problem roomy = p;
    roomy.limits.max_tokens_per_rank = 1000000;
    roomy.limits.max_sequences_per_pack = 0;
    roomy.parallel.cp_sizes.push_back(p.parallel.ranks);
    const auto again = dyncp::detail::make_items(roomy, cost);
    REQUIRE(again);
    REQUIRE(tiled_planner<analytic_cost>(roomy, cost, *again)
                .build(std::min(m, again->count()), 1, plan));
    REQUIRE(dyncp::validate(plan, roomy).empty());
  }
  CHECK(5 * built > rounds);
}
