// SPDX-License-Identifier: Apache-2.0
// A process that is killed in the middle of a step over MPI: see job_ends.py. Every process runs
// this program; its argument says where the last one is killed: "probing", "exchange" or "none".
#include "trainer/batches.hpp"

#include <dyncp/mpi/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/trainer/data_iterator.hpp>

#include <mpi.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

using namespace dyncp_test;

namespace {

dyncp::result<void> train(const std::string& fault) {
  auto backend = dyncp::mpi::backend::create(MPI_COMM_WORLD);
  if (!backend) return std::move(backend).error();
  auto pool = dyncp::group_pool<dyncp::mpi::backend>::create(*backend, {});
  if (!pool) return std::move(pool).error();
  const std::int32_t rank = pool->rank();
  const std::int32_t ranks = pool->ranks();
  const auto killed = [&](const char* where) {
    if (fault == where && rank == ranks - 1) std::raise(SIGKILL);
  };

  const auto lengths = some_lengths(24, 80, 31);
  const dyncp::problem job = small_job(ranks);
  auto batches = dyncp::make_probed_iterator(
      shard_of(lengths, rank, ranks), planner_of(job), job, {.global_batch_size = 8, .ahead = 0},
      [&](const token_sample& s) {
        if (s.front() >= 8) killed("probing");  // in the second step
        return probe_sample(s);
      });
  for (;;) {
    auto step = batches.next(*pool);
    if (!step) return std::move(step).error();
    if (!*step) return {};
    auto all = pool->channel(pool->everyone());
    std::vector<double> gradients(1 << 16, 1.0);
    for (std::int32_t m = 0; m < (*step)->num_micro_batches(); ++m) {
      if ((*step)->iteration() == 1 && m == 0) killed("exchange");  // its peers are in it
      auto summed = dyncp::all_reduce(all, std::span(gradients), dyncp::reduction::sum);
      if (!summed) return summed;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("pid %ld\n", static_cast<long>(getpid()));
  std::fflush(stdout);
  MPI_Init(&argc, &argv);
  const auto done = train(argc > 1 ? argv[1] : "none");
  if (!done) std::fprintf(stderr, "%s\n", done.error().message().c_str());
  MPI_Finalize();
  return done ? 0 : 1;
}
