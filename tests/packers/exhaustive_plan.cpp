// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/plan/validate.hpp>

#include <doctest/doctest.h>

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

// 20,000 tens and five more that only one division brings onto two ranks, in one micro-batch: no
// construction finds it, and a search that recurs for each sequence runs out of stack.
void* plan_on_small_stack(void*) {
  std::vector<std::int64_t> lengths(20000, 10);
  for (const std::int64_t n : {3, 3, 2, 2, 2}) lengths.push_back(n);
  dyncp::problem p = dyncp_test::reference_problem(lengths, 2, 1, 100006);
  p.limits.micro_batches = 1;
  p.parallel.max_cp = 1;
  const auto made =
      dyncp::dynamic_cp{}.pack(p, dyncp::analytic_cost(p.model, p.cluster, p.parallel));
  if (made) {
    CHECK(dyncp::validate(*made, p).empty());
  } else {
    CHECK(made.error().code == dyncp::errc::not_found);
  }
  return nullptr;
}

}  // namespace

TEST_CASE("as many sequences as there are steps need no deep stack") {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, std::size_t{512} << 10) == 0);
  pthread_t thread{};
  REQUIRE(pthread_create(&thread, &attributes, plan_on_small_stack, nullptr) == 0);
  CHECK(pthread_join(thread, nullptr) == 0);
  pthread_attr_destroy(&attributes);
}
