// SPDX-License-Identifier: Apache-2.0
// Planning ahead: the same plans in the same order, errors where they belong, bounded, cancellable.
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/planner/async_planner.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using dyncp::async_planner;
using dyncp::errc;
using dyncp::plan_hint;
using dyncp::planned;
using dyncp::problem;

namespace {

problem batch(std::uint64_t seed) {
  dyncp_test::random rng(seed);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 40; ++i) lengths.push_back(rng.between(1, 300));
  return dyncp_test::reference_problem(lengths, 4, 2, 100);
}

auto real_planner() {
  const problem p = batch(0);
  return dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
}

/// A door that calls of the planner wait at, and what they were called with.
struct gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = true;
  int inside = 0;
  std::vector<std::int64_t> order;
  void set(bool o) {
    const std::lock_guard lock(mutex);
    open = o;
    changed.notify_all();
  }
  void wait_for_visitor() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return inside > 0; });
  }
};

/// A planner whose plans are as large as its problem's limit says; it throws for limit 13.
struct slow_planner {
  std::shared_ptr<gate> door = std::make_shared<gate>();
  dyncp::result<planned> plan(const problem& p, const plan_hint& hint) const {
    {
      std::unique_lock lock(door->mutex);
      ++door->inside;
      door->changed.notify_all();
      door->changed.wait(lock, [&] { return door->open; });
      --door->inside;
      door->order.push_back(p.limits.max_tokens_per_rank);
    }
    if (p.limits.max_tokens_per_rank == 13) throw std::runtime_error("thirteen");
    if (p.limits.max_tokens_per_rank == 14) {
      return dyncp::make_error(errc::not_found, "fourteen");
    }
    planned out;
    out.plan.max_tokens_per_rank = p.limits.max_tokens_per_rank;
    out.plan.num_ranks = static_cast<std::int32_t>(hint.regions.size());
    out.hint.regions = hint.regions;
    out.hint.regions.emplace_back();
    return out;
  }
  int cost() const { return 0; }
};

/// Returns when `count` calls of `take` sleep.
template <class Planner>
void wait_for_sleepers(const async_planner<Planner>& ahead, std::int32_t count) {
  while (ahead.report().waiting < count) std::this_thread::yield();
}

problem numbered(std::int64_t n) {
  problem p;
  p.limits.max_tokens_per_rank = n;
  return p;
}

}  // namespace

TEST_CASE("plans made ahead are those of the planner") {
  const auto direct = real_planner();
  async_planner ahead{direct, {.depth = 3}};
  std::int64_t next = 0;
  for (std::int64_t k = 0; k < 8; ++k) {
    while (next < 8 && ahead.submit(next, batch(static_cast<std::uint64_t>(next)))) ++next;
    const auto got = ahead.take(k);
    REQUIRE(got);
    const auto expected = direct.plan(batch(static_cast<std::uint64_t>(k)));
    REQUIRE(expected);
    CHECK(got->plan == expected->plan);
  }
  CHECK(ahead.report().planned == 8);
  CHECK(ahead.report().failed == 0);
  CHECK(ahead.pending() == 0);
}

TEST_CASE("with a warm start each plan has the hint of the one before") {
  const auto direct = real_planner();
  async_planner ahead{direct, {.depth = 2, .warm_start = true}};
  plan_hint hint;
  for (std::int64_t k = 0; k < 5; ++k) {
    REQUIRE(ahead.submit(k, batch(static_cast<std::uint64_t>(k))));
    const auto got = ahead.take(k);
    const auto expected = direct.plan(batch(static_cast<std::uint64_t>(k)), hint);
    REQUIRE(got);
    REQUIRE(expected);
    hint = expected->hint;
    CHECK(got->plan == expected->plan);
  }
}

TEST_CASE("errors and exceptions arrive with their iteration; the others are planned") {
  async_planner ahead{slow_planner{}, {.depth = 5}};
  const std::vector<std::int64_t> limits = {1, 13, 2, 14, 3};
  for (std::size_t k = 0; k < limits.size(); ++k) {
    REQUIRE(ahead.submit(static_cast<std::int64_t>(k), numbered(limits[k])));
  }
  // In any order of taking.
  for (const std::int64_t k : {4, 1, 0, 3, 2}) {
    const auto got = ahead.take(k);
    const std::int64_t limit = limits[static_cast<std::size_t>(k)];
    if (limit == 13) {
      REQUIRE(!got);
      CHECK(got.error().code == errc::callback_failed);
      CHECK(got.error().what.find("thirteen") != std::string::npos);
    } else if (limit == 14) {
      REQUIRE(!got);
      CHECK(got.error().code == errc::not_found);
    } else {
      REQUIRE(got);
      CHECK(got->plan.max_tokens_per_rank == limit);
    }
  }
  CHECK(ahead.report().planned == 3);
  CHECK(ahead.report().failed == 2);
}

TEST_CASE("no more than depth plans wait to be taken, and none twice") {
  slow_planner slow;
  async_planner ahead{slow, {.depth = 2}};
  slow.door->set(false);
  CHECK(ahead.submit(0, numbered(1)));
  CHECK(!ahead.submit(0, numbered(1)));
  CHECK(ahead.submit(1, numbered(2)));
  CHECK(!ahead.submit(2, numbered(3)));
  CHECK(ahead.pending() == 2);
  slow.door->set(true);
  REQUIRE(ahead.take(0));
  CHECK(ahead.submit(2, numbered(3)));
  const auto twice = ahead.take(0);
  REQUIRE(!twice);
  CHECK(twice.error().code == errc::not_found);
  REQUIRE(ahead.take(1));
  REQUIRE(ahead.take(2));
  const std::lock_guard lock(slow.door->mutex);
  CHECK(slow.door->order == std::vector<std::int64_t>{1, 2, 3});
}

TEST_CASE("take waits, says how long, and does not wait for what is ready") {
  slow_planner slow;
  async_planner ahead{slow, {.depth = 2}};
  slow.door->set(false);
  REQUIRE(ahead.submit(0, numbered(1)));
  slow.door->wait_for_visitor();
  double asleep_s = 0;  // at least that long
  std::thread opener([&] {
    wait_for_sleepers(ahead, 1);
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    asleep_s = passed.count();
    slow.door->set(true);
  });
  REQUIRE(ahead.take(0));
  opener.join();
  CHECK(ahead.report().last_wait_s >= asleep_s);
  CHECK(ahead.report().waited_s == ahead.report().last_wait_s);
  const double before = ahead.report().waited_s;
  REQUIRE(ahead.submit(1, numbered(2)));
  while (ahead.report().planned < 2) std::this_thread::yield();
  REQUIRE(ahead.take(1));
  CHECK(ahead.report().last_wait_s == 0);
  CHECK(ahead.report().waited_s == before);
}

TEST_CASE("cancel: who waits is told, what is in progress is thrown away, later plans are made") {
  slow_planner slow;
  async_planner ahead{slow, {.depth = 3, .warm_start = true}};
  REQUIRE(ahead.submit(9, numbered(1)));
  REQUIRE(ahead.take(9));
  slow.door->set(false);
  REQUIRE(ahead.submit(0, numbered(1)));
  REQUIRE(ahead.submit(1, numbered(2)));
  slow.door->wait_for_visitor();
  std::atomic<bool> told = false;
  std::thread waiter([&] {
    const auto got = ahead.take(1);
    CHECK(!got);
    if (!got) CHECK(got.error().code == errc::cancelled);
    told = true;
  });
  wait_for_sleepers(ahead, 1);
  ahead.cancel();
  waiter.join();
  CHECK(told);
  CHECK(ahead.pending() == 0);
  CHECK(ahead.report().cancelled == 2);
  // The same iteration again, while the old plan of it is still in progress.
  REQUIRE(ahead.submit(0, numbered(5)));
  slow.door->set(true);
  const auto got = ahead.take(0);
  REQUIRE(got);
  CHECK(got->plan.max_tokens_per_rank == 5);
  CHECK(got->plan.num_ranks == 0);  // what was learned before is forgotten
}

TEST_CASE("without a thread, `take` plans in order, and wakes who waits for the same plans") {
  slow_planner slow;
  async_planner ahead{slow, {.depth = 3, .own_thread = false}};
  slow.door->set(false);
  for (std::int64_t k = 0; k < 3; ++k) REQUIRE(ahead.submit(k, numbered(k + 1)));
  const auto take = [&](std::int64_t k) {
    const auto got = ahead.take(k);
    CHECK(got);
    if (got) CHECK(got->plan.max_tokens_per_rank == k + 1);
  };
  std::thread planning(take, 2);  // makes all three
  slow.door->wait_for_visitor();
  std::thread waiting(take, 0);   // finds the first in progress, and is no one to plan it
  wait_for_sleepers(ahead, 1);
  slow.door->set(true);
  planning.join();
  waiting.join();
  take(1);
  CHECK(ahead.report().planned == 3);
  const std::lock_guard lock(slow.door->mutex);
  CHECK(slow.door->order == std::vector<std::int64_t>{1, 2, 3});
}

TEST_CASE("an async planner may go away at any time") {
  for (int round = 0; round < 20; ++round) {
    slow_planner slow;
    async_planner ahead{slow, {.depth = 4}};
    for (std::int64_t k = 0; k < 4; ++k) CHECK(ahead.submit(k, numbered(k + 1)));
    if (round % 3 == 0) CHECK(ahead.take(0));
  }
  const async_planner unused{slow_planner{}};
  CHECK(unused.pending() == 0);
}
