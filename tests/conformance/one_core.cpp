// SPDX-License-Identifier: Apache-2.0
// Ranks share one core: nothing spins, so eight of them make progress.
#include "conformance/exchange_suite.hpp"
#include "conformance/ring_suite.hpp"
#include "conformance/thread_runner.hpp"
#include "support/skip.hpp"

#include <doctest/doctest.h>

#include <chrono>

#if defined(__linux__)
#include <sched.h>
#endif

TEST_CASE("eight ranks on one core") {
#if defined(__linux__)
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    CPU_SET(core, &one);
    break;
  }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);  // threads inherit it
  const auto start = std::chrono::steady_clock::now();
  dyncp_test::thread_runner<> runner(8, {}, {}, 60'000'000, dyncp::cpu::time_source::wall);
  dyncp_test::check_order(runner);
  dyncp_test::check_mixed_groups(runner);
  dyncp_test::check_repeatable(runner);
  // Some 20'000 exchanges: with ranks that spin, each would cost time slices of milliseconds.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(40));
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
#else
  dyncp_test::skip("no way to pin threads here");
#endif
}
