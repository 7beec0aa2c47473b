// SPDX-License-Identifier: Apache-2.0
#include "support/random.hpp"

#include <dyncp/cpu/device.hpp>
#include <dyncp/cpu/thread_backend.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp;

namespace {

/// A rank alone, whose `synchronize` runs the queues of the device.
struct lone_rank {
  explicit lone_rank(cpu::device_options options = {})
      : world({.ranks = 1}), backend(world, 0, options) {}
  void sync(cpu::device::stream s) { CHECK(backend.fabric().synchronize(s).has_value()); }
  cpu::device& device() { return backend.device(); }

  cpu::thread_world world;
  cpu::thread_backend backend;
};

constexpr cpu::stream_order orders[] = {cpu::stream_order::eager, cpu::stream_order::shuffled};

}  // namespace

TEST_CASE("work on one stream runs in order") {
  for (cpu::stream_order order : orders) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      lone_rank rank({.order = order, .seed = seed});
      std::vector<int> log;
      const auto s = rank.device().main_stream();
      for (int i = 0; i < 40; ++i) {
        CHECK(rank.device().run(s, [&log, i] { log.push_back(i); }).has_value());
      }
      rank.sync(s);
      REQUIRE(log.size() == 40);
      for (int i = 0; i < 40; ++i) CHECK(log[static_cast<std::size_t>(i)] == i);
    }
  }
}

TEST_CASE("shuffled streams take every order that events allow, and no other") {
  // a1 a2 on one stream, b1 b2 on another; b2 waits for a1.
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    lone_rank rank({.order = cpu::stream_order::shuffled, .seed = seed});
    cpu::device& d = rank.device();
    const auto a = d.main_stream();
    const auto b = d.make_stream();
    std::string log;
    auto event = d.make_event().value();
    const auto note = [&](cpu::device::stream s, char c) {
      CHECK(d.run(s, [&log, c] { log += c; }).has_value());
    };
    note(a, '1');
    CHECK(d.record(event, a).has_value());
    note(a, '2');
    note(b, 'x');
    CHECK(d.wait(b, event).has_value());
    note(b, 'y');
    rank.sync(a);
    rank.sync(b);
    seen.insert(log);
  }
  const std::set<std::string> all = {"12xy", "1x2y", "1xy2", "x12y", "x1y2"};
  CHECK(seen == all);
}

TEST_CASE("eager streams run at once unless an event holds them") {
  lone_rank rank;
  cpu::device& d = rank.device();
  int ran = 0;
  CHECK(d.run(d.main_stream(), [&] { ++ran; }).has_value());
  CHECK(ran == 1);
}

TEST_CASE("a wait refers to the record before it") {
  for (cpu::stream_order order : orders) {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      lone_rank rank({.order = order, .seed = seed});
      cpu::device& d = rank.device();
      const auto a = d.main_stream();
      const auto b = d.comm_stream();
      auto event = d.make_event().value();
      int value = 0;
      int read = 0;
      CHECK(d.wait(b, event).has_value());  // never recorded: waits for nothing
      CHECK(d.run(a, [&] { value = 1; }).has_value());
      CHECK(d.record(event, a).has_value());
      CHECK(d.run(a, [&] { value = value == 1 ? 2 : -1; }).has_value());
      CHECK(d.record(event, a).has_value());
      CHECK(d.wait(b, event).has_value());  // for the second record
      CHECK(d.run(b, [&] { read = value; }).has_value());
      rank.sync(b);
      CHECK(read == 2);
      rank.sync(a);
    }
  }
}

TEST_CASE("an error throws away all queued work, and the device goes on") {
  for (cpu::stream_order order : orders) {
    lone_rank rank({.order = order});
    cpu::device& d = rank.device();
    const auto a = d.main_stream();
    const auto b = d.comm_stream();
    auto event = d.make_event().value();
    bool held = true;
    int ran = 0;
    const auto hold = [&held]() -> result<cpu::progress> {
      return held ? cpu::progress::pending : cpu::progress::done;
    };
    CHECK(d.submit(a, hold).has_value());
    CHECK(d.record(event, a).has_value());
    CHECK(d.wait(b, event).has_value());
    CHECK(d.run(b, [&] { ++ran; }).has_value());
    const auto c = d.make_stream();
    auto outcome = d.submit(
        c, []() -> result<cpu::progress> { return make_error(errc::backend_failure, "broken"); });
    for (int i = 0; i < 100 && outcome; ++i) {
      if (auto moved = d.pump(); !moved) outcome = moved.error();
    }
    REQUIRE_FALSE(outcome.has_value());
    CHECK(outcome.error().code == errc::backend_failure);
    CHECK(d.idle(a));
    CHECK(d.idle(b));
    CHECK(ran == 0);
    // Events of the work that is gone hold nobody.
    CHECK(d.wait(b, event).has_value());
    CHECK(d.run(b, [&] { ++ran; }).has_value());
    rank.sync(b);
    CHECK(ran == 1);
  }
}

TEST_CASE("a stream that nothing can wake is an error, not a hang") {
  lone_rank rank;
  cpu::device& d = rank.device();
  CHECK(d.submit(d.main_stream(), []() -> result<cpu::progress> {
           return cpu::progress::pending;
         }).has_value());
  const auto outcome = rank.backend.fabric().synchronize(d.main_stream());
  REQUIRE_FALSE(outcome.has_value());
  CHECK(outcome.error().code == errc::invalid_argument);
  CHECK(d.idle(d.main_stream()));
}

TEST_CASE("queued work is destroyed once, wherever it goes") {
  const auto count = std::make_shared<int>(0);
  {
    cpu::op_queue queue;
    for (int i = 0; i < 100; ++i) {
      queue.push(cpu::queued_op([held = count]() -> result<cpu::progress> {
        ++*held;
        return cpu::progress::done;
      }));
      if (i % 3 == 0) {
        CHECK(queue.front().run().has_value());
        queue.pop();
      }
    }
    CHECK(count.use_count() == 1 + static_cast<long>(queue.size()));
    cpu::queued_op moved(std::move(queue.front()));
    cpu::queued_op assigned;
    assigned = std::move(moved);
    CHECK(assigned.run().has_value());
    queue.clear();
    CHECK(count.use_count() == 2);
  }
  CHECK(count.use_count() == 1);
  CHECK(*count == 35);
}

TEST_CASE("memory: alignment, limits, poison, accounts") {
  cpu::device d({.poison_memory = true, .memory_limit_bytes = 1000});
  {
    auto a = d.allocate(600).value();
    CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % device_alignment_bytes == 0);
    CHECK(a.bytes() == 600);
    float f = 0;
    std::memcpy(&f, a.data(), sizeof f);
    CHECK(f != f);
    CHECK(d.memory_in_use() == 600);
    const auto none = d.allocate(401);
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().code == errc::out_of_memory);
    CHECK(none.error().value == 401);
    CHECK(none.error().limit == 400);
    CHECK_FALSE(none.error().hint.empty());
    auto b = std::move(a);
    CHECK(b.bytes() == 600);
    CHECK(d.memory_in_use() == 600);
    b = d.allocate(10).value();
    CHECK(d.memory_in_use() == 10);
    CHECK(d.allocate(0).value().data() == nullptr);
    CHECK(d.allocate(-1).error().code == errc::invalid_argument);
  }
  CHECK(d.memory_in_use() == 0);
  CHECK(d.allocations() == 2);
}

TEST_CASE("copies: flat, strided, by rows, zeros") {
  for (cpu::stream_order order : orders) {
    lone_rank rank({.order = order});
    cpu::device& d = rank.device();
    const auto s = d.main_stream();
    const std::array<std::uint8_t, 12> from = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    std::array<std::uint8_t, 12> to = {};
    CHECK(d.copy(to.data(), from.data(), 12, s).has_value());
    CHECK(d.copy(nullptr, nullptr, 0, s).has_value());
    rank.sync(s);
    CHECK(to == from);
    CHECK(d.fill_zero(to.data(), 12, s).has_value());
    CHECK(d.fill_zero(nullptr, 0, s).has_value());
    CHECK(d.copy_strided(to.data(), 4, from.data() + 1, 3, 2, 3, s).has_value());
    rank.sync(s);
    CHECK(to == std::array<std::uint8_t, 12>{2, 3, 0, 0, 5, 6, 0, 0, 8, 9, 0, 0});
    const std::array<row_copy, 4> table = {row_copy{0, 0, 4, 2}, row_copy{2, 2, -1, 1},
                                           row_copy{3, 3, 0, 1}, row_copy{4, 4, 0, 0}};
    CHECK(d.copy_rows(to.data(), from.data(), table, 4, 2, s).has_value());
    rank.sync(s);
    CHECK(to == std::array<std::uint8_t, 12>{9, 10, 11, 12, 0, 0, 1, 2, 8, 9, 0, 0});
  }
}
