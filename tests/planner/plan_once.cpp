// SPDX-License-Identifier: Apache-2.0
// Plans one fixed batch and prints its number of micro-batches: what instruction_counts.py counts.
// Usage: plan_once BATCH RANKS
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/corpora.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/problem/presets.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  dyncp::length_generator lengths(*dyncp::find_corpus("github"), 1);
  std::vector<std::int64_t> batch;
  while (batch.size() < static_cast<std::size_t>(std::atoi(argv[1]))) {
    const std::int64_t n = lengths.next();
    if (n >= 16 && n <= 131072) batch.push_back(n);
  }
  dyncp::problem job;
  job.sequences = *dyncp::make_batch(batch);
  job.model = *dyncp::find_model("reference-13b");
  job.cluster = *dyncp::find_cluster("reference-13b");
  job.parallel.ranks = std::atoi(argv[2]);
  job.parallel.pp = 8;
  job.limits.max_tokens_per_rank = 16384;
  const auto made =
      dyncp::dynamic_cp{}.pack(job, dyncp::analytic_cost(job.model, job.cluster, job.parallel));
  if (!made) return 1;
  std::printf("%d\n", made->num_micro_batches());
  return 0;
}
