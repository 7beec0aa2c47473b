// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/plan/validate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace {

using lengths = std::vector<std::int64_t>;
using lists = std::vector<std::vector<std::int32_t>>;

dyncp::result<dyncp::plan> pack(const dyncp::problem& p) {
  return dyncp::packing_only{}.pack(p, dyncp::analytic_cost(p.model, p.cluster, p.parallel));
}

// `ranks` ranks of which `cp` make a lane.
dyncp::problem lanes(const lengths& seqs, std::int32_t ranks, std::int32_t cp, std::int64_t limit) {
  dyncp::problem p = dyncp_test::reference_problem(seqs, ranks, 2, limit);
  p.parallel.static_cp = cp;
  return p;
}

// The packs in order of micro-batch and lane.
lists packs_of(const dyncp::plan& p) {
  lists out;
  for (const dyncp::micro_batch& mb : p.micro_batches) {
    for (const dyncp::pack& pk : mb.packs) out.push_back(pk.sequences);
  }
  return out;
}

// The baseline's rules once more, on a list of piles.
lists expected_packs(const lengths& seqs, std::int64_t capacity, std::size_t multiple) {
  std::deque<std::deque<std::int32_t>> piles;
  std::int64_t room = 0;
  for (std::size_t i = 0; i < seqs.size(); ++i) {
    if (piles.empty() || seqs[i] > room) {
      piles.emplace_back();
      room = capacity;
    }
    piles.back().push_back(static_cast<std::int32_t>(i));
    room -= seqs[i];
  }
  while (piles.size() % multiple != 0) {
    auto giver = std::find_if(piles.rbegin(), piles.rend(),
                              [](const auto& pile) { return pile.size() > 1; });
    if (giver == piles.rend()) break;
    const std::int32_t moved = giver->back();
    giver->pop_back();
    piles.push_back({moved});
  }
  lists out;
  for (const auto& pile : piles) out.emplace_back(pile.begin(), pile.end());
  return out;
}

}  // namespace

TEST_CASE("next-fit in order, then the last pack that can gives its last sequence") {
  // Capacity 10 a lane of one rank: {4 5} {6 4} {9}; two lanes need a fourth pack: {6} {4}.
  const auto plan = pack(lanes({4, 5, 6, 4, 9}, 2, 1, 10));
  REQUIRE(plan);
  CHECK(packs_of(*plan) == lists{{0, 1}, {2}, {4}, {3}});
  REQUIRE(plan->num_micro_batches() == 2);
  CHECK(plan->micro_batches[1].packs[1].ranks == dyncp::rank_range{1, 1});
}

TEST_CASE("lanes of four ranks hold four times the limit") {
  const auto plan = pack(lanes({40, 30, 10, 1}, 8, 4, 10));
  REQUIRE(plan);
  // {40} {30 10} {1}: three packs for two lanes; {30 10} gives the 10.
  CHECK(packs_of(*plan) == lists{{0}, {1}, {3}, {2}});
}

TEST_CASE("ten equal sequences on two lanes split 9 : 1, as the published scheduler does") {
  const auto plan = pack(lanes(lengths(10, 10), 2, 1, 100));
  REQUIRE(plan);
  CHECK(packs_of(*plan) == lists{{0, 1, 2, 3, 4, 5, 6, 7, 8}, {9}});
}

TEST_CASE("a sequence over the lane's capacity is named, with what would help") {
  const auto bad = pack(lanes({10, 100}, 4, 2, 32));
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == dyncp::errc::sequence_too_long);
  CHECK(bad.error().value == 100);
  CHECK(bad.error().limit == 64);
  CHECK(bad.error().what.find("sequence 1 has 100 tokens") != std::string::npos);
  CHECK(bad.error().hint.find("50") != std::string::npos);
}

TEST_CASE("too few sequences leave lanes idle and micro-batches empty") {
  dyncp::problem p = lanes({5, 5, 5}, 4, 1, 10);
  auto plan = pack(p);
  REQUIRE(plan);
  CHECK(packs_of(*plan) == lists{{0}, {2}, {1}});
  CHECK(plan->num_micro_batches() == 1);
  p.parallel.vpp = 2;  // on two stages M is even
  plan = pack(p);
  REQUIRE(plan);
  CHECK(plan->num_micro_batches() == 2);
  CHECK(plan->micro_batches[0].packs.empty());
  CHECK(dyncp::validate(*plan, p).empty());
}

TEST_CASE("the sequence cap closes packs, padding counts") {
  dyncp::problem p = lanes(lengths(7, 1), 1, 1, 100);
  p.limits.max_sequences_per_pack = 3;
  CHECK(packs_of(*pack(p)) == lists{{0, 1, 2}, {3, 4, 5}, {6}});
  p = lanes({3, 3, 3}, 2, 2, 4);  // 8 tokens a lane; each takes 4 in the zigzag layout
  CHECK(packs_of(*pack(p)) == lists{{0, 1}, {2}});
  p.padding.zigzag = true;
  CHECK(packs_of(*pack(p)) == lists{{0, 1}, {2}});
  p.sequences[0].length = 5;
  CHECK(packs_of(*pack(p)) == lists{{0}, {1, 2}});
}

TEST_CASE("any batch: the rules on piles, and a valid plan") {
  const std::uint64_t seed = dyncp_test::seed_or(64);
  for (std::int64_t round = 0; round < dyncp_test::count_or(3000); ++round) {
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    const auto cp = static_cast<std::int32_t>(std::int64_t{1} << rng.between(0, 2));
    const auto dp = static_cast<std::int32_t>(rng.between(1, 5));
    const std::int64_t limit = rng.between(1, 30);
    lengths seqs;
    for (std::int64_t n = rng.between(1, 40); n > 0; --n) {
      seqs.push_back(rng.between(1, rng.one_in(2) ? limit * cp : limit));
    }
    dyncp::problem p = lanes(seqs, dp * cp, cp, limit);
    p.limits.micro_batch_multiple = static_cast<std::int32_t>(rng.between(1, 3));
    const auto plan = pack(p);
    REQUIRE(plan);
    CHECK(dyncp::validate(*plan, p).empty());
    const lists expected = expected_packs(
        seqs, limit * cp, static_cast<std::size_t>(dp * p.limits.micro_batch_multiple));
    CHECK(packs_of(*plan) == expected);
    for (std::size_t j = 0; j < plan->micro_batches.size(); ++j) {
      const auto& packs = plan->micro_batches[j].packs;
      for (std::size_t lane = 0; lane < packs.size(); ++lane) {
        CHECK(packs[lane].ranks == dyncp::rank_range{static_cast<std::int32_t>(lane) * cp, cp});
      }
    }
  }
}
