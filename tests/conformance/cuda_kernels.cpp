// SPDX-License-Identifier: Apache-2.0
// Ring attention over emulated GPUs with the kernels of the CUDA library: those for checks in
// float, those on tensor cores in bfloat16.
#include "conformance/emulated_runner.hpp"
#include "conformance/ring_suite.hpp"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using dyncp_test::cuda_kernels;
using dyncp_test::emulated_runner;
using dyncp_test::local_kind;
using dyncp_test::nccl_kind;

TEST_CASE("kernels in float behind the ring") {
  for (std::int32_t ranks : {2, 4}) {
    INFO(ranks << " ranks");
    emulated_runner<local_kind, cuda_kernels, float> runner(ranks, 7);
    dyncp_test::check_mixed_groups(runner);
    dyncp_test::check_random_batches(runner, dyncp_test::count_or(3));
    dyncp_test::check_cross_attention(runner);
    dyncp_test::check_repeatable(runner);
  }
}
TEST_CASE("bfloat16 is as good on many ranks as on one") {
  emulated_runner<local_kind, cuda_kernels, float> runner(2, 3);
  dyncp_test::check_bfloat16(runner, 64);
}
