// SPDX-License-Identifier: Apache-2.0
// Split, merge and reroute over ranks that are threads.
#include "conformance/split_merge_suite.hpp"
#include "conformance/thread_runner.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using dyncp_test::thread_runner;

namespace {

template <class F>
void for_each_world(F f) {
  for (std::int32_t ranks : {1, 2, 4, 5, 8, 16}) {
    for (auto order : {dyncp::cpu::stream_order::eager, dyncp::cpu::stream_order::shuffled}) {
      INFO(ranks << " ranks, order " << static_cast<int>(order));
      thread_runner<> runner(ranks, {.order = order});
      f(runner);
    }
  }
}

}  // namespace

TEST_CASE("random plans: every row arrives once, in its place") {
  for_each_world(
      [](auto& runner) { dyncp_test::check_random_plans(runner, dyncp_test::count_or(8)); });
}
TEST_CASE("inputs on which other implementations failed") {
  for_each_world([](auto& runner) { dyncp_test::check_split_merge_failures(runner); });
}
TEST_CASE("8 tokens on 2 ranks, zigzag and contiguous") {
  for_each_world([](auto& runner) { dyncp_test::check_layout_vectors(runner); });
}
TEST_CASE("gradients of merged rows") {
  for_each_world(
      [](auto& runner) { dyncp_test::check_merge_gradients(runner, dyncp_test::count_or(6)); });
}
TEST_CASE("plans that do not cover the batch once are refused by name") {
  dyncp_test::check_plan_layout_errors();
}
TEST_CASE("routes that no plan makes are refused") {
  for_each_world([](auto& runner) { dyncp_test::check_router_refusals(runner); });
}
