// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/ring_suite.hpp"
#include "conformance/split_merge_suite.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/problem/problem.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

// What the planner plans, run: ring attention, split, merge and reroute.

namespace dyncp_test {

/// What came up in the plans that were carried out.
struct planned_groups {
  std::set<std::int32_t> sizes;
  bool mixed = false;  ///< in one micro-batch
};

/// Carries out the plans of `rounds` random batches, the same in every process; in double where the
/// runner can, and in bfloat16.
template <class Runner>
void check_planned(Runner& runner, std::int64_t rounds, std::uint64_t seed,
                   planned_groups* seen = nullptr) {
  const std::int32_t ranks = runner.ranks();
  random draw(seed + static_cast<std::uint64_t>(ranks));
  for (std::int64_t round = rounds; round > 0; --round) {
    INFO("seed " << seed << ", " << ranks << " ranks, " << round << " rounds left");
    dyncp::problem job;
    job.model = dyncp::find_model("reference-13b").value();
    job.cluster = dyncp::find_cluster("reference-13b").value();
    job.parallel.ranks = ranks;
    job.parallel.pp = 2;
    job.limits.max_tokens_per_rank = 48;
    job.padding.zigzag = true;
    for (std::int64_t i = draw.between(ranks, 3 * ranks); i > 0; --i) {
      const std::int64_t longest = draw.chance(0.2) ? 40 * ranks : 40;
      job.sequences.push_back(
          {static_cast<std::int64_t>(job.sequences.size()), draw.between(1, longest), -1});
    }
    const dyncp::planner planner{dyncp::analytic_cost(job.model, job.cluster, job.parallel)};
    const auto best = planner.plan(job);
    REQUIRE_MESSAGE(best.has_value(), best.error().message());

    plan_case rows;
    rows.batch = job.sequences;
    rows.plan = best->plan;
    for (std::size_t i = 0; i < rows.batch.size(); ++i) {
      rows.owners.push_back(static_cast<std::int32_t>(draw.between(0, ranks - 1)));
    }
    ring_case ring;
    ring.padding = best->plan.padding;
    for (const dyncp::micro_batch& mb : best->plan.micro_batches) {
      std::vector<pack_case> packs;
      std::set<std::int32_t> here;
      for (const dyncp::pack& p : mb.packs) {
        packs.push_back({p.ranks, {}});
        for (std::int32_t s : p.sequences) {
          packs.back().lengths.push_back(job.sequences[static_cast<std::size_t>(s)].length);
        }
        here.insert(p.ranks.size);
      }
      ring.micro_batches.push_back(packs);
      if (seen == nullptr) continue;
      seen->mixed = seen->mixed || here.size() > 1;
      seen->sizes.insert(here.begin(), here.end());
    }
    check_ring(runner, ring);
    check_ring_bfloat16(runner, ring);
    check_plan(runner, rows, 4);
  }
}

}  // namespace dyncp_test
