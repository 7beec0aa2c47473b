// SPDX-License-Identifier: Apache-2.0
// Ring attention with the blocked kernels, over ranks that are threads.
#include "conformance/ring_suite.hpp"
#include "conformance/thread_runner.hpp"

#include <dyncp/cpu/blocked_attention.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using dyncp_test::thread_runner;

TEST_CASE("the blocked kernels in the ring") {
  for (std::int32_t ranks : {1, 2, 4, 8}) {
    thread_runner<dyncp::cpu::blocked_attention> runner(
        ranks, {.order = dyncp::cpu::stream_order::shuffled});
    dyncp_test::check_mixed_groups(runner);
    dyncp_test::check_random_batches(runner, dyncp_test::count_or(4));
    dyncp_test::check_bfloat16(runner);
  }
}
