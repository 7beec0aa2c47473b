// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/runner.hpp"

#include <dyncp/cpu/attention.hpp>
#include <dyncp/cpu/plain_attention.hpp>
#include <dyncp/mpi/backend.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp_test {

/// This process as one rank of MPI_COMM_WORLD.
template <class Kernel = dyncp::cpu::plain_attention>
class mpi_runner {
 public:
  using backend_type = dyncp::mpi::backend;
  using provider_type = dyncp::cpu::attention<Kernel>;

  explicit mpi_runner(dyncp::cpu::device_options device = {},
                      dyncp::mpi::fabric_options fabric = {})
      : device_(device), fabric_(fabric) {
    device_.poison_memory = true;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  }

  [[nodiscard]] std::int32_t ranks() const { return ranks_; }
  [[nodiscard]] std::int32_t first_rank() const { return rank_; }

  /// A barrier beside the fabric, for tests that break the fabric.
  void meet() { MPI_Barrier(MPI_COMM_WORLD); }

  template <class F>
  std::vector<result<void>> run_collect(F f) {
    std::vector<result<void>> results;
    auto backend = backend_type::create(MPI_COMM_WORLD, fabric_, device_);
    if (!backend) {
      results.emplace_back(std::move(backend).error());
      return results;
    }
    results.push_back(f(*backend));
    if (results[0] && backend->device().memory_in_use() != 0) {
      results[0] = failed("device memory is in use after the last buffer is gone");
    }
    return results;
  }
  template <class F>
  void run(F f) {
    const auto results = run_collect(f);
    CHECK_MESSAGE(results[0].has_value(), "rank "
                                              << rank_ << " of " << ranks_ << ": "
                                              << (results[0] ? "" : results[0].error().message()));
  }

 private:
  dyncp::cpu::device_options device_;
  dyncp::mpi::fabric_options fabric_;
  int ranks_ = 1;
  int rank_ = 0;
};

}  // namespace dyncp_test
