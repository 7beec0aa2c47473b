// SPDX-License-Identifier: Apache-2.0
// Ring attention, split and merge while ranks die and messages are lost, late or of another size.
#include "conformance/failure_suite.hpp"
#include "conformance/ring_suite.hpp"
#include "conformance/split_merge_suite.hpp"
#include "conformance/thread_runner.hpp"
#include "support/random.hpp"

#include <dyncp/cpu/fault.hpp>
#include <dyncp/cpu/thread_backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using dyncp::errc;
using dyncp::result;
using dyncp_test::thread_runner;

namespace {

using backend_t = dyncp::cpu::thread_backend;
using provider_t = thread_runner<>::provider_type;

/// What the ranks do while faults happen: micro-batches on groups of several sizes, forward and
/// backward, then split, merge and reroute of a plan, then two barriers that all must pass.
struct program {
  explicit program(std::int32_t ranks, std::uint64_t seed)
      : draw(seed),
        plan(dyncp_test::random_plan(draw, ranks)),
        rings(make_rings(ranks)),
        oracle(rings) {}

  static dyncp_test::ring_case make_rings(std::int32_t ranks) {
    dyncp_test::ring_case c;
    c.shape = {1, 1, 2, 2, 0.7};
    c.micro_batches = {dyncp_test::one_pack(ranks, {9, 1}), {}};
    for (std::int32_t begin = 0; begin < ranks; begin += 2) {
      c.micro_batches[1].push_back({{begin, std::min(2, ranks - begin)}, {5}});
    }
    return c;
  }

  result<void> operator()(backend_t& backend) const {
    auto sums = dyncp_test::run_ring<double, provider_t>(backend, rings, oracle);
    if (!sums) return std::move(sums).error();
    for (const auto& d : *sums) {
      if (!(d.worst <= 1e-12)) return dyncp_test::failed("a wrong result went through");
    }
    DYNCP_TRY(dyncp_test::run_plan(backend, plan, 4));
    auto pool = dyncp::group_pool<backend_t>::create(backend, {.warm_up = false});
    if (!pool) return std::move(pool).error();
    auto channel = pool->channel(pool->everyone());
    DYNCP_TRY(dyncp::barrier(channel));
    return dyncp::barrier(channel);
  }

  dyncp_test::random draw;
  dyncp_test::plan_case plan;
  dyncp_test::ring_case rings;
  dyncp_test::ring_oracle<double> oracle;
};

/// Exchanges of a barrier over so many ranks.
std::int64_t barrier_steps(std::int32_t ranks) {
  std::int64_t steps = 0;
  for (std::int32_t distance = 1; distance < ranks; distance *= 2) ++steps;
  return steps;
}

/// No result is wrong, every failure is typed, and somebody knows its cause.
void check_outcome(const std::vector<result<void>>& results) {
  int failures = 0;
  int causes = 0;
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (results[r]) continue;
    const dyncp::error& e = results[r].error();
    ++failures;
    const bool killed = e.code == errc::aborted &&
                        e.what.find("was stopped by its fault") != std::string::npos &&
                        e.what.find("failed first") == std::string::npos;
    if (killed || dyncp_test::is_cause(e.code)) ++causes;
    CHECK_MESSAGE((killed || e.code == errc::aborted || dyncp_test::is_cause(e.code)),
                  "rank " << r << ": " << e.message());
    CHECK_FALSE(e.what.empty());
  }
  CHECK((failures == 0 || causes > 0));
}

}  // namespace

TEST_CASE("a rank that dies at any step takes all others with it, typed, in time") {
  for (std::int32_t ranks : {2, 4, 5}) {
    const program work(ranks, 5);
    thread_runner<> clean(ranks);
    clean.run(work);
    const std::vector<std::int64_t> steps = clean.exchanges();
    for (std::int32_t victim = 0; victim < ranks; ++victim) {
      const std::int64_t last = steps[static_cast<std::size_t>(victim)];
      for (std::int64_t step = 0; step < last; ++step) {
        INFO(ranks << " ranks, rank " << victim << " dies at step " << step << " of " << last);
        thread_runner<> runner(ranks, {}, {{dyncp::cpu::fault_kind::kill, victim, step}}, 1000);
        const auto results = runner.run_collect(work);
        check_outcome(results);
        CHECK_FALSE(results[static_cast<std::size_t>(victim)].has_value());
        CHECK(runner.end_us() <= 1000);
        if (step >= last - 2 * barrier_steps(ranks)) continue;
        for (std::int32_t r = 0; r < ranks; ++r) {
          CHECK_MESSAGE(!results[static_cast<std::size_t>(r)].has_value(),
                        "rank " << r << " did not notice");
        }
      }
    }
  }
}

TEST_CASE("in wall time every rank is back within the deadline") {
  // The victim hangs instead of dying: only the deadline can tell.
  constexpr std::int64_t deadline_us = 2'000'000;
  thread_runner<> runner(4, {}, {}, deadline_us, dyncp::cpu::time_source::wall);
  const auto start = std::chrono::steady_clock::now();
  const auto results = runner.run_collect([](backend_t& backend) -> result<void> {
    auto pool = dyncp::group_pool<backend_t>::create(backend, {});
    if (!pool) return std::move(pool).error();
    if (pool->rank() == 2) return dyncp_test::wait_for_failure(*pool);
    auto channel = pool->channel(pool->everyone());
    return dyncp::barrier(channel);
  });
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() >= 0.9 * deadline_us);
  CHECK(took.count() < 20 * deadline_us);  // a loaded machine is slow, not a minute late
  CHECK(results[2].has_value());
  int timeouts = 0;
  for (std::size_t r : {0, 1, 3}) {
    REQUIRE_FALSE(results[r].has_value());
    timeouts += results[r].error().code == errc::timeout ? 1 : 0;
  }
  CHECK(timeouts >= 1);
}

TEST_CASE("random fault schedules: no hang, no leak, no wrong result") {
  const std::uint64_t seed = dyncp_test::seed_or(4711);
  const std::int64_t rounds = dyncp_test::count_or(1000);
  dyncp_test::random draw(seed);
  std::vector<program> programs;
  for (std::int32_t ranks = 2; ranks <= 8; ++ranks) programs.emplace_back(ranks, seed + 1);
  std::int64_t disturbed = 0;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const auto ranks = static_cast<std::int32_t>(draw.between(2, 8));
    std::vector<dyncp::cpu::fault> faults;
    std::string text;
    for (std::int64_t i = draw.between(1, 3); i > 0; --i) {
      dyncp::cpu::fault f;
      f.kind = static_cast<dyncp::cpu::fault_kind>(draw.between(0, 3));
      f.rank = static_cast<std::int32_t>(draw.between(0, ranks - 1));
      f.step = draw.between(0, 80);
      f.amount_us = draw.between(1, 2000);  // the deadline is 1000
      text += " [kind " + std::to_string(static_cast<int>(f.kind)) + " rank " +
              std::to_string(f.rank) + " step " + std::to_string(f.step) + "]";
      faults.push_back(f);
    }
    const auto order =
        draw.chance(0.5) ? dyncp::cpu::stream_order::eager : dyncp::cpu::stream_order::shuffled;
    INFO("seed " << seed << ", round " << round << ", " << ranks << " ranks," << text);
    thread_runner<> runner(ranks, {.order = order, .seed = draw.next()}, faults, 1000);
    const auto results = runner.run_collect(programs[static_cast<std::size_t>(ranks - 2)]);
    check_outcome(results);
    disturbed +=
        std::any_of(results.begin(), results.end(), [](const auto& r) { return !r.has_value(); })
            ? 1
            : 0;
  }
  MESSAGE(disturbed << " of " << rounds << " schedules made ranks fail");
  CHECK(disturbed > rounds / 4);
}
