// SPDX-License-Identifier: Apache-2.0
// A process of the trainer over MPI that throws where the others do not: see job_ends.py. Every
// process runs this program; with the argument "model" the last one cannot make its model.
#include "megatron_style/demos.hpp"

#include <mpi.h>

#include <cstdio>
#include <string>

#include <unistd.h>

int main(int argc, char** argv) {
  using namespace megatron_style;
  std::printf("pid %ld\n", static_cast<long>(getpid()));
  std::fflush(stdout);
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  demo_options demo;
  demo.world = {2, 2, 1, 1};
  demo.static_cp = 2;
  demo.steps = 2;
  demo.batch = 4;
  run_options options = make_run(demo, 40, 48);
  const bool fails = argc > 1 && std::string(argv[1]) == "model" && rank == 3;
  if (fails) options.model.layers += 1;  // not a multiple of the stages
  return run_mpi(options, nullptr).failures.empty() ? 0 : 1;
}
