// SPDX-License-Identifier: Apache-2.0
// What ranks that are threads do when one goes wrong. The deadline is long enough for a loaded
// machine to build a pool in, and each test waits for one.
#include "conformance/failure_suite.hpp"
#include "conformance/thread_runner.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using dyncp_test::thread_runner;

namespace {

template <class F>
void for_each_world(F f) {
  for (std::int32_t ranks : {2, 8}) {
    INFO(ranks << " ranks");
    thread_runner<> runner(ranks, {}, {}, 2'000'000, dyncp::cpu::time_source::wall);
    f(runner);
  }
}

}  // namespace

TEST_CASE("a rank that does not come") {
  for_each_world([](auto& runner) { dyncp_test::check_missing_rank(runner); });
}
TEST_CASE("sizes that differ") {
  for_each_world([](auto& runner) { dyncp_test::check_wrong_size(runner); });
}
TEST_CASE("groups in different orders") {
  for_each_world([](auto& runner) { dyncp_test::check_crossed_groups(runner); });
}
TEST_CASE("a message that one end alone knows of") {
  for_each_world([](auto& runner) { dyncp_test::check_one_sided(runner); });
}
TEST_CASE("a failure that a rank declares") {
  for_each_world([](auto& runner) { dyncp_test::check_declared_failure(runner); });
}
