// SPDX-License-Identifier: Apache-2.0
// Ring attention over ranks that are threads, against dense attention in double.
#include "conformance/ring_suite.hpp"
#include "conformance/thread_runner.hpp"

#include <dyncp/cpu/plain_attention.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using dyncp_test::thread_runner;

namespace {

constexpr dyncp::cpu::stream_order orders[] = {dyncp::cpu::stream_order::eager,
                                               dyncp::cpu::stream_order::shuffled};

template <class F>
void for_each_world(F f) {
  for (std::int32_t ranks : {1, 2, 4, 8, 16}) {
    for (auto order : orders) {
      INFO(ranks << " ranks, order " << static_cast<int>(order));
      thread_runner<> runner(ranks, {.order = order});
      f(runner);
    }
  }
}

}  // namespace

TEST_CASE("inputs on which other implementations failed") {
  // With and without a rank that has nothing to do.
  for (std::int32_t cp : {2, 3, 4, 8, 16}) {
    for (std::int32_t idle : {0, 1}) {
      thread_runner<> runner(cp + idle, {.order = orders[idle]});
      dyncp_test::check_ring_failures(runner, cp);
    }
  }
}
TEST_CASE("group sizes mixed in one micro-batch, and from one to the next") {
  for_each_world([](auto& runner) { dyncp_test::check_mixed_groups(runner); });
}
TEST_CASE("logical groups of any size") {
  for (std::int32_t ranks : {5, 8}) {
    thread_runner<> runner(ranks, {.order = dyncp::cpu::stream_order::shuffled});
    dyncp_test::check_logical_groups(runner);
  }
}
TEST_CASE("random batches") {
  for_each_world(
      [](auto& runner) { dyncp_test::check_random_batches(runner, dyncp_test::count_or(12)); });
}
TEST_CASE("all short packs of one and two sequences") {
  const std::vector<std::int64_t> lengths = {0, 1, 2, 3, 5, 7, 8, 9, 16, 17, 23, 31};
  for (std::int32_t ranks : {1, 2, 3, 4, 8}) {
    for (dyncp::attention_mask mask : dyncp_test::both_masks) {
      INFO(ranks << " ranks, mask " << static_cast<int>(mask));
      dyncp_test::ring_case c;
      c.mask = mask;
      c.shape = {1, 1, 2, 2, 0.5};
      for (std::int64_t a : lengths) {
        c.micro_batches.push_back(dyncp_test::one_pack(ranks, {a}));
        for (std::int64_t b : lengths) {
          c.micro_batches.push_back(dyncp_test::one_pack(ranks, {a, b}));
        }
      }
      thread_runner<> runner(ranks);
      dyncp_test::check_ring(runner, c);
    }
  }
}
TEST_CASE("results repeat bit for bit, in every order of streams") {
  for_each_world([](auto& runner) { dyncp_test::check_repeatable(runner); });
}
TEST_CASE("a context filled again at once") {
  for_each_world([](auto& runner) { dyncp_test::check_context_reuse(runner); });
}
TEST_CASE("bfloat16 is as good on many ranks as on one") {
  for (std::int32_t ranks : {1, 2, 4, 8, 16}) {
    thread_runner<> runner(ranks);
    dyncp_test::check_bfloat16(runner);
  }
}
TEST_CASE("cross-attention") {
  for_each_world([](auto& runner) { dyncp_test::check_cross_attention(runner); });
}
TEST_CASE("what a ring refuses") {
  for_each_world([](auto& runner) { dyncp_test::check_ring_refusals(runner); });
}
TEST_CASE("ranks with different micro-batches") {
  for_each_world([](auto& runner) { dyncp_test::check_ring_disagreement(runner); });
}
TEST_CASE("bytes on the wire") {
  for_each_world([](auto& runner) { dyncp_test::check_ring_bytes(runner); });
}
