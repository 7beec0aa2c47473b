// SPDX-License-Identifier: Apache-2.0
// What the planner plans, run over ranks that are threads.
#include "conformance/planned_suite.hpp"
#include "conformance/thread_runner.hpp"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using dyncp_test::thread_runner;

TEST_CASE("plans of random batches are carried out") {
  const std::uint64_t seed = dyncp_test::seed_or(31);
  dyncp_test::planned_groups seen;
  for (std::int32_t ranks : {1, 2, 4, 8, 16}) {
    thread_runner<> runner(ranks, {.order = dyncp::cpu::stream_order::shuffled, .seed = seed});
    dyncp_test::check_planned(runner, dyncp_test::count_or(4), seed, &seen);
  }
  CHECK(seen.mixed);
  CHECK(seen.sizes.size() >= 4);
}
