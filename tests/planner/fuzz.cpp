// SPDX-License-Identifier: Apache-2.0
#include "brute_feasible.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

/// True when every atomic group, alone, fits some allowed group within the limits on tokens: then
/// a plan exists as long as neither M nor idleness is constrained (empty micro-batches spread it).
bool each_fits_alone(const dyncp::problem& p) {
  std::map<std::int64_t, std::vector<std::int64_t>> parts;
  for (std::size_t i = 0; i < p.sequences.size(); ++i) {
    const std::int64_t key =
        p.sequences[i].atom >= 0 ? p.sequences[i].atom : -1 - static_cast<std::int64_t>(i);
    parts[key].push_back(p.sequences[i].length);
  }
  for (const auto& [key, lengths] : parts) {
    bool fits = false;
    for (const std::int32_t c : dyncp::allowed_cp_sizes(p.parallel)) {
      const std::int64_t align = dyncp::alignment(p.padding, c);
      std::int64_t tokens = 0;
      for (const std::int64_t n : lengths) tokens += (n + align - 1) / align * align;
      const std::int64_t shard = p.padding.shard_multiple * c;
      if (p.padding.shard_multiple > 1) tokens = (tokens + shard - 1) / shard * shard;
      const std::int64_t per_rank = (tokens + c - 1) / c;
      const auto cap = static_cast<std::size_t>(p.limits.max_sequences_per_pack);
      fits = fits || (tokens <= p.limits.max_tokens_per_rank * c &&
                      (p.limits.max_inflight_tokens == 0 ||
                       per_rank <= p.limits.max_inflight_tokens) &&
                      (cap == 0 || lengths.size() <= cap));
    }
    if (!fits) return false;
  }
  return true;
}

struct tally {
  int planned = 0;
  int infeasible = 0;
  int not_found = 0;
};

void check_one(const dyncp::problem& p, tally& seen) {
  const dyncp::planner planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
  if (!dyncp::check(p)) return;
  const auto made = planner.plan(p);
  if (made) {
    // `plan` validates; the coverage is counted here once more, by other means.
    std::multiset<std::int32_t> seen_sequences;
    for (const dyncp::micro_batch& mb : made->plan.micro_batches) {
      for (const dyncp::pack& pk : mb.packs) {
        seen_sequences.insert(pk.sequences.begin(), pk.sequences.end());
      }
    }
    REQUIRE(seen_sequences.size() == p.sequences.size());
    REQUIRE(std::set<std::int32_t>(seen_sequences.begin(), seen_sequences.end()).size() ==
            p.sequences.size());
    REQUIRE(made->statistics.makespan_s > 0);
    ++seen.planned;
    return;
  }
  const dyncp::errc code = made.error().code;
  REQUIRE_MESSAGE((code == dyncp::errc::infeasible || code == dyncp::errc::not_found ||
                   code == dyncp::errc::sequence_too_long),
                  made.error().message());
  const bool constrained = p.limits.micro_batches > 0 || p.limits.no_idle_ranks;
  if (code == dyncp::errc::not_found) {
    REQUIRE(constrained);
    ++seen.not_found;
    return;
  }
  ++seen.infeasible;
  if (each_fits_alone(p)) {
    REQUIRE(constrained);
    if (p.sequences.size() <= 4 && p.parallel.ranks <= 4) {
      REQUIRE_FALSE(dyncp_test::brute_feasible(p, 4).exists());
    }
  }
}

}  // namespace

TEST_CASE("random problems give a valid plan or a typed error") {
  const std::uint64_t seed = dyncp_test::seed_or(20261129);
  tally seen;
  for (std::int64_t i = 0; i < dyncp_test::count_or(5000); ++i) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(i));
    const dyncp::problem p = dyncp_test::random_problem(rng);
    CAPTURE(seed + static_cast<std::uint64_t>(i));
    CAPTURE(dyncp_test::describe(p));
    check_one(p, seen);
  }
  MESSAGE(seen.planned << " planned, " << seen.infeasible << " infeasible, " << seen.not_found
                       << " not found");
  CHECK(seen.planned > seen.infeasible);
}
