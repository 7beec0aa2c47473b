// SPDX-License-Identifier: Apache-2.0
// The suites of this folder over MPI: every process runs this program.
#include "conformance/exchange_suite.hpp"
#include "conformance/failure_suite.hpp"
#include "conformance/mpi_runner.hpp"
#include "conformance/ring_suite.hpp"
#include "conformance/split_merge_suite.hpp"

#include <dyncp/cpu/device.hpp>
#include <dyncp/mpi/backend.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <cstdint>
#include <utility>

using dyncp_test::mpi_runner;

namespace {

struct mpi_session {
  mpi_session() { MPI_Init(nullptr, nullptr); }
  ~mpi_session() { MPI_Finalize(); }
} const session;

constexpr dyncp::cpu::stream_order orders[] = {dyncp::cpu::stream_order::eager,
                                               dyncp::cpu::stream_order::shuffled};

template <class F>
void for_each_order(F f) {
  for (auto order : orders) {
    INFO("order " << static_cast<int>(order));
    mpi_runner<> runner({.order = order});
    f(runner);
  }
}

}  // namespace

TEST_CASE("exchanges, collectives and pools") {
  for_each_order([](auto& runner) {
    for (auto strategy : {dyncp::pool_strategy::logical, dyncp::pool_strategy::split}) {
      dyncp_test::check_exchanges(runner, strategy);
      dyncp_test::check_pool(runner, strategy);
    }
    dyncp_test::check_order(runner);
    dyncp_test::check_empty_messages(runner);
    dyncp_test::check_refused_exchanges(runner);
    dyncp_test::check_collectives(runner);
    dyncp_test::check_disagreement(runner);
    dyncp_test::check_pool_sizes(runner);
    dyncp_test::check_generations(runner);
    dyncp_test::check_pool_disagreement(runner);
  });
}
TEST_CASE("a backend may be assigned: the old fabric goes with the device that it uses") {
  auto backend = dyncp::mpi::backend::create(MPI_COMM_WORLD);
  REQUIRE(backend);
  {
    auto other = dyncp::mpi::backend::create(MPI_COMM_WORLD);
    REQUIRE(other);
    *backend = std::move(*other);
  }
  auto all = backend->fabric().open();
  REQUIRE(all);
  CHECK(all->size() == backend->fabric().ranks());
  backend->fabric().close(*all);
}
TEST_CASE("messages longer than a block") {
  mpi_runner<> runner({}, {.block_bytes = 1000});
  dyncp_test::check_exchanges(runner, dyncp::pool_strategy::logical);
}
TEST_CASE("ring attention") {
  for_each_order([](auto& runner) {
    dyncp_test::check_ring_failures(runner);
    dyncp_test::check_mixed_groups(runner);
    dyncp_test::check_logical_groups(runner);
    dyncp_test::check_random_batches(runner, dyncp_test::count_or(6));
    dyncp_test::check_repeatable(runner);
    dyncp_test::check_cross_attention(runner);
    dyncp_test::check_ring_refusals(runner);
    dyncp_test::check_ring_disagreement(runner);
    dyncp_test::check_ring_bytes(runner);
  });
  mpi_runner<> runner;
  dyncp_test::check_bfloat16(runner);
}
TEST_CASE("split, merge and reroute") {
  for_each_order([](auto& runner) {
    dyncp_test::check_random_plans(runner, dyncp_test::count_or(6));
    dyncp_test::check_split_merge_failures(runner);
    dyncp_test::check_layout_vectors(runner);
    dyncp_test::check_merge_gradients(runner, dyncp_test::count_or(4));
    dyncp_test::check_router_refusals(runner);
    dyncp_test::check_other_ranks(runner);
  });
}
TEST_CASE("when a rank goes wrong") {
  mpi_runner<> runner({}, {.deadline_us = 1'000'000});
  dyncp_test::check_missing_rank(runner);
  dyncp_test::check_wrong_size(runner);
  dyncp_test::check_crossed_groups(runner);
  dyncp_test::check_one_sided(runner);
  dyncp_test::check_declared_failure(runner);
}
