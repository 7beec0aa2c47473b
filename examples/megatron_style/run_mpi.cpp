// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"
#include "run_rank.hpp"

#include <dyncp/mpi/backend.hpp>

#include <mpi.h>

#include <exception>
#include <string>
#include <utility>

namespace megatron_style {
namespace {

/// MPI from the first call to the last: its communicators must go before it.
class mpi_session {
 public:
  mpi_session() {
    int ready = 0;
    MPI_Initialized(&ready);
    if (ready == 0) MPI_Init(nullptr, nullptr);
  }
  mpi_session(const mpi_session&) = delete;
  mpi_session& operator=(const mpi_session&) = delete;
  ~mpi_session() { MPI_Finalize(); }
};

std::vector<step_result> run_process(const run_options& options, const reference<double>* compare) {
  using backend = dyncp::mpi::backend;
  backend world = backend::create(MPI_COMM_WORLD).value();
  const coordinates at = coordinates::of(world.fabric().rank(), options.world);
  MPI_Comm members = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, at.stage * options.world.tp + at.tp, at.domain, &members);
  std::vector<step_result> steps;
  {
    backend domain = backend::create(members).value();
    steps = run_rank<double>(world, domain, options, compare);
  }
  MPI_Comm_free(&members);
  if (world.fabric().rank() != 0) steps.clear();
  return steps;
}

}  // namespace

run_result run_mpi(const run_options& options, const reference<double>* compare) {
  static const mpi_session session;
  run_result out;
  int processes = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  if (processes != options.world.ranks()) {
    out.failures.push_back("--mpi needs " + std::to_string(options.world.ranks()) +
                           " processes, not " + std::to_string(processes));
    return out;
  }
  try {
    out.steps = run_process(options, compare);
  } catch (const std::exception& e) {
    out.failures.emplace_back(e.what());
  }
  return out;
}

}  // namespace megatron_style
