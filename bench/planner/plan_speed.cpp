// SPDX-License-Identifier: Apache-2.0
// CPU time of one plan on one thread, best of N, beside a yardstick in the same process: the time
// to sort a million fixed 64-bit integers. Lengths: the github corpus between 16 and 131,072.
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
  int batch;
  int ranks;
  double goal_ms;
};

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 20;
  const int largest = argc > 2 ? std::atoi(argv[2]) : 131072;
  const double yardstick = sort_ms(std::min(repetitions, 5));
  std::printf("yardstick: std::sort of 1e6 int64 in %.1f ms of CPU time\n\n", yardstick);
  std::printf("  batch  ranks    plan ms   of yardstick    goal ms   simulator Mop/s   peak MiB\n");
  const row rows[] = {{2048, 8, 10},     {2048, 32, 10},    {2048, 64, 10},      {2048, 128, 10},
                      {16384, 64, 60},   {16384, 256, 60},  {16384, 1024, 60},   {131072, 8192, 1000}};
  for (const row& r : rows) {
    if (r.batch > largest) continue;
    dyncp::length_generator lengths(*dyncp::find_corpus("github"), 1);
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
    const dyncp::analytic_cost cost(job.model, job.cluster, job.parallel);
    const int n = r.batch > 20000 ? std::min(3, repetitions) : repetitions;
    const double ms = best_ms(n, [&] {
      if (!dyncp::dynamic_cp{}.pack(job, cost)) std::exit(1);
    });
    const auto made = dyncp::dynamic_cp{}.pack(job, cost);
    const dyncp::priced_plan priced = dyncp::price_plan(*made, job, cost);
    dyncp::one_f_one_b simulator;
    const double sim = best_ms(n, [&] { (void)simulator.makespan(priced, 8); });
    const double operations = 2.0 * 8 * r.ranks * made->num_micro_batches();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::printf("%7d %6d %10.2f %14.3f %10.0f %17.0f %10.0f\n", r.batch, r.ranks, ms,
                ms / yardstick, r.goal_ms, operations / sim * 1e-3,
                static_cast<double>(usage.ru_maxrss) / 1024.0);
  }
  return 0;
}
