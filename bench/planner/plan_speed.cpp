// SPDX-License-Identifier: Apache-2.0
// CPU time of one plan on one thread, best of N, beside a yardstick in the same process: the time
// to sort a million fixed 64-bit integers. Lengths between 16 and 131,072.
//   plan_speed [REPETITIONS=20] [LARGEST_BATCH=131072]
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/corpora.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/sim/event_simulator.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

template <class Function>
double best_ms(int repetitions, Function function) {
  double best = 1e300;
  for (int i = 0; i < repetitions; ++i) {
    const double start = cpu_ms();
    function();
    best = std::min(best, cpu_ms() - start);
  }
  return best;
}

double sort_ms(int repetitions) {
  std::vector<std::int64_t> numbers(1000000);
  double best = 1e300;
  for (int i = 0; i < repetitions; ++i) {
    dyncp::splitmix random(1);
    for (std::int64_t& n : numbers) n = static_cast<std::int64_t>(random.next());
    best = std::min(best, best_ms(1, [&] { std::sort(numbers.begin(), numbers.end()); }));
  }
  return best;
}

struct row {
  const char* corpus;
  int batch;
  int ranks;
  double goal_ms;  // 0: none, a point of a series
};

dyncp::problem job_of(const row& r) {
  dyncp::length_generator lengths(*dyncp::find_corpus(r.corpus), 1);
  std::vector<std::int64_t> batch;
  while (batch.size() < static_cast<std::size_t>(r.batch)) {
    const std::int64_t n = lengths.next();
    if (n >= 16 && n <= 131072) batch.push_back(n);
  }
  dyncp::problem job;
  job.sequences = *dyncp::make_batch(batch);
  job.model = *dyncp::find_model("reference-13b");
  job.cluster = *dyncp::find_cluster("reference-13b");
  job.parallel.ranks = r.ranks;
  job.parallel.pp = 8;
  job.limits.max_tokens_per_rank = 16384;
  return job;
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 20;
  const int largest = argc > 2 ? std::atoi(argv[2]) : 131072;
  const double yardstick = sort_ms(std::min(repetitions, 5));
  std::printf("yardstick: std::sort of 1e6 int64 in %.1f ms of CPU time\n\n", yardstick);
  std::printf("%-10s %7s %6s %9s %9s %9s %8s %6s %9s %8s\n", "corpus", "batch", "ranks", "plan ms",
              "of yard.", "checked", "goal ms", "holds", "sim Mop/s", "peak MiB");
  // The goals; other lengths at the size of the first; the sequences doubled, then the ranks.
  const row rows[] = {
      {"github", 2048, 8, 10},       {"github", 2048, 32, 10},       {"github", 2048, 64, 10},
      {"github", 2048, 128, 10},     {"github", 16384, 64, 60},      {"github", 16384, 256, 60},
      {"github", 16384, 1024, 60},   {"github", 131072, 8192, 1000},

      {"wikipedia", 2048, 32, 10},   {"wlb", 2048, 32, 10},          {"prolong", 2048, 32, 10},
      {"cc-flexsp", 2048, 32, 10},   {"llama3-sft", 2048, 32, 10},   {"mock-16k", 2048, 32, 10},

      {"github", 2048, 16, 0},       {"github", 4096, 16, 0},        {"github", 8192, 16, 0},
      {"github", 16384, 16, 0},      {"github", 32768, 16, 0},       {"github", 65536, 16, 0},
      {"cc-flexsp", 8192, 64, 0},    {"cc-flexsp", 8192, 128, 0},    {"cc-flexsp", 8192, 256, 0},
      {"cc-flexsp", 8192, 512, 0}};
  for (const row& r : rows) {
    if (r.batch > largest) continue;
    const dyncp::problem job = job_of(r);
    const dyncp::analytic_cost cost(job.model, job.cluster, job.parallel);
    const double ms = best_ms(repetitions, [&] {
      if (!dyncp::dynamic_cp{}.pack(job, cost)) std::exit(1);
    });
    // What a trainer calls: the same with the checks, the statistics and the certificate.
    const dyncp::planner planner{cost};
    const double checked = best_ms(repetitions, [&] {
      if (!planner.plan(job)) std::exit(1);
    });
    const auto made = dyncp::dynamic_cp{}.pack(job, cost);
    const dyncp::priced_plan priced = dyncp::price_plan(*made, job, cost);
    dyncp::one_f_one_b simulator;
    const double sim = best_ms(repetitions, [&] { (void)simulator.makespan(priced, 8); });
    const double operations = 2.0 * 8 * r.ranks * made->num_micro_batches();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::printf("%-10s %7d %6d %9.2f %9.3f %9.2f %8.0f %6s %9.0f %8.0f\n", r.corpus, r.batch,
                r.ranks, ms, ms / yardstick, checked, r.goal_ms,
                r.goal_ms == 0 ? "-" : ms <= r.goal_ms ? "yes" : "NO", operations / sim * 1e-3,
                static_cast<double>(usage.ru_maxrss) / 1024.0);
  }
  return 0;
}
