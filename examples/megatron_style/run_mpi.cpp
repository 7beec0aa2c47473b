// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"
#include "run_rank.hpp"

#include <dyncp/mpi/backend.hpp>

#include <mpi.h>

#include <cstdio>
#include <exception>
#include <string>

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

/// The ranks of the domain that this process belongs to.
class domain_members {
 public:
  domain_members(const coordinates& at, const world_shape& world) {
    MPI_Comm_split(MPI_COMM_WORLD, at.stage * world.tp + at.tp, at.domain, &comm_);
  }
  domain_members(const domain_members&) = delete;
  domain_members& operator=(const domain_members&) = delete;
  ~domain_members() { MPI_Comm_free(&comm_); }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

std::vector<step_result> run_process(const run_options& options, const reference<double>* compare) {
  using backend = dyncp::mpi::backend;
  backend world = backend::create(MPI_COMM_WORLD).value();
  const coordinates at = coordinates::of(world.fabric().rank(), options.world);
  const domain_members members(at, options.world);
  backend domain = backend::create(members.comm()).value();
  std::vector<step_result> steps = run_rank<double>(world, domain, options, compare);
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
    // Peers may be in an exchange with this process, where MPI_Finalize would wait for them.
    std::fprintf(stderr, "%s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  return out;
}

}  // namespace megatron_style
