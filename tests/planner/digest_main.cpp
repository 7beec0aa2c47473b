// SPDX-License-Identifier: Apache-2.0
// Prints digests of plans for a fixed list of problems: the same lines on every compiler,
// optimisation level and number of threads. Usage: digest_main [THREADS]
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/corpora.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/presets.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

struct setting {
  const char* corpus;
  int batch;
  int ranks;
  int pp;
  int vpp;
  const char* cluster;
  bool zigzag;
  std::int64_t search_steps;
};

std::string digest_of(const setting& s) {
  dyncp::length_generator lengths(*dyncp::find_corpus(s.corpus), 7);
  std::vector<std::int64_t> batch;
  while (batch.size() < static_cast<std::size_t>(s.batch)) {
    const std::int64_t n = lengths.next();
    if (n >= 16 && n <= 100000) batch.push_back(n);
  }
  dyncp::problem job;
  job.sequences = *dyncp::make_batch(batch);
  job.model = *dyncp::find_model("llama-13b");
  job.cluster = *dyncp::find_cluster(s.cluster);
  job.parallel.ranks = s.ranks;
  job.parallel.pp = s.pp;
  job.parallel.vpp = s.vpp;
  job.padding.zigzag = s.zigzag;
  job.limits.max_tokens_per_rank = 16384;
  dyncp::dynamic_cp packer;
  packer.search_steps = s.search_steps;
  const dyncp::planner planner{dyncp::analytic_cost(job.model, job.cluster, job.parallel), packer};
  const auto made = planner.plan(job);
  if (!made) return made.error().message();
  char text[128];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(
                                                  dyncp::digest(made->plan)));
  return std::string(text) + " M " + std::to_string(made->statistics.micro_batches);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<setting> settings{
      {"github", 512, 8, 8, 1, "reference-13b", false, 0},
      {"github", 1024, 32, 4, 1, "h100", true, 0},
      {"cc-flexsp", 512, 16, 4, 1, "h800", true, 300},
      {"wikipedia", 256, 8, 2, 2, "a100", false, 0},
      {"video", 200, 24, 4, 1, "h200", false, 0},
      {"github", 40, 8, 4, 1, "h100", true, 0},
  };
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  std::vector<std::string> lines(settings.size());
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (std::size_t i = static_cast<std::size_t>(t); i < settings.size();
           i += static_cast<std::size_t>(threads)) {
        lines[i] = digest_of(settings[i]);
      }
    });
  }
  for (std::thread& w : workers) w.join();
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  return 0;
}
