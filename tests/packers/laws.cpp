// SPDX-License-Identifier: Apache-2.0
// What every baseline owes on any input: a plan that breaks no promise but those its original does
// not keep, or a typed error; the same one each time.
#include "all_packers.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>

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
    const dyncp::problem p = dyncp_test::random_problem(rng);
    CAPTURE(seed + static_cast<std::uint64_t>(i));
    CAPTURE(dyncp_test::describe(p));
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
