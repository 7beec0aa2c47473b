// SPDX-License-Identifier: Apache-2.0
// Ring attention over emulated GPUs with the kernels of the CUDA library: those for checks in
// float, those on tensor cores in bfloat16 and float16.
#include "conformance/emulated_runner.hpp"
#include "conformance/ring_suite.hpp"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

using dyncp_test::cuda_kernels;
using dyncp_test::emulated_runner;
using dyncp_test::local_kind;
using dyncp_test::nccl_kind;

namespace {

/// True in the suite `slow`.
bool slow() { return dyncp_test::count_or(100) > 100; }

/// One pack for all ranks and another with idle ranks, whose order of streams the seed draws.
template <class Runner>
void check_small_case(std::uint64_t seed) {
  const std::int32_t ranks = std::initializer_list<std::int32_t>{2, 3, 4, 8}.begin()[seed % 4];
  INFO(ranks << " ranks, seed " << seed);
  dyncp_test::ring_case c;
  c.shape = {2, 1, 4, 4, 0.5};
  c.mask = dyncp_test::both_masks[seed / 4 % 2];
  c.kept_kv = seed % 3 == 0;
  c.adjacent_kv = seed % 2 == 0;
  c.micro_batches = {dyncp_test::one_pack(ranks, {13, 1, 6}),
                     {{{0, ranks / 2}, {5}}, {{ranks - 1, 1}, {3}}}};
  Runner runner(ranks, seed);
  dyncp_test::check_ring(runner, c);
}

}  // namespace

TEST_CASE("a small case with every seed: kernels in float") {
  const auto seeds = static_cast<std::uint64_t>(dyncp_test::count_or(100));
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    if (seed % 2 == 0) {
      check_small_case<emulated_runner<local_kind, cuda_kernels, float>>(seed);
    } else {
      check_small_case<emulated_runner<nccl_kind, cuda_kernels, float>>(seed);
    }
  }
}
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
TEST_CASE("inputs on which other implementations failed, with kernels in float") {
  emulated_runner<local_kind, cuda_kernels, float> runner(4, 2);
  dyncp_test::check_ring_failures(runner);
}
TEST_CASE("bfloat16 is as good on many ranks as on one") {
  for (std::int32_t ranks : {2, 4, 8}) {
    if (ranks > 2 && !slow()) break;
    emulated_runner<local_kind, cuda_kernels, float> runner(ranks, 3);
    dyncp_test::check_bfloat16(runner, 64);
  }
  if (!slow()) return;
  emulated_runner<nccl_kind, cuda_kernels, float> runner(4, 5);
  dyncp_test::check_bfloat16(runner, 128);
}
TEST_CASE("float16 is as good on many ranks as on one") {
  emulated_runner<local_kind, cuda_kernels, float> runner(2, 4);
  dyncp_test::check_float16(runner, 64);
}
