// SPDX-License-Identifier: Apache-2.0
// Split, merge and reroute over emulated GPUs. DYNCP_TEST_FABRIC is the kind of rank.
#include "conformance/emulated_runner.hpp"
#include "conformance/split_merge_suite.hpp"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstdint>

namespace {

template <class F>
void for_each_world(F f) {
  for (std::int32_t ranks : {1, 2, 5, 8}) {
    INFO(ranks << " ranks");
    dyncp_test::emulated_runner<dyncp_test::DYNCP_TEST_FABRIC> runner(
        ranks, static_cast<std::uint64_t>(10 + ranks));
    f(runner);
  }
}

}  // namespace

TEST_CASE("a small case with every seed") {
  for (std::int64_t seed = 1; seed <= 25 * dyncp_test::count_or(4); ++seed) {
    const auto ranks = static_cast<std::int32_t>(2 + seed % 7);
    INFO(ranks << " ranks, seed " << seed);
    dyncp_test::emulated_runner<dyncp_test::DYNCP_TEST_FABRIC> runner(
        ranks, static_cast<std::uint64_t>(seed));
    dyncp_test::random draw(static_cast<std::uint64_t>(seed));
    dyncp_test::check_plan(runner, dyncp_test::random_plan(draw, ranks), 4);
  }
}
TEST_CASE("random plans: every row arrives once, in its place") {
  for_each_world(
      [](auto& runner) { dyncp_test::check_random_plans(runner, dyncp_test::count_or(4)); });
}
TEST_CASE("inputs on which other implementations failed") {
  for_each_world([](auto& runner) { dyncp_test::check_split_merge_failures(runner); });
}
TEST_CASE("8 tokens on 2 ranks, zigzag and contiguous") {
  for_each_world([](auto& runner) { dyncp_test::check_layout_vectors(runner); });
}
TEST_CASE("gradients of merged rows") {
  for_each_world(
      [](auto& runner) { dyncp_test::check_merge_gradients(runner, dyncp_test::count_or(3)); });
}
TEST_CASE("routes that no plan makes are refused") {
  for_each_world([](auto& runner) { dyncp_test::check_router_refusals(runner); });
}
