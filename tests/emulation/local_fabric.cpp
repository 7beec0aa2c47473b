// SPDX-License-Identifier: Apache-2.0
// The in-process fabric beyond the suite of all fabrics: events both ways, who left, what is left.
#include "conformance/emulated_runner.hpp"
#include "emulation/world.hpp"

#include <dyncp/core/try.hpp>
#include <dyncp/cuda/backend.hpp>
#include <dyncp/cuda/local_world.hpp>
#include <dyncp/runtime/message.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp;
using dyncp_test::device_array;
using dyncp_test::failed;

namespace {

using runner_type = dyncp_test::emulated_runner<dyncp_test::local_kind>;
using backend_type = runner_type::backend_type;

constexpr std::uint64_t seeds = 60;

}  // namespace

TEST_CASE("a message is what the sender had made, and memory is free behind the exchange") {
  // Round after round each rank makes a value, sends it on, overwrites it at once, and the place
  // where the next message lands is read just before.
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    runner_type runner(3, seed);
    runner.run([&](backend_type& backend) -> result<void> {
      auto comm = backend.fabric().open();
      if (!comm) return std::move(comm).error();
      const auto s = backend.device().comm_stream();
      const auto main = caller_stream(backend);
      const std::int32_t rank = backend.fabric().rank();
      constexpr std::int32_t rounds = 5;
      std::vector<std::int64_t> values;
      for (std::int32_t i = 0; i < rounds; ++i) values.push_back(100 * rank + i);
      auto made = device_array<backend_type, std::int64_t>::of(backend, values, main);
      if (!made) return std::move(made).error();
      auto out = device_array<backend_type, std::int64_t>::make(backend, 1);
      auto in = device_array<backend_type, std::int64_t>::make(backend, 1);
      auto got = device_array<backend_type, std::int64_t>::make(backend, rounds);
      auto ready = backend.device().make_event();
      if (!out || !in || !got || !ready) return failed("no memory");
      DYNCP_TRY(backend.device().record(*ready, main));
      DYNCP_TRY(backend.device().wait(s, *ready));
      for (std::int32_t i = 0; i < rounds; ++i) {
        DYNCP_TRY(backend.device().copy(out->data(), made->data() + i, 8, s));
        const outgoing o{(rank + 1) % 3, out->data(), 8};
        const incoming n{(rank + 2) % 3, in->data(), 8};
        DYNCP_TRY(backend.fabric().exchange(*comm, {&o, 1}, {&n, 1}, s));
        DYNCP_TRY(backend.device().fill_zero(out->data(), 8, s));
        DYNCP_TRY(backend.device().copy(got->data() + i, in->data(), 8, s));
      }
      auto seen = got->read(backend, s);
      if (!seen) return std::move(seen).error();
      for (std::int32_t i = 0; i < rounds; ++i) {
        if ((*seen)[static_cast<std::size_t>(i)] != 100 * ((rank + 2) % 3) + i) {
          return failed("round " + std::to_string(i) + " brought " +
                        std::to_string((*seen)[static_cast<std::size_t>(i)]));
        }
      }
      backend.fabric().close(*comm);
      return {};
    });
  }
}

TEST_CASE("two messages to one rank on two communicators keep apart") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    runner_type runner(2, seed);
    runner.run([&](backend_type& backend) -> result<void> {
      auto a = backend.fabric().open();
      auto b = backend.fabric().open();
      if (!a || !b) return failed("no communicator");
      if (a->family() != 1 || b->family() != 2) return failed("families do not count up");
      const std::int32_t rank = backend.fabric().rank();
      std::int64_t value = 0;
      for (std::int32_t i = 0; i < 2; ++i) {
        auto& comm = i == 0 ? *a : *b;
        const std::int64_t mine = 10 * (i + 1) + rank;
        const outgoing o{1 - rank, &mine, 8};
        const incoming n{1 - rank, &value, 8};
        DYNCP_TRY(backend.fabric().exchange_host(comm, {&o, 1}, {&n, 1}));
        if (value != 10 * (i + 1) + 1 - rank) return failed("a message of the other communicator");
      }
      return {};
    });
  }
}

TEST_CASE("what a rank sent before it left arrives; who waits for more is told") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    runner_type runner(2, seed, {.deadline_us = 50'000});
    const auto results = runner.run_collect([&](backend_type& backend) -> result<void> {
      auto comm = backend.fabric().open();
      if (!comm) return std::move(comm).error();
      std::int64_t value = 7;
      if (backend.fabric().rank() == 0) {
        const outgoing o{1, &value, 8};
        return backend.fabric().exchange_host(*comm, {&o, 1}, {});
      }
      value = 0;
      const incoming n{0, &value, 8};
      DYNCP_TRY(backend.fabric().exchange_host(*comm, {}, {&n, 1}));
      if (value != 7) return failed("the last message was lost");
      return backend.fabric().exchange_host(*comm, {}, {&n, 1});
    });
    CHECK(results[0].has_value());
    REQUIRE_FALSE(results[1].has_value());
    CHECK(results[1].error().code == errc::peer_failed);
    CHECK_MESSAGE(results[1].error().what.find("rank 0 left") != std::string::npos,
                  results[1].error().what);
  }
}

TEST_CASE("after a failure memory may be freed at once, and nothing of it is touched") {
  // In few orders a rank is told of the failure while its own work is queued still.
  for (std::uint64_t seed = 1; seed <= 20 * seeds; ++seed) {
    runner_type runner(3, seed, {.deadline_us = 20'000});
    const auto results = runner.run_collect([&](backend_type& backend) -> result<void> {
      auto comm = backend.fabric().open();
      if (!comm) return std::move(comm).error();
      const auto s = backend.device().comm_stream();
      const std::int32_t rank = backend.fabric().rank();
      auto memory = backend.device().allocate(4096);
      if (!memory) return std::move(memory).error();
      auto* const data = static_cast<char*>(memory->data());
      DYNCP_TRY(backend.device().fill_zero(data, 4096, s));
      const outgoing o{(rank + 1) % 3, data, 2048};
      const incoming n{(rank + 2) % 3, data + 2048, 2048};
      DYNCP_TRY(backend.fabric().exchange(*comm, {&o, 1}, {&n, 1}, s));
      if (rank == 2) return backend.fabric().synchronize(s);
      return backend.fabric().exchange(*comm, {&o, 1}, {&n, 1}, s);
    });
    CHECK_FALSE(results[0].has_value());
    CHECK_FALSE(results[1].has_value());
  }
}

TEST_CASE("a stream that is not done by the deadline is a timeout") {
  runner_type runner(1, 1, {.deadline_us = 5'000});
  runner.run([&](backend_type& backend) -> result<void> {
    const auto s = caller_stream(backend);
    bool open = false;
    dyncp_emulation::world& w = *dyncp_emulation::world::current();
    w.enqueue(reinterpret_cast<dyncp_emulation::emulated_stream*>(s), [&] {
      static_cast<void>(w.wait_until([&] { return open; }));
    });
    const auto late = backend.fabric().synchronize(s);
    if (late || late.error().code != errc::timeout || late.error().limit != 5'000) {
      return failed("a stream that hangs was waited for");
    }
    open = true;
    return backend.fabric().synchronize(s);
  });
}

TEST_CASE("a rank outside of its world is refused") {
  dyncp_emulation::world w;
  cuda::local_world world({.ranks = 2});
  for (const std::int32_t rank : {-1, 2}) {
    const auto refused = cuda::local_backend::create(world, {.rank = rank});
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == errc::invalid_argument);
    CHECK(refused.error().value == rank);
  }
}
