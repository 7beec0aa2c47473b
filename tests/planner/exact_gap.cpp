// SPDX-License-Identifier: Apache-2.0
#include "enumerator.hpp"
#include "exact_reference.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/corpora.hpp>
#include <dyncp/plan/lower_bounds.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/sim/fluid_bound.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

std::vector<std::int64_t> random_lengths(dyncp_test::random& rng, int count) {
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) {
    lengths.push_back(rng.one_in(4) ? rng.between(8000, 40000) : rng.between(200, 9000));
  }
  return lengths;
}

// The planner's best over M = 1 .. most, which is what the reference ranges over.
dyncp::ticks planned_ticks(const dyncp::problem& p, std::int32_t most) {
  const dyncp::planner planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
  dyncp::ticks best = 0;
  for (std::int32_t m = 1; m <= most; ++m) {
    dyncp::problem fixed = p;
    fixed.limits.micro_batches = m;
    const auto made = planner.plan(fixed);
    if (!made) continue;
    const dyncp::ticks t = dyncp::to_ticks(made->statistics.makespan_s);
    if (best == 0 || t < best) best = t;
  }
  return best;
}

}  // namespace

TEST_CASE("branch and bound finds what plain enumeration finds") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    dyncp_test::random rng(seed);
    const int count = static_cast<int>(rng.between(2, 4));
    const dyncp::problem p =
        dyncp_test::reference_problem(random_lengths(rng, count), 4, 2, 16384);
    dyncp_test::exact_reference bounded(p, 2);
    dyncp_test::exact_reference plain(p, 2, false);
    CHECK(bounded.solve() == plain.solve());
    CHECK(bounded.nodes() <= plain.nodes());
  }
  // Five sequences on two ranks, by enumeration too.
  dyncp_test::random rng(77);
  const dyncp::problem p = dyncp_test::reference_problem(random_lengths(rng, 5), 2, 2, 30000);
  CHECK(dyncp_test::exact_reference(p, 3).solve() ==
        dyncp_test::exact_reference(p, 3, false).solve());
}

TEST_CASE("the exact reference is the least of all plans, counted one by one") {
  const auto agree = [](std::uint64_t seed, int count, std::int32_t ranks, int most) {
    CAPTURE(seed);
    CAPTURE(count);
    dyncp_test::random rng(seed);
    const dyncp::problem p =
        dyncp_test::reference_problem(random_lengths(rng, count), ranks, 2, 16384);
    const std::int64_t counted = dyncp_test::least_by_counting(p, most);
    const std::int64_t searched = dyncp_test::exact_reference(p, most).solve();
    // Costs in long double and in double may round to neighbouring ticks, in each operation.
    CHECK(searched - counted <= 64);
    CHECK(counted - searched <= 64);
  };
  for (std::uint64_t seed = 1; seed <= 200; ++seed) agree(seed, 2, 4, 3);
  for (std::uint64_t seed = 1; seed <= 60; ++seed) agree(seed, 3, 4, 3);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) agree(seed, 4, 4, 2);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) agree(seed, 5, 2, 2);
}

TEST_CASE("no certificate is above the least of all plans within a budget of tokens in flight") {
  int binding = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    dyncp_test::random rng(seed);
    const auto ranks = static_cast<std::int32_t>(rng.one_in(2) ? 1 : 2);
    const auto stages = static_cast<std::int32_t>(rng.between(2, 4));
    const std::vector<std::int64_t> lengths = random_lengths(rng, rng.one_in(2) ? 2 : 3);
    dyncp::problem p = dyncp_test::reference_problem(lengths, ranks, stages, 40000);
    // Little more than the longest needs.
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    p.limits.max_inflight_tokens = longest / ranks + rng.between(1, 1 + longest / 4);
    const std::int64_t least = dyncp_test::least_by_counting(p, 5);
    if (least == std::numeric_limits<std::int64_t>::max()) continue;
    const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
    const dyncp::lower_bound bound = dyncp::lower_bounds(p, cost).binding();
    CHECK(bound.value <= least + 64);
    binding += bound.name == "inflight" ? 1 : 0;
  }
  CHECK(binding >= 20);
}

TEST_CASE("the planner is near the optimum of small batches") {
  double sum = 0;
  double worst = 0;
  constexpr int seeds = 200;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    dyncp_test::random rng(seed);
    const dyncp::problem p = dyncp_test::reference_problem(random_lengths(rng, 8), 4, 2, 16384);
    const dyncp::ticks planned = planned_ticks(p, 3);
    REQUIRE(planned > 0);
    const dyncp::ticks optimum = dyncp_test::exact_reference(p, 3).solve(planned + 1);
    const double gap = static_cast<double>(planned) / static_cast<double>(optimum) - 1.0;
    sum += gap;
    worst = std::max(worst, gap);
    // No certificate is above the optimum.
    const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
    for (const dyncp::lower_bound& b : dyncp::lower_bounds(p, cost).bounds) {
      CAPTURE(b.name);
      CHECK(b.value <= optimum);
    }
  }
  MESSAGE("mean gap " << sum / seeds << ", worst " << worst);
  CHECK(sum / seeds <= 0.01);
  CHECK(worst <= 0.05);
}

TEST_CASE("the fluid bound is not above the optimum of small batches") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    dyncp_test::random rng(seed);
    const int count = static_cast<int>(rng.between(2, 5));
    const dyncp::problem p =
        dyncp_test::reference_problem(random_lengths(rng, count), 4, 2, 16384);
    const double optimum = dyncp::to_seconds(dyncp_test::exact_reference(p, 3).solve());
    const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
    CHECK(dyncp::fluid_makespan_bound(p, cost).makespan_s <= optimum * (1 + 1e-9));
  }
}

TEST_CASE("and of small batches of corpora where nearly all work is in long sequences") {
  for (const char* name : {"mock-16k", "video"}) {
    CAPTURE(name);
    dyncp::length_generator draw(*dyncp::find_corpus(name), 1);
    double sum = 0;
    constexpr int batches = 20;
    for (int k = 0; k < batches; ++k) {
      std::vector<std::int64_t> lengths;
      while (lengths.size() < 8) {
        const std::int64_t n = draw.next();
        if (n >= 16 && n <= 65536) lengths.push_back(n);
      }
      const dyncp::problem p = dyncp_test::reference_problem(lengths, 4, 2, 65536);
      const auto best = static_cast<double>(dyncp_test::exact_reference(p, 3).solve());
      const double gap = static_cast<double>(planned_ticks(p, 3)) / best - 1.0;
      CHECK(gap > -1e-9);
      CHECK(gap <= 0.05);
      sum += gap;
    }
    MESSAGE("mean gap " << sum / batches);
    CHECK(sum / batches <= 0.01);
  }
}
