// SPDX-License-Identifier: Apache-2.0
#include <dyncp/dyncp.hpp>

#include <cstdio>

int main() {
  const int lengths[] = {60000, 9000, 7000, 4000, 2500, 1200, 800, 300};
  dyncp::problem job;
  job.sequences = dyncp::make_batch(lengths).value();
  job.model = dyncp::find_model("reference-13b").value();
  job.cluster = dyncp::find_cluster("reference-13b").value();
  job.parallel.ranks = 8;
  job.parallel.pp = 2;
  job.limits.max_tokens_per_rank = 16384;

  const dyncp::planner planner{dyncp::analytic_cost(job.model, job.cluster, job.parallel)};
  const auto best = planner.plan(job);
  if (!best) return std::fprintf(stderr, "%s\n", best.error().message().c_str()), 1;
  for (const dyncp::micro_batch& mb : best->plan.micro_batches) {
    std::puts("micro-batch");
    for (const dyncp::pack& pack : mb.packs) {
      std::printf("  ranks %d to %d:", pack.ranks.begin, pack.ranks.end() - 1);
      for (int i : pack.sequences) std::printf(" %d", lengths[i]);
      std::puts("");
    }
  }
  std::printf("one iteration takes %.1f ms\n", 1e3 * best->statistics.iteration_s);
}
