// SPDX-License-Identifier: Apache-2.0
// Ring attention over emulated GPUs, with the CPU's kernels in double on their streams: whatever
// differs from dense attention by more than 1e-12 is an event, a copy or a message that went wrong.
// DYNCP_TEST_FABRIC is the kind of rank.
#include "conformance/emulated_runner.hpp"
#include "conformance/ring_suite.hpp"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

namespace {

using runner_type = dyncp_test::emulated_runner<dyncp_test::DYNCP_TEST_FABRIC>;

template <class F>
void for_each_world(std::initializer_list<std::int32_t> sizes, F f) {
  for (std::int32_t ranks : sizes) {
    const auto seed = static_cast<std::uint64_t>(ranks);
    INFO(ranks << " ranks, seed " << seed);
    runner_type runner(ranks, seed);
    f(runner);
  }
}

}  // namespace

TEST_CASE("a small case with every seed") {
  dyncp_test::ring_case c;
  c.shape = {2, 1, 2, 3, 0.5};
  for (std::int64_t seed = 1; seed <= dyncp_test::count_or(100); ++seed) {
    const std::int32_t ranks = std::initializer_list<std::int32_t>{2, 3, 4, 8}.begin()[seed % 4];
    INFO(ranks << " ranks, seed " << seed);
    c.mask = dyncp_test::both_masks[seed / 4 % 2];
    c.kept_kv = seed % 3 == 0;
    c.adjacent_kv = seed % 2 == 0;
    c.pool.strategy =
        seed % 5 == 0 ? dyncp::pool_strategy::split : dyncp::pool_strategy::logical;
    c.pool.warm_up = seed % 7 != 0;
    c.micro_batches = {dyncp_test::one_pack(ranks, {13, 1, 6}),
                       {{{0, ranks / 2}, {5}}, {{ranks - 1, 1}, {3}}}};
    runner_type runner(ranks, static_cast<std::uint64_t>(seed));
    dyncp_test::check_ring(runner, c);
  }
}
TEST_CASE("inputs on which other implementations failed") {
  for_each_world({4}, [](auto& runner) { dyncp_test::check_ring_failures(runner); });
}
TEST_CASE("group sizes mixed in one micro-batch, and from one to the next") {
  for_each_world({2, 4, 8}, [](auto& runner) { dyncp_test::check_mixed_groups(runner); });
}
TEST_CASE("logical groups of any size") {
  for_each_world({5}, [](auto& runner) { dyncp_test::check_logical_groups(runner); });
}
TEST_CASE("random batches") {
  for_each_world({1, 2, 4, 8}, [](auto& runner) {
    dyncp_test::check_random_batches(runner, dyncp_test::count_or(6));
  });
}
TEST_CASE("results repeat bit for bit, in every order of streams") {
  for_each_world({2, 8}, [](auto& runner) { dyncp_test::check_repeatable(runner); });
}
TEST_CASE("a context filled again at once") {
  for_each_world({1, 2, 4}, [](auto& runner) { dyncp_test::check_context_reuse(runner); });
}
TEST_CASE("cross-attention") {
  for_each_world({1, 4}, [](auto& runner) { dyncp_test::check_cross_attention(runner); });
}
TEST_CASE("what a ring refuses") {
  for_each_world({1, 4}, [](auto& runner) { dyncp_test::check_ring_refusals(runner); });
}
TEST_CASE("ranks with different micro-batches") {
  for_each_world({2, 4}, [](auto& runner) { dyncp_test::check_ring_disagreement(runner); });
}
TEST_CASE("bytes on the wire") {
  for_each_world({1, 4}, [](auto& runner) { dyncp_test::check_ring_bytes(runner); });
}
