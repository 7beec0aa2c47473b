// SPDX-License-Identifier: Apache-2.0
// Exchanges, collectives and pools on emulated GPUs. DYNCP_TEST_FABRIC is the kind of rank.
#include "conformance/emulated_runner.hpp"
#include "conformance/exchange_suite.hpp"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

namespace {

using runner_type = dyncp_test::emulated_runner<dyncp_test::DYNCP_TEST_FABRIC>;

template <class F>
void for_each_world(std::initializer_list<std::int32_t> sizes, F f) {
  for (std::int32_t ranks : sizes) {
    for (std::int64_t seed = 1; seed <= dyncp_test::count_or(2); ++seed) {
      INFO(ranks << " ranks, seed " << seed);
      runner_type runner(ranks, static_cast<std::uint64_t>(seed));
      f(runner);
    }
  }
}

constexpr dyncp::pool_strategy strategies[] = {dyncp::pool_strategy::logical,
                                               dyncp::pool_strategy::split};

}  // namespace

TEST_CASE("a small case with every seed") {
  for (std::int64_t seed = 1; seed <= 50 * dyncp_test::count_or(2); ++seed) {
    const std::int32_t ranks = std::initializer_list<std::int32_t>{2, 3, 5, 8}.begin()[seed % 4];
    INFO(ranks << " ranks, seed " << seed);
    runner_type runner(ranks, static_cast<std::uint64_t>(seed));
    dyncp_test::check_collectives(runner);
    dyncp_test::check_pool(runner, strategies[seed / 4 % 2]);
    dyncp_test::check_empty_messages(runner);
  }
}
TEST_CASE("exchanges shift messages of all sizes by all distances") {
  for_each_world({1, 2, 3, 4, 8}, [](auto& runner) {
    for (auto strategy : strategies) dyncp_test::check_exchanges(runner, strategy);
  });
}
TEST_CASE("a thousand queued exchanges keep their order") {
  for_each_world({2, 3, 8}, [](auto& runner) { dyncp_test::check_order(runner); });
}
TEST_CASE("messages of no bytes are skipped on both ends") {
  for_each_world({2, 3, 8}, [](auto& runner) { dyncp_test::check_empty_messages(runner); });
}
TEST_CASE("an exchange that cannot be told apart or addressed is refused") {
  for_each_world({1, 2, 8}, [](auto& runner) { dyncp_test::check_refused_exchanges(runner); });
}
TEST_CASE("collectives over groups of every size") {
  for_each_world({1, 2, 5, 8}, [](auto& runner) { dyncp_test::check_collectives(runner); });
}
TEST_CASE("ranks that disagree are told so together") {
  for_each_world({2, 5}, [](auto& runner) { dyncp_test::check_disagreement(runner); });
}
TEST_CASE("a pool has the groups it was asked for and refuses others") {
  for_each_world({1, 2, 4, 6, 8}, [](auto& runner) {
    for (auto strategy : strategies) dyncp_test::check_pool(runner, strategy);
  });
}
TEST_CASE("a pool for explicit sizes") {
  for_each_world({1, 4, 6}, [](auto& runner) { dyncp_test::check_pool_sizes(runner); });
}
TEST_CASE("handles know the generation of their pool") {
  for_each_world({1, 2, 4}, [](auto& runner) { dyncp_test::check_generations(runner); });
}
TEST_CASE("ranks that ask for different pools all learn it") {
  for_each_world({2, 4}, [](auto& runner) { dyncp_test::check_pool_disagreement(runner); });
}
