// SPDX-License-Identifier: Apache-2.0
// Exchanges, collectives and pools over ranks that are threads.
#include "conformance/exchange_suite.hpp"
#include "conformance/thread_runner.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using dyncp_test::thread_runner;

namespace {

template <class F>
void for_each_world(F f) {
  for (std::int32_t ranks : {1, 2, 3, 4, 6, 8, 15, 16}) {
    for (auto order : {dyncp::cpu::stream_order::eager, dyncp::cpu::stream_order::shuffled}) {
      INFO(ranks << " ranks, order " << static_cast<int>(order));
      thread_runner<> runner(ranks, {.order = order});
      f(runner);
    }
  }
}

constexpr dyncp::pool_strategy strategies[] = {dyncp::pool_strategy::logical,
                                               dyncp::pool_strategy::split};

}  // namespace

TEST_CASE("exchanges shift messages of all sizes by all distances") {
  for_each_world([](auto& runner) {
    for (auto strategy : strategies) dyncp_test::check_exchanges(runner, strategy);
  });
}
TEST_CASE("a thousand queued exchanges keep their order") {
  for_each_world([](auto& runner) { dyncp_test::check_order(runner); });
}
TEST_CASE("messages of no bytes are skipped on both ends") {
  for_each_world([](auto& runner) { dyncp_test::check_empty_messages(runner); });
}
TEST_CASE("an exchange that cannot be told apart or addressed is refused") {
  for_each_world([](auto& runner) { dyncp_test::check_refused_exchanges(runner); });
}
TEST_CASE("collectives over groups of every size") {
  for_each_world([](auto& runner) { dyncp_test::check_collectives(runner); });
}
TEST_CASE("ranks that disagree are told so together") {
  for_each_world([](auto& runner) { dyncp_test::check_disagreement(runner); });
}
TEST_CASE("a pool has the groups it was asked for and refuses others") {
  for_each_world([](auto& runner) {
    for (auto strategy : strategies) dyncp_test::check_pool(runner, strategy);
  });
}
TEST_CASE("a pool for explicit sizes") {
  for_each_world([](auto& runner) { dyncp_test::check_pool_sizes(runner); });
}
TEST_CASE("handles know the generation of their pool") {
  for_each_world([](auto& runner) { dyncp_test::check_generations(runner); });
}
TEST_CASE("ranks that ask for different pools all learn it") {
  for_each_world([](auto& runner) { dyncp_test::check_pool_disagreement(runner); });
}
TEST_CASE("6 ranks cannot be cut into fours") {
  thread_runner<> runner(6);
  runner.run([](dyncp::cpu::thread_backend& backend) -> dyncp::result<void> {
    auto pool =
        dyncp::group_pool<dyncp::cpu::thread_backend>::create(backend, {.sizes = {1, 2, 4}});
    if (pool || pool.error().code != dyncp::errc::invalid_argument || pool.error().value != 4 ||
        pool.error().limit != 6) {
      return dyncp_test::failed("groups of 4 among 6 ranks");
    }
    return {};
  });
}
