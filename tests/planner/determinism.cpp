// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

using dyncp::problem;

namespace {

dyncp::planner<dyncp::analytic_cost> planner_of(const problem& p) {
  return dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
}

// 0 where there is no plan.
std::uint64_t digest_of(const problem& p) {
  const auto made = planner_of(p).plan(p);
  return made ? dyncp::digest(p, made->plan) : 0;
}

// The plan with the lengths of its sequences instead of their positions, sorted in each pack.
struct shape {
  std::vector<std::pair<dyncp::rank_range, std::vector<std::int64_t>>> packs;
  std::vector<std::size_t> packs_of_micro_batch;
  friend bool operator==(const shape&, const shape&) = default;
};
shape shape_of(const dyncp::plan& p, const problem& prob) {
  shape out;
  for (const dyncp::micro_batch& mb : p.micro_batches) {
    out.packs_of_micro_batch.push_back(mb.packs.size());
    for (const dyncp::pack& pk : mb.packs) {
      std::vector<std::int64_t> lengths;
      for (const std::int32_t i : pk.sequences) {
        lengths.push_back(prob.sequences[static_cast<std::size_t>(i)].length);
      }
      std::sort(lengths.begin(), lengths.end());
      out.packs.emplace_back(pk.ranks, lengths);
    }
  }
  return out;
}

problem random_batch(dyncp_test::random& rng) {
  std::vector<std::int64_t> lengths;
  // Small batches are searched harder than large ones.
  for (std::int64_t n = rng.one_in(3) ? rng.between(1, 60) : rng.between(65, 200); n > 0; --n) {
    lengths.push_back(rng.one_in(5) ? rng.between(1, 60000) : 100 * rng.between(1, 9));
  }
  problem p = dyncp_test::reference_problem(lengths, 1 << rng.between(0, 4),
                                            static_cast<std::int32_t>(rng.between(1, 8)), 60000);
  p.cluster.gpus_per_node = 4;
  p.padding.zigzag = rng.one_in(2);
  return p;
}

}  // namespace

TEST_CASE("a problem planned twice gives the same bytes") {
  const std::uint64_t seed = dyncp_test::seed_or(5);
  for (std::int64_t round = 0; round < dyncp_test::count_or(60); ++round) {
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    const problem p = rng.one_in(2) ? dyncp_test::random_problem(rng) : random_batch(rng);
    if (!dyncp::check(p)) continue;
    const problem copy = p;
    CHECK(digest_of(p) == digest_of(copy));
  }
}

TEST_CASE("four threads with one planner give the same bytes") {
  const std::uint64_t seed = dyncp_test::seed_or(6);
  for (std::int64_t round = 0; round < dyncp_test::count_or(8); ++round) {
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    const problem p = random_batch(rng);
    const auto planner = planner_of(p);
    const auto first = planner.plan(p);
    REQUIRE(first);
    std::array<std::uint64_t, 4> digests{};
    std::vector<std::thread> threads;
    for (std::uint64_t& digest : digests) {
      threads.emplace_back([&planner, &p, &digest] {
        const auto made = planner.plan(p);
        if (made) digest = dyncp::digest(p, made->plan);
      });
    }
    for (std::thread& t : threads) t.join();
    for (const std::uint64_t digest : digests) CHECK(digest == dyncp::digest(p, first->plan));
  }
}

TEST_CASE("ids are carried, not planned by") {
  const std::uint64_t seed = dyncp_test::seed_or(7);
  for (std::int64_t round = 0; round < dyncp_test::count_or(25); ++round) {
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    const problem p = random_batch(rng);
    problem renamed = p;
    for (dyncp::sequence& s : renamed.sequences) s.id = rng.between(-1000, 1000);
    renamed.model.name = "renamed";
    const auto a = planner_of(p).plan(p);
    const auto b = planner_of(renamed).plan(renamed);
    REQUIRE(a);
    REQUIRE(b);
    CHECK(a->plan == b->plan);
    CHECK(dyncp::digest(p) != dyncp::digest(renamed));  // what they are fed differs
  }
}

TEST_CASE("a batch in another order is planned alike: equal lengths stand for each other") {
  const std::uint64_t seed = dyncp_test::seed_or(8);
  for (std::int64_t round = 0; round < dyncp_test::count_or(25); ++round) {
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    const problem p = random_batch(rng);
    problem shuffled = p;
    for (std::size_t i = shuffled.sequences.size(); i > 1; --i) {
      std::swap(shuffled.sequences[i - 1], shuffled.sequences[rng.next() % i]);
    }
    CAPTURE(dyncp_test::describe(p));
    const auto a = planner_of(p).plan(p);
    const auto b = planner_of(shuffled).plan(shuffled);
    REQUIRE(a);
    REQUIRE(b);
    CHECK(shape_of(a->plan, p) == shape_of(b->plan, shuffled));
    CHECK(a->statistics.makespan_s == b->statistics.makespan_s);
  }
}

TEST_CASE("policies in any order make the same planner") {
  dyncp_test::random rng(dyncp_test::seed_or(9));
  const problem p = random_batch(rng);
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const auto one = dyncp::planner{cost, dyncp::dynamic_cp{}, dyncp::event_simulator{}}.plan(p);
  const auto other = dyncp::planner{dyncp::event_simulator{}, dyncp::dynamic_cp{}, cost}.plan(p);
  const auto defaults = dyncp::planner{cost}.plan(p);
  REQUIRE(one);
  REQUIRE(other);
  REQUIRE(defaults);
  CHECK(one->plan == other->plan);
  CHECK(one->plan == defaults->plan);
}
