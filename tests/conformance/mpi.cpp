// SPDX-License-Identifier: Apache-2.0
// The suites of this folder over MPI: every process runs this program.
#include "conformance/exchange_suite.hpp"
#include "conformance/failure_suite.hpp"
#include "conformance/mpi_runner.hpp"
#include "conformance/planned_suite.hpp"
#include "conformance/ring_suite.hpp"
#include "conformance/split_merge_suite.hpp"

#include <dyncp/cpu/device.hpp>
#include <dyncp/mpi/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

using dyncp_test::mpi_runner;

namespace {

struct mpi_session {
  mpi_session() { MPI_Init(nullptr, nullptr); }
  ~mpi_session() { MPI_Finalize(); }
} const session;

/// What the calls below saw and shall do.
struct mpi_spy {
  bool synchronous = false;  // a send ends when it is taken, however small it is
  int active_freed = 0;      // requests
  int comms_freed = 0;
} spy;

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

// MPI lets a program stand before its functions.
extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  return (spy.synchronous ? PMPI_Issend : PMPI_Isend)(data, count, type, to, tag, comm, request);
}
int MPI_Request_free(MPI_Request* request) {
  int done = 0;
  PMPI_Request_get_status(*request, &done, MPI_STATUS_IGNORE);
  if (done == 0) ++spy.active_freed;
  return PMPI_Request_free(request);
}
int MPI_Comm_free(MPI_Comm* comm) {
  ++spy.comms_freed;
  return PMPI_Comm_free(comm);
}
}

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
TEST_CASE("plans of random batches are carried out") {
  mpi_runner<> runner({.order = dyncp::cpu::stream_order::shuffled});
  dyncp_test::check_planned(runner, dyncp_test::count_or(4), dyncp_test::seed_or(31));
}
TEST_CASE("when a rank goes wrong") {
  mpi_runner<> runner({}, {.deadline_us = 1'000'000});
  dyncp_test::check_missing_rank(runner);
  dyncp_test::check_wrong_size(runner);
  dyncp_test::check_crossed_groups(runner);
  dyncp_test::check_one_sided(runner);
  dyncp_test::check_declared_failure(runner);
}

namespace {

/// Rank 0 fails and goes; the others look up `pause` later, when it may be gone already.
void fail_on_rank_0(std::int64_t deadline_us, std::chrono::milliseconds pause, bool look) {
  auto backend = dyncp::mpi::backend::create(MPI_COMM_WORLD, {.deadline_us = deadline_us});
  REQUIRE(backend);
  auto all = backend->fabric().open();
  REQUIRE(all);
  if (backend->fabric().rank() == 0) {
    backend->fabric().fail(*all, dyncp::make_error(dyncp::errc::callback_failed, "out of data"));
  } else {
    std::this_thread::sleep_for(pause);
    if (look) {
      auto health = backend->fabric().health(*all);
      for (int i = 0; i < 10'000 && health; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        health = backend->fabric().health(*all);
      }
      CHECK((!health && health.error().what == "rank 0 failed first: out of data"));
    }
  }
  backend->fabric().close(*all);
}

int ranks_of_world() {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

}  // namespace

TEST_CASE("a failed rank waits until its notices are heard, or leaves them be") {
  if (ranks_of_world() == 1) return;
  for (const std::int64_t deadline_us : {10'000'000, 20'000}) {
    INFO("deadline " << deadline_us);
    spy = {.synchronous = true};
    fail_on_rank_0(deadline_us, std::chrono::milliseconds(200), true);
    CHECK(spy.active_freed == 0);
    spy = {};
    MPI_Barrier(MPI_COMM_WORLD);
  }
}
TEST_CASE("communicators are freed by all ranks or by none") {
  if (ranks_of_world() == 1) return;
  spy = {};
  fail_on_rank_0(10'000'000, std::chrono::milliseconds(0), false);
  CHECK(spy.comms_freed == 0);
  MPI_Barrier(MPI_COMM_WORLD);
  spy = {};
  {
    auto backend = dyncp::mpi::backend::create(MPI_COMM_WORLD);
    REQUIRE(backend);
    auto all = backend->fabric().open();
    REQUIRE(all);
    auto part = backend->fabric().split(*all, backend->fabric().rank() % 2, 0);
    REQUIRE(part);
    backend->fabric().close(*part);
    backend->fabric().close(*all);
    CHECK(spy.comms_freed == 2);
  }
  CHECK(spy.comms_freed == 4);
}
TEST_CASE("a rank that waits in a closing still serves its peers") {
  using pool_type = dyncp::group_pool<dyncp::mpi::backend>;
  mpi_runner<> runner({.order = dyncp::cpu::stream_order::shuffled});
  runner.run([](dyncp::mpi::backend& backend) -> dyncp::result<void> {
    auto pool = pool_type::create(backend, {});
    if (!pool) return std::move(pool).error();
    const auto s = backend.device().main_stream();
    const std::int32_t n = pool->ranks();
    std::int32_t words[3] = {pool->rank(), -1, -1};
    {
      auto other = pool_type::create(backend, {});
      if (!other) return std::move(other).error();
      for (int i = 0; i < 2 && n > 1; ++i) {  // what the first brings, the second sends on
        const dyncp::outgoing out{(pool->rank() + 1) % n, words + i, 4};
        const dyncp::incoming in{(pool->rank() + n - 1) % n, words + i + 1, 4};
        DYNCP_TRY(pool->exchange(pool->everyone(), {&out, 1}, {&in, 1}, s));
      }
      if (pool->rank() % 2 == 1) DYNCP_TRY(pool->synchronize(s));
    }
    DYNCP_TRY(pool->synchronize(s));
    if (n > 1 && words[2] != (pool->rank() + 2 * n - 2) % n) {
      return dyncp_test::failed("a rank was not served");
    }
    return {};
  });
}
TEST_CASE("a rank that an exception takes away tells its peers, and waits for none of them") {
  if (ranks_of_world() == 1) return;
  // Long before the deadline of 60 s, which would be another error.
  auto backend = dyncp::mpi::backend::create(MPI_COMM_WORLD);
  REQUIRE(backend);
  const std::int32_t rank = backend->fabric().rank();
  auto pool = dyncp::group_pool<dyncp::mpi::backend>::create(*backend, {});
  if (rank == backend->fabric().ranks() - 1) {
    REQUIRE(pool);
    bool thrown = false;
    try {
      const auto mine = std::move(pool);
      throw std::runtime_error("no more memory");
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    CHECK(thrown);
  } else {
    // A slow rank may hear of it while it still makes its pool.
    const auto told = [&]() -> dyncp::result<void> {
      if (!pool) return pool.error();
      auto all = pool->channel(pool->everyone());
      std::int32_t word = rank;
      return dyncp::all_reduce(all, std::span(&word, 1), dyncp::reduction::sum);
    }();
    REQUIRE_FALSE(told);
    CHECK(told.error().message().find("left by an exception") != std::string::npos);
  }
}
TEST_CASE("no deadline is a deadline beyond all clocks") {
  mpi_runner<> runner({}, {.deadline_us = std::numeric_limits<std::int64_t>::max()});
  dyncp_test::check_exchanges(runner, dyncp::pool_strategy::split);
}
