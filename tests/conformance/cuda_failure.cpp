// SPDX-License-Identifier: Apache-2.0
// What ranks on emulated GPUs do when one goes wrong, in virtual time. DYNCP_TEST_FABRIC is the
// kind of rank.
#include "conformance/emulated_runner.hpp"
#include "conformance/failure_suite.hpp"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstdint>

namespace {

template <class F>
void for_each_world(F f) {
  for (std::int32_t ranks : {2, 4, 8}) {
    for (std::int64_t seed = 1; seed <= dyncp_test::count_or(3); ++seed) {
      INFO(ranks << " ranks, seed " << seed);
      dyncp_test::emulated_runner<dyncp_test::DYNCP_TEST_FABRIC> runner(
          ranks, static_cast<std::uint64_t>(seed), {.deadline_us = 50'000});
      f(runner);
    }
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
