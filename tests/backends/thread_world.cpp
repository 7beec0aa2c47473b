// SPDX-License-Identifier: Apache-2.0
#include "support/random.hpp"

#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/runtime/group_pool.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace dyncp;
using backend_t = cpu::thread_backend;
using pool_t = group_pool<backend_t>;

namespace {

constexpr auto virtual_time = cpu::time_source::virtual_time;

result<void> shift(pool_t& pool, std::int32_t distance, std::int32_t value, std::int32_t& got) {
  const std::int32_t n = pool.ranks();
  const outgoing out{(pool.rank() + distance) % n, &value, 4};
  const incoming in{(pool.rank() + n - distance) % n, &got, 4};
  return pool.exchange_host(pool.everyone(), {&out, 1}, {&in, 1});
}

/// The exchange of `f` below that comes first: a pool of two ranks takes two, to agree and to meet.
constexpr std::int64_t first_step = 2;

/// Runs f(pool) on every rank, without warm-up so that steps are easy to count.
template <class F>
std::vector<result<void>> run(cpu::thread_world& world, F f) {
  return cpu::run_ranks(world, {}, [&](backend_t& backend) -> result<void> {
    auto pool = pool_t::create(backend, {.warm_up = false});
    if (!pool) return std::move(pool).error();
    return f(*pool);
  });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a loop of waiting ranks is reported at once, with who waits for whom") {
  for (auto time : {virtual_time, cpu::time_source::wall}) {
    cpu::thread_world world({.ranks = 3, .time = time});
    const auto start = std::chrono::steady_clock::now();
    const auto results = run(world, [](pool_t& pool) -> result<void> {
      // 0 waits for 1, 1 for 2, 2 for 0; nobody sends.
      std::int32_t got = 0;
      const incoming in{(pool.rank() + 1) % 3, &got, 4};
      return pool.exchange_host(pool.everyone(), {}, {&in, 1});
    });
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));  // not the deadline
    for (const auto& r : results) {
      REQUIRE_FALSE(r.has_value());
      CHECK(r.error().code == errc::deadlock);
      for (const char* part :
           {"rank 0 waits for a message from rank 1", "rank 1 waits for a message from rank 2",
            "rank 2 waits for a message from rank 0", "communicator"}) {
        CHECK_MESSAGE(contains(r.error().what, part), r.error().what);
      }
    }
    CHECK(world.messages_in_flight() == 0);
  }
}

TEST_CASE("no deadlock while one rank works") {
  // Ranks 0 and 1 are blocked long before rank 2 sends what frees them.
  for (auto time : {virtual_time, cpu::time_source::wall}) {
    cpu::thread_world world({.ranks = 3, .time = time});
    const auto results = run(world, [](pool_t& pool) -> result<void> {
      if (pool.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      std::int32_t got = 0;
      const std::int32_t value = pool.rank();
      if (pool.rank() == 2) {
        const outgoing out{0, &value, 4};
        return pool.exchange_host(pool.everyone(), {&out, 1}, {});
      }
      if (pool.rank() == 0) {
        const incoming in{2, &got, 4};
        DYNCP_TRY(pool.exchange_host(pool.everyone(), {}, {&in, 1}));
        const outgoing out{1, &got, 4};
        return pool.exchange_host(pool.everyone(), {&out, 1}, {});
      }
      const incoming in{0, &got, 4};
      DYNCP_TRY(pool.exchange_host(pool.everyone(), {}, {&in, 1}));
      return got == 2 ? result<void>() : make_error(errc::mismatch, "another value");
    });
    for (const auto& r : results) CHECK(r.has_value());
  }
}

TEST_CASE("a send that nobody takes blocks, too") {
  cpu::thread_world world({.ranks = 2, .time = virtual_time});
  const auto results = run(world, [](pool_t& pool) -> result<void> {
    const std::int32_t value = 1;
    const outgoing out{1 - pool.rank(), &value, 4};
    return pool.exchange_host(pool.everyone(), {&out, 1}, {});
  });
  for (const auto& r : results) {
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().code == errc::deadlock);
    CHECK(contains(r.error().what, "to take its message"));
  }
}

TEST_CASE("who waits for a rank that left, or threw, is told") {
  for (bool throws : {false, true}) {
    cpu::thread_world world({.ranks = 4, .time = virtual_time});
    const auto results = run(world, [&](pool_t& pool) -> result<void> {
      if (pool.rank() == 3) {
        if (throws) throw std::runtime_error("out of data");
        return {};
      }
      std::int32_t got = 0;
      return shift(pool, 1, 7, got);
    });
    CHECK(results[3].has_value() == !throws);
    if (throws) {
      CHECK(results[3].error().code == errc::callback_failed);
      CHECK(contains(results[3].error().what, "out of data"));
    }
    int causes = 0;
    for (std::size_t r = 0; r < 3; ++r) {
      if (results[r]) continue;
      const errc code = results[r].error().code;
      if (code == errc::peer_failed) {
        ++causes;
        CHECK(results[r].error().value == 3);
      } else {
        CHECK(code == errc::aborted);
        CHECK(contains(results[r].error().what, "failed first: rank 3 left"));
      }
    }
    CHECK(causes == 1);  // the others hear of the first
  }
}

TEST_CASE("deadlines run out in virtual time") {
  // Rank 0's message takes longer than the deadline: rank 1 gives up, time has passed only there.
  cpu::thread_world world({.ranks = 2,
                           .deadline_us = 1000,
                           .time = virtual_time,
                           .faults = {{cpu::fault_kind::delay, 0, first_step, 5000}}});
  const auto start = std::chrono::steady_clock::now();
  const auto results = run(world, [](pool_t& pool) -> result<void> {
    std::int32_t got = 0;
    return shift(pool, 1, 7, got);
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(world.now_us() >= 1000);
  CHECK(world.now_us() < 5000);
  int timeouts = 0;
  for (const auto& r : results) {
    REQUIRE_FALSE(r.has_value());
    if (r.error().code == errc::timeout) {
      ++timeouts;
      CHECK(contains(r.error().what, "1000 us"));
    } else {
      CHECK(r.error().code == errc::aborted);
    }
  }
  CHECK(timeouts == 1);
}

TEST_CASE("a delay within the deadline changes nothing but the time") {
  for (auto time : {virtual_time, cpu::time_source::wall}) {
    cpu::thread_world world({.ranks = 2,
                             .deadline_us = 10'000'000,
                             .time = time,
                             .faults = {{cpu::fault_kind::delay, 0, first_step, 30'000}}});
    const auto results = run(world, [](pool_t& pool) -> result<void> {
      std::int32_t got = -1;
      DYNCP_TRY(shift(pool, 1, pool.rank(), got));
      return got == 1 - pool.rank() ? result<void>() : make_error(errc::mismatch, "another value");
    });
    for (const auto& r : results) CHECK(r.has_value());
    CHECK(world.now_us() >= 30'000);
  }
}

TEST_CASE("a lost message is never taken for the next one") {
  // Two exchanges of the same size: without numbers the second would pass for the first.
  cpu::thread_world world(
      {.ranks = 2, .time = virtual_time, .faults = {{cpu::fault_kind::drop, 0, first_step, 0}}});
  const auto results = run(world, [](pool_t& pool) -> result<void> {
    for (std::int32_t round = 0; round < 2; ++round) {
      const std::int32_t value = round;
      std::int32_t got = -1;
      if (pool.rank() == 0) {
        const outgoing out{1, &value, 4};
        DYNCP_TRY(pool.exchange_host(pool.everyone(), {&out, 1}, {}));
      } else {
        const incoming in{0, &got, 4};
        DYNCP_TRY(pool.exchange_host(pool.everyone(), {}, {&in, 1}));
        if (got != round) return make_error(errc::invalid_plan, "the wrong message");
      }
    }
    return {};
  });
  REQUIRE_FALSE(results[1].has_value());
  CHECK(results[1].error().code == errc::mismatch);
  CHECK(contains(results[1].error().what, "lost"));
}

TEST_CASE("a message of another size is refused with both sizes") {
  cpu::thread_world world({.ranks = 2,
                           .time = virtual_time,
                           .faults = {{cpu::fault_kind::wrong_size, 0, first_step, 0}}});
  const auto results = run(world, [](pool_t& pool) -> result<void> {
    std::int32_t got = 0;
    return shift(pool, 1, 7, got);
  });
  REQUIRE_FALSE(results[1].has_value());
  CHECK(results[1].error().code == errc::mismatch);
  CHECK(results[1].error().value == 5);
  CHECK(results[1].error().limit == 4);
  CHECK_FALSE(results[0].has_value());
}

TEST_CASE("groups that take more memory than allowed are not made") {
  cpu::thread_world world({.ranks = 4, .time = virtual_time});
  const auto results = cpu::run_ranks(world, {}, [](backend_t& backend) -> result<void> {
    auto pool =
        pool_t::create(backend, {.strategy = pool_strategy::split, .memory_limit_bytes = 1});
    if (pool) return {};
    return std::move(pool).error();
  });
  int causes = 0;
  for (const auto& r : results) {
    REQUIRE_FALSE(r.has_value());
    causes += r.error().code == errc::out_of_memory ? 1 : 0;
    CHECK((r.error().code == errc::out_of_memory || r.error().code == errc::aborted ||
           r.error().code == errc::peer_failed));
  }
  CHECK(causes >= 1);
}

TEST_CASE("ranks far ahead wait for nobody but their peers") {
  // Rank 2 does not take part for long; ranks 0 and 1 go on meanwhile.
  cpu::thread_world world({.ranks = 3, .time = virtual_time});
  std::atomic<int> rounds{0};
  const auto results = run(world, [&](pool_t& pool) -> result<void> {
    if (pool.rank() == 2) {
      while (rounds.load() < 200) std::this_thread::yield();
      return {};
    }
    auto pair = pool.group(rank_range{0, 2});
    if (!pair) return std::move(pair).error();
    for (int i = 0; i < 200; ++i) {
      const std::int32_t value = i;
      std::int32_t got = -1;
      const outgoing out{1 - pair->index, &value, 4};
      const incoming in{1 - pair->index, &got, 4};
      DYNCP_TRY(pool.exchange_host(*pair, {&out, 1}, {&in, 1}));
      if (got != i) return make_error(errc::mismatch, "out of order");
      if (pool.rank() == 0) ++rounds;
    }
    return {};
  });
  for (const auto& r : results) CHECK(r.has_value());
}

TEST_CASE("a host exchange lets streams go on") {
  // The stream's message is needed by the peer before it answers on the host side.
  cpu::thread_world world({.ranks = 2, .time = virtual_time});
  const auto results = run(world, [](pool_t& pool) -> result<void> {
    auto& device = pool.owner().device();
    const auto s = device.comm_stream();
    std::int32_t value = 5;
    std::int32_t got = 0;
    if (pool.rank() == 0) {
      const outgoing out{1, &value, 4};
      DYNCP_TRY(pool.exchange(pool.everyone(), {&out, 1}, {}, s));
      const incoming in{1, &got, 4};
      DYNCP_TRY(pool.exchange_host(pool.everyone(), {}, {&in, 1}));
      return pool.synchronize(s);
    }
    const incoming in{0, &got, 4};
    DYNCP_TRY(pool.exchange(pool.everyone(), {}, {&in, 1}, s));
    DYNCP_TRY(pool.synchronize(s));
    const outgoing out{0, &got, 4};
    return pool.exchange_host(pool.everyone(), {&out, 1}, {});
  });
  for (const auto& r : results) CHECK(r.has_value());
}

TEST_CASE("what is kept of a pool goes with it, of a failed one as well") {
  cpu::thread_world world({.ranks = 4, .time = virtual_time});
  std::barrier<> line(4);
  const auto results = cpu::run_ranks(world, {}, [&](backend_t& backend) -> result<void> {
    for (int i = 0; i < 50; ++i) {
      for (const auto strategy : {pool_strategy::logical, pool_strategy::split}) {
        auto pool = pool_t::create(backend, {.strategy = strategy});
        if (!pool) return std::move(pool).error();
        if (world.entries() > 100) return make_error(errc::mismatch, "entries of closed pools");
        line.arrive_and_wait();  // a failure must not reach a rank that is still making its pool
        if (i % 2 == 1) pool->fail(make_error(errc::callback_failed, "no reason"));
      }
    }
    auto all = backend.fabric().open();
    if (!all) return std::move(all).error();
    for (int i = 0; i < 50; ++i) {
      auto part = backend.fabric().split(*all, backend.fabric().rank() % 2, 0);
      if (!part) return std::move(part).error();
      backend.fabric().close(*part);
      backend.fabric().close(*part);  // twice is once
      if (world.entries() > 100) return make_error(errc::mismatch, "entries of closed splits");
    }
    backend.fabric().close(*all);
    return {};
  });
  for (const auto& r : results) CHECK_MESSAGE(r.has_value(), r.error().message());
  CHECK(world.entries() == 0);
}

TEST_CASE("no deadline is a deadline beyond all clocks") {
  for (auto time : {virtual_time, cpu::time_source::wall}) {
    for (const std::int64_t deadline_us :
         {std::numeric_limits<std::int64_t>::max(), std::int64_t{10'000'000'000'000'000}}) {
      cpu::thread_world world({.ranks = 2, .deadline_us = deadline_us, .time = time});
      const auto results = run(world, [](pool_t& pool) -> result<void> {
        // Rank 0 is blocked for a while, and again for ever.
        if (pool.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::int32_t got = 0;
        DYNCP_TRY(shift(pool, 1, 7, got));
        const incoming in{1 - pool.rank(), &got, 4};
        return pool.exchange_host(pool.everyone(), {}, {&in, 1});
      });
      for (const auto& r : results) {
        REQUIRE_FALSE(r.has_value());
        CHECK(r.error().code == errc::deadlock);
      }
    }
  }
}
