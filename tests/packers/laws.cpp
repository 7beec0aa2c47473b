// SPDX-License-Identifier: Apache-2.0
// What every baseline owes on any input: a plan that breaks no promise but those its original does
// not keep, or a typed error; the same one each time.
#include "all_packers.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace {

struct tally {
  int planned = 0;
  int over = 0;
  int refused = 0;
};

template <class Packer>
void check_one(const dyncp::problem& p, tally& seen) {
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  CAPTURE(Packer::name);
  const auto made = Packer{}.pack(p, cost);
  const auto again = Packer{}.pack(p, cost);
  REQUIRE(made.has_value() == again.has_value());
  if (!made) {
    const dyncp::errc code = made.error().code;
    REQUIRE_MESSAGE((code == dyncp::errc::infeasible || code == dyncp::errc::not_found ||
                     code == dyncp::errc::sequence_too_long || code == dyncp::errc::unsupported),
                    made.error().message());
    REQUIRE_FALSE(made.error().hint.empty());
    ++seen.refused;
    return;
  }
  REQUIRE(*made == *again);
  const auto allowed = dyncp_test::may_break<Packer>();
  const auto found = dyncp::validate(*made, p);
  for (const dyncp::violation& v : found) {
    REQUIRE_MESSAGE(allowed.count(v.kind) == 1, to_string(v.kind), " ", v.message);
  }
  ++(found.empty() ? seen.planned : seen.over);
}

}  // namespace

TEST_CASE("random problems give each baseline's plan or a typed error") {
  const std::uint64_t seed = dyncp_test::seed_or(20261130);
  std::map<std::string, tally> seen;
  for (std::int64_t i = 0; i < dyncp_test::count_or(2000); ++i) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(i));
    dyncp::problem p = dyncp_test::random_problem(rng);
    // Static packers have something to share their packs over.
    const auto cp = static_cast<std::int32_t>(rng.between(1, p.parallel.ranks));
    if (p.parallel.ranks % cp == 0) p.parallel.static_cp = cp;
    CAPTURE(seed + static_cast<std::uint64_t>(i));
    CAPTURE(dyncp_test::describe(p));
    CAPTURE(p.parallel.static_cp);
    const dyncp::planner planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
    if (!planner.can_plan(p)) continue;
    dyncp_test::for_each_baseline(
        [&]<class Packer>() { check_one<Packer>(p, seen[std::string(Packer::name)]); });
  }
  for (const auto& [name, t] : seen) {
    MESSAGE(name << ": " << t.planned << " valid, " << t.over << " over a limit, " << t.refused
                 << " refused");
    CHECK(t.planned > 0);
  }
}

TEST_CASE("default_dynamic_cp never fails on a power of two of ranks without a multiple") {
  const std::uint64_t seed = dyncp_test::seed_or(20261131);
  for (std::int64_t i = 0; i < dyncp_test::count_or(1000); ++i) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(i));
    const std::int64_t limit = rng.between(1, 40);
    const auto ranks = static_cast<std::int32_t>(1 << rng.between(0, 5));
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = rng.between(1, 40); n > 0; --n) {
      lengths.push_back(rng.between(1, rng.chance(0.2) ? limit * ranks : limit));
    }
    const dyncp::problem p = dyncp_test::reference_problem(lengths, ranks, 1, limit);
    CAPTURE(seed + static_cast<std::uint64_t>(i));
    CAPTURE(dyncp_test::describe(p));
    const auto made =
        dyncp::default_dynamic_cp{}.pack(p, dyncp::analytic_cost(p.model, p.cluster, p.parallel));
    REQUIRE(made);
    REQUIRE(dyncp::validate(*made, p).empty());
    for (const dyncp::micro_batch& mb : made->micro_batches) {
      std::int32_t next = 0;
      std::int32_t size = ranks;
      for (const dyncp::pack& pk : mb.packs) {
        REQUIRE(pk.ranks.begin == next);
        REQUIRE(pk.ranks.size <= size);
        next = pk.ranks.end();
        size = pk.ranks.size;
      }
      REQUIRE(next == ranks);
    }
  }
}

TEST_CASE("wlb_llm_stream sends every sequence exactly once") {
  const std::uint64_t seed = dyncp_test::seed_or(20261132);
  for (std::int64_t i = 0; i < dyncp_test::count_or(300); ++i) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(i));
    CAPTURE(seed + static_cast<std::uint64_t>(i));
    dyncp::problem p = dyncp_test::reference_problem({1}, 4, 2, rng.between(40, 80));
    p.parallel.static_cp = static_cast<std::int32_t>(1 << rng.between(0, 2));
    if (rng.chance(0.5)) p.limits.micro_batches = static_cast<std::int32_t>(rng.between(1, 3));
    const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
    const std::int64_t max_delay = rng.between(0, 3);
    dyncp::wlb_llm_stream stream({20, 30}, rng.between(20, 80), max_delay);
    std::map<std::int64_t, std::int64_t> length_of;
    std::map<std::int64_t, std::int64_t> step_of;
    std::map<std::int64_t, int> sent;
    const auto take = [&](const dyncp::wlb_step& step, std::int64_t now) {
      dyncp::problem out = p;
      out.sequences = step.batch;
      REQUIRE(dyncp::validate(step.plan, out).empty());
      std::int64_t late = 0;
      std::int64_t longest = 0;
      for (const dyncp::sequence& s : step.batch) {
        REQUIRE(length_of[s.id] == s.length);
        ++sent[s.id];
        late += step_of[s.id] < now ? 1 : 0;
        longest = std::max(longest, now - step_of[s.id]);
      }
      REQUIRE(step.late == late);
      REQUIRE(step.longest_delay == longest);
      if (max_delay > 0) REQUIRE(longest <= max_delay);
    };
    std::int64_t id = 0;
    for (std::int64_t step = 0; step < 6; ++step) {
      p.sequences.clear();
      for (std::int64_t n = rng.between(1, 12); n > 0; --n) {
        p.sequences.push_back({id, rng.between(1, 40)});
        step_of[id] = step;
        length_of[id++] = p.sequences.back().length;
      }
      const bool bounded = max_delay > 0;
      auto made = stream.next(p, cost);
      if (!made && bounded && p.limits.micro_batches > 0) {
        // The bound of the delay and the fixed M exclude each other: nothing was taken in.
        REQUIRE(made.error().code == dyncp::errc::not_found);
        p.limits.micro_batches = 0;
        made = stream.next(p, cost);
      }
      REQUIRE(made);
      take(*made, step);
      REQUIRE(stream.waiting() == made->waiting);
      REQUIRE(static_cast<std::int64_t>(sent.size()) + stream.waiting() == id);
    }
    if (stream.waiting() > 0) {
      p.limits.micro_batches = 0;
      const auto rest = stream.flush(p, cost);
      REQUIRE(rest);
      take(*rest, 6);
    }
    REQUIRE(stream.waiting() == 0);
    REQUIRE(static_cast<std::int64_t>(sent.size()) == id);
    for (const auto& [key, times] : sent) REQUIRE(times == 1);
  }
}
