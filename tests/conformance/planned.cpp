// SPDX-License-Identifier: Apache-2.0
// What the planner plans, run: ring attention, split, merge and reroute over ranks that are threads.
#include "conformance/ring_suite.hpp"
#include "conformance/split_merge_suite.hpp"
#include "conformance/thread_runner.hpp"
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

using dyncp_test::thread_runner;

TEST_CASE("plans of random batches are carried out") {
  const std::uint64_t seed = dyncp_test::seed_or(31);
  dyncp_test::random draw(seed);
  std::set<std::int32_t> sizes;  // of the groups that came up
  bool mixed = false;            // in one micro-batch
  for (std::int32_t ranks : {2, 4, 8, 16}) {
    for (std::int64_t round = dyncp_test::count_or(4); round > 0; --round) {
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

      dyncp_test::plan_case rows;
      rows.batch = job.sequences;
      rows.plan = best->plan;
      for (std::size_t i = 0; i < rows.batch.size(); ++i) {
        rows.owners.push_back(static_cast<std::int32_t>(draw.between(0, ranks - 1)));
      }
      dyncp_test::ring_case ring;
      ring.padding = best->plan.padding;
      for (const dyncp::micro_batch& mb : best->plan.micro_batches) {
        std::vector<dyncp_test::pack_case> packs;
        std::set<std::int32_t> here;
        for (const dyncp::pack& p : mb.packs) {
          packs.push_back({p.ranks, {}});
          for (std::int32_t s : p.sequences) {
            packs.back().lengths.push_back(job.sequences[static_cast<std::size_t>(s)].length);
          }
          here.insert(p.ranks.size);
        }
        ring.micro_batches.push_back(packs);
        mixed = mixed || here.size() > 1;
        sizes.insert(here.begin(), here.end());
      }
      thread_runner<> runner(ranks,
                             {.order = dyncp::cpu::stream_order::shuffled, .seed = draw.next()});
      dyncp_test::check_ring(runner, ring);
      dyncp_test::check_plan(runner, rows, 4);
    }
  }
  CHECK(mixed);
  CHECK(sizes.size() >= 4);
}
