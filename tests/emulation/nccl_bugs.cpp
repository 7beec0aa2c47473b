// SPDX-License-Identifier: Apache-2.0
// Mistakes with NCCL, made on purpose: each is found, by name, and nobody hangs.
#include "conformance/emulated_runner.hpp"
#include "conformance/failure_suite.hpp"
#include "emulation/nccl.hpp"
#include "emulation/world.hpp"

#include <dyncp/cuda/backend.hpp>
#include <dyncp/cuda/fabric_abi.hpp>
#include <dyncp/cuda/nccl_fabric.hpp>
#include <dyncp/cuda/process_bootstrap.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/message.hpp>

#include <nccl.h>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp;
using dyncp_emulation::world;
using dyncp_test::failed;

namespace {

using runner_type = dyncp_test::emulated_runner<dyncp_test::nccl_kind>;
using backend_type = runner_type::backend_type;
using pool_type = group_pool<backend_type>;

constexpr std::uint64_t seeds = 10;

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// One message of `bytes` from rank 0 to rank 1, received as `expected`, on the streams.
result<void> send_one(backend_type& backend, pool_type& pool, std::int64_t bytes,
                      std::int64_t expected) {
  auto& device = backend.device();
  const auto s = device.comm_stream();
  auto memory = device.allocate(64);
  if (!memory) return std::move(memory).error();
  DYNCP_TRY(device.fill_zero(memory->data(), 64, s));
  result<void> done;
  if (pool.rank() == 0) {
    const outgoing out{1, memory->data(), bytes};
    done = pool.exchange(pool.everyone(), {&out, 1}, {}, s);
  } else if (pool.rank() == 1) {
    const incoming in{0, memory->data(), expected};
    done = pool.exchange(pool.everyone(), {}, {&in, 1}, s);
  }
  const auto synchronized = pool.synchronize(s);  // before the memory goes, whatever happened
  return done ? synchronized : done;
}

}  // namespace

TEST_CASE("sizes that differ in device memory: NCCL's failure is told by name") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    runner_type runner(2, seed, {.deadline_us = 50'000});
    runner.expect_misuse = true;
    const auto results = runner.run_collect([&](backend_type& backend) -> result<void> {
      auto pool = pool_type::create(backend, {});
      if (!pool) return std::move(pool).error();
      return send_one(backend, *pool, 16, 20);
    });
    CHECK(contains(dyncp_emulation::nccl_misuse(), "rank 0 sends 16 bytes where 20 are expected"));
    std::int32_t causes = 0;
    for (const auto& r : results) {
      REQUIRE_FALSE(r.has_value());
      CHECK((r.error().code == errc::mismatch || r.error().code == errc::aborted));
      CHECK_MESSAGE(contains(r.error().what, "16 bytes where 20"), r.error().what);
      causes += r.error().code == errc::mismatch ? 1 : 0;
    }
    CHECK(causes >= 1);
  }
}

TEST_CASE("sizes that differ, compared first: NCCL never sees them") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    runner_type runner(2, seed, {.deadline_us = 50'000, .compare_sizes = true});
    const auto results = runner.run_collect([&](backend_type& backend) -> result<void> {
      auto pool = pool_type::create(backend, {});
      if (!pool) return std::move(pool).error();
      DYNCP_TRY(send_one(backend, *pool, 16, 16));
      return send_one(backend, *pool, 16, 20);
    });
    REQUIRE_FALSE(results[1].has_value());
    CHECK(results[1].error().code == errc::mismatch);
    CHECK(results[1].error().value == 16);
    CHECK(results[1].error().limit == 20);
    REQUIRE_FALSE(results[0].has_value());
  }
}

TEST_CASE("communicators opened in different orders: a timeout, not a hang") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    dyncp_emulation::nccl_reset();
    world w({.seed = seed, .devices = 2});
    const cuda::process_bootstrap first(2, 50'000);
    const cuda::process_bootstrap second(2, 50'000);
    std::array<result<void>, 2> results;
    w.run_ranks(2, [&](std::int32_t rank) {
      results[static_cast<std::size_t>(rank)] = [&]() -> result<void> {
        auto device = cuda::device::open({.ordinal = rank, .rank = rank});
        if (!device) return std::move(device).error();
        const cuda::nccl_options options{.deadline_us = 50'000};
        auto a = cuda::nccl_fabric::create(*device, first.of(rank), options);
        auto b = cuda::nccl_fabric::create(*device, second.of(rank), options);
        if (!a) return std::move(a).error();
        if (!b) return std::move(b).error();
        for (cuda::nccl_fabric* f : {rank == 0 ? a->get() : b->get(),
                                     rank == 0 ? b->get() : a->get()}) {
          auto comm = f->open();
          if (!comm) return std::move(comm).error();
          f->close(*comm);
        }
        return {};
      }();
    });
    int timeouts = 0;
    for (const auto& r : results) {
      REQUIRE_FALSE(r.has_value());
      timeouts += r.error().code == errc::timeout ? 1 : 0;
    }
    CHECK(timeouts >= 1);
    CHECK(dyncp_emulation::nccl_live_communicators() == 0);
  }
}

TEST_CASE("splits in different orders give other groups than were asked for: sizes tell") {
  runner_type runner(4, 3, {.deadline_us = 50'000});
  const auto results = runner.run_collect([&](backend_type& backend) -> result<void> {
    auto& fabric = backend.fabric();
    auto all = fabric.open();
    if (!all) return std::move(all).error();
    const std::int32_t rank = fabric.rank();
    const std::int32_t size = rank < 2 ? 2 : 4;  // half of them begin with the other one
    auto child = fabric.split(*all, rank / size, rank);
    if (!child) return std::move(child).error();
    const bool same = child->size() == size;
    fabric.close(*child);
    fabric.close(*all);
    return same ? result<void>() : failed("another size than asked for");
  });
  CHECK_FALSE(results[0].has_value());
  CHECK_FALSE(results[1].has_value());
}

TEST_CASE("groups used in crossed orders on the streams: the stuck exchange is named") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    runner_type runner(4, seed, {.deadline_us = 50'000});
    const auto results = runner.run_collect([&](backend_type& backend) -> result<void> {
      auto pool = pool_type::create(backend, {.strategy = pool_strategy::split});
      runner.meet();
      if (!pool) return std::move(pool).error();
      if (pool->rank() > 1) return dyncp_test::wait_for_failure(*pool);
      auto pair = pool->group(2);
      auto four = pool->group(4);
      if (!pair || !four) return failed("no groups");
      auto memory = backend.device().allocate(16);
      if (!memory) return std::move(memory).error();
      auto* const data = static_cast<char*>(memory->data());
      const auto s = backend.device().comm_stream();
      DYNCP_TRY(backend.device().fill_zero(data, 16, s));
      const std::int32_t peer = 1 - pool->rank();
      const outgoing out{peer, data, 4};
      const incoming in{peer, data + 8, 4};
      const auto& order = pool->rank() == 0 ? std::pair(*pair, *four) : std::pair(*four, *pair);
      result<void> done = pool->exchange(order.first, {&out, 1}, {&in, 1}, s);
      if (done) done = pool->exchange(order.second, {&out, 1}, {&in, 1}, s);
      const auto synchronized = pool->synchronize(s);
      return done ? synchronized : done;
    });
    int timeouts = 0;
    for (std::size_t r : {0, 1}) {
      REQUIRE_FALSE(results[r].has_value());
      const bool timed_out = results[r].error().code == errc::timeout;
      timeouts += timed_out ? 1 : 0;
      if (timed_out) {
        CHECK_MESSAGE(contains(results[r].error().what, "for exchange "), results[r].error().what);
        CHECK(contains(results[r].error().what, "with member "));
      }
    }
    CHECK(timeouts >= 1);
    CHECK(results[2].has_value());
    CHECK(results[3].has_value());
  }
}

TEST_CASE("an exchange of a split that hangs: its idle parent is not freed while it runs") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    runner_type runner(4, seed, {.deadline_us = 50'000});
    const auto results = runner.run_collect([&](backend_type& backend) -> result<void> {
      auto pool = pool_type::create(backend, {.strategy = pool_strategy::split});
      runner.meet();
      if (!pool) return std::move(pool).error();
      if (pool->rank() != 0) return dyncp_test::wait_for_failure(*pool);
      auto pair = pool->group(2);
      if (!pair) return failed("no group");
      auto memory = backend.device().allocate(16);
      if (!memory) return std::move(memory).error();
      const auto s = backend.device().comm_stream();
      const incoming in{1, memory->data(), 16};
      const auto done = pool->exchange(*pair, {}, {&in, 1}, s);
      const auto synchronized = pool->synchronize(s);
      return done ? synchronized : done;
    });
    REQUIRE_FALSE(results[0].has_value());
    CHECK(results[0].error().code == errc::timeout);
    for (std::size_t r = 1; r < 4; ++r) CHECK(results[r].has_value());
  }
}

TEST_CASE("a rank that dies: the others are told in time, with whom they waited for") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    for (const bool on_stream : {false, true}) {
      INFO("seed " << seed << ", on the stream " << on_stream);
      runner_type runner(4, seed, {.deadline_us = 50'000});
      const auto results = runner.run_collect([&](backend_type& backend) -> result<void> {
        auto pool = pool_type::create(backend, {});
        runner.meet();
        if (!pool) return std::move(pool).error();
        if (pool->rank() == 1) {
          dyncp_emulation::nccl_kill(1);
          return {};
        }
        if (pool->rank() != 0) return dyncp_test::wait_for_failure(*pool);
        if (on_stream) return send_one(backend, *pool, 8, 8);
        std::int64_t word = 0;
        const incoming in{1, &word, 8};
        return pool->exchange_host(pool->everyone(), {}, {&in, 1});
      });
      REQUIRE_FALSE(results[0].has_value());
      CHECK(results[0].error().code == errc::timeout);
      CHECK_MESSAGE(contains(results[0].error().what, "member 1"), results[0].error().what);
      CHECK(results[2].has_value());
      CHECK(results[3].has_value());
    }
  }
}

TEST_CASE("two ranks on one GPU are refused by name") {
  dyncp_emulation::nccl_reset();
  world w({.devices = 1});
  const cuda::process_bootstrap board(2, 50'000);
  w.run_ranks(2, [&](std::int32_t rank) {
    auto backend = cuda::nccl_backend::create({.rank = rank}, board.of(rank),
                                              {.deadline_us = 50'000});
    REQUIRE(backend.has_value());
    auto pool = group_pool<cuda::nccl_backend>::create(*backend, {});
    REQUIRE_FALSE(pool.has_value());
    CHECK((pool.error().code == errc::mismatch || pool.error().code == errc::aborted));
    CHECK_MESSAGE(contains(pool.error().what, "Duplicate GPU"), pool.error().what);
  });
}

namespace {

/// Rank 0 sends to rank 1 through the library's own calls; `patient`: it asks until NCCL is ready.
/// True if what is queued behind the exchange finds the message.
bool message_is_there(std::uint64_t seed, bool patient) {
  namespace abi = cuda::abi;
  dyncp_emulation::nccl_reset();
  world w({.seed = seed, .devices = 2});
  std::array<char, abi::nccl_id_bytes> id = {};
  bool has_id = false;
  bool right = false;
  w.run_ranks(2, [&](std::int32_t rank) {
    auto device = cuda::device::open({.ordinal = rank, .rank = rank}).value();
    abi::device_state* const d = device.handle();
    if (rank == 0) {
      REQUIRE(abi::nccl_make_id(d, id.data()).failed == 0);
      has_id = true;
    }
    static_cast<void>(w.wait_until([&] { return has_id; }));
    cuda::nccl_handle comm = nullptr;
    REQUIRE(abi::nccl_begin(d, id.data(), 2, rank, {}, &comm).failed == 0);
    const auto settle = [&] {
      for (bool done = false; !done;) {
        REQUIRE(abi::nccl_poll(d, comm, &done).failed == 0);
        if (!done) abi::pause(0);
      }
    };
    settle();
    auto memory = device.allocate(8).value();
    auto host = device.allocate_staging(8).value();
    const std::int64_t value = rank == 0 ? 4711 : 0;
    std::memcpy(host.data(), &value, 8);
    const auto s = device.comm_stream();
    REQUIRE(device.upload(memory.data(), host.data(), 8, s));
    const abi::nccl_message message{1 - rank, rank == 0 ? 1 : 0, memory.data(), 8};
    REQUIRE(abi::nccl_exchange(d, comm, &message, 1, s).failed == 0);
    if (patient) settle();
    REQUIRE(device.download(host.data(), memory.data(), 8, s));
    settle();
    for (bool done = false; !done; abi::pause(0)) done = device.poll(s).value();
    if (rank == 1) {
      std::int64_t got = 0;
      std::memcpy(&got, host.data(), 8);
      right = got == 4711;
    }
    // The other end may still be at it.
    REQUIRE(abi::nccl_begin_close(d, comm).failed == 0);
    settle();
    abi::nccl_free(d, comm);
  });
  CHECK(w.first_fault().kind == dyncp_emulation::fault_kind::none);
  return right;
}

}  // namespace

TEST_CASE("work queued before NCCL has queued its own comes too early") {
  int early = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CHECK(message_is_there(seed, true));
    early += message_is_there(seed, false) ? 0 : 1;
  }
  CHECK(early > 0);
}

TEST_CASE("a call while another one is in progress is an error") {
  namespace abi = cuda::abi;
  dyncp_emulation::nccl_reset();
  world w({.devices = 2});
  auto device = cuda::device::open({}).value();
  std::array<char, abi::nccl_id_bytes> id = {};
  REQUIRE(abi::nccl_make_id(device.handle(), id.data()).failed == 0);
  cuda::nccl_handle comm = nullptr;
  REQUIRE(abi::nccl_begin(device.handle(), id.data(), 2, 0, {}, &comm).failed == 0);
  const abi::status s = abi::nccl_begin_close(device.handle(), comm);  // rank 1 is not there yet
  CHECK(s.failed != 0);
  CHECK(s.code == errc::invalid_argument);
  CHECK_MESSAGE(contains(s.what, "in progress"), s.what);
  abi::nccl_abort(device.handle(), &comm, 1);
  CHECK(dyncp_emulation::nccl_live_communicators() == 0);
}

TEST_CASE("memory freed while NCCL sends from it is a fault of the GPU") {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    dyncp_emulation::nccl_reset();
    world w({.seed = seed, .devices = 2});
    const cuda::process_bootstrap board(2, 50'000);
    w.run_ranks(2, [&](std::int32_t rank) {
      auto backend = cuda::nccl_backend::create({.ordinal = rank, .rank = rank}, board.of(rank),
                                                {.deadline_us = 50'000});
      REQUIRE(backend.has_value());
      auto pool = group_pool<cuda::nccl_backend>::create(*backend, {});
      REQUIRE(pool.has_value());
      auto& device = backend->device();
      const auto s = device.comm_stream();
      auto memory = device.allocate(64);
      if (!memory) return;
      if (rank == 0) {
        const outgoing out{1, memory->data(), 64};
        static_cast<void>(pool->exchange(pool->everyone(), {&out, 1}, {}, s));
        *memory = {};  // without waiting for the stream
      } else {
        for (int i = 0; i < 20; ++i) cuda::abi::pause(0);
        const incoming in{0, memory->data(), 64};
        static_cast<void>(pool->exchange(pool->everyone(), {}, {&in, 1}, s));
      }
      static_cast<void>(pool->synchronize(s));
    });
    found += w.first_fault().kind == dyncp_emulation::fault_kind::invalid_copy ? 1 : 0;
  }
  CHECK(found > 0);
}
