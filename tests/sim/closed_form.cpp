// SPDX-License-Identifier: Apache-2.0
#include "brute_scheduler.hpp"
#include "random_priced.hpp"

#include <dyncp/cost/quota.hpp>
#include <dyncp/sim/closed_form.hpp>
#include <dyncp/sim/event_simulator.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>

using dyncp::closed_form;
using dyncp::event_simulator;
using dyncp::op_cost;
using dyncp::pipeline;
using dyncp::ticks;
using dyncp_test::equal_costs;

TEST_CASE("equal costs: equation 1, W*(M*V + p - 1), to the tick") {
  const op_cost costs[] = {{1, 1, 0}, {100, 200, 0}, {7, 24, 0}, {1000, 1, 0}, {0, 5, 0}};
  for (std::int32_t p = 1; p <= 6; ++p) {
    for (std::int32_t v = 1; v <= 4; ++v) {
      for (std::int32_t m = 1; m <= 24; ++m) {
        if (v > 1 && m % p != 0) continue;
        for (const op_cost& cost : costs) {
          CAPTURE(p);
          CAPTURE(v);
          CAPTURE(m);
          const pipeline pipe{p, v};
          const auto plan = equal_costs(2, m, pipe, cost);
          const ticks expected = cost.total() * (m * v + p - 1);
          CHECK(event_simulator{}.makespan(plan, pipe) == expected);
          CHECK(closed_form{}.makespan(plan, pipe) == expected);
          if (p <= 3 && m <= 6) CHECK(dyncp_test::brute_scheduler(plan, pipe).run() == expected);
        }
      }
    }
  }
}

TEST_CASE("equal costs of seconds: equation 1 to 1e-9") {
  for (const pipeline pipe : {pipeline{8, 1}, pipeline{8, 2}, pipeline{4, 5}}) {
    const double forward_s = 0.0123456789;
    const double backward_s = 0.0345678912;
    const auto plan =
        equal_costs(4, 16, pipe, {dyncp::to_ticks(forward_s), dyncp::to_ticks(backward_s), 0});
    const double expected = (forward_s + backward_s) * (16 * pipe.chunks + pipe.stages - 1);
    for (const ticks t :
         {event_simulator{}.makespan(plan, pipe), closed_form{}.makespan(plan, pipe)}) {
      CHECK(std::fabs(dyncp::to_seconds(t) / expected - 1.0) < 1e-9);
    }
  }
}

TEST_CASE("the quotas of unequal counts make all ranks end together in the simulator") {
  // Ranks of 4, 8 and 12 micro-batches on 4 stages; rank i costs what equation 2 gives it.
  const std::vector<std::int32_t> m = {4, 8, 12};
  for (const std::int32_t v : {1, 2}) {
    const pipeline pipe{4, v};
    const auto q = dyncp::quota(m, v, 4, 6e9);
    REQUIRE(q);
    ticks first = 0;
    for (std::size_t i = 0; i < m.size(); ++i) {
      const auto w = static_cast<ticks>(q->per_micro_batch[i]);
      const auto alone = equal_costs(1, m[i], pipe, {w / 4, w - w / 4, 0});
      const ticks t = event_simulator{}.makespan(alone, pipe);
      CHECK(std::fabs(static_cast<double>(t) / q->time - 1.0) < 1e-6);
      if (i == 0) first = t;
      CHECK(std::llabs(t - first) < 1000);
    }
  }
}

TEST_CASE("a rank that idles at the end runs fewer micro-batches") {
  // Rank 0 has 3 packs of 4 ticks, rank 1 two of 7; 3 stages: 4*(3+2) = 20 and 7*(2+2) = 28.
  dyncp::priced_plan p;
  p.num_ranks = 2;
  p.class_of_stage = {0, 0, 0};
  p.first_group = {0, 2, 4, 5};
  p.ranks = {{0, 1}, {1, 1}, {0, 1}, {1, 1}, {0, 1}};
  p.costs = {{1, 3, 0}, {2, 5, 0}, {1, 3, 0}, {2, 5, 0}, {1, 3, 0}};
  CHECK(closed_form{}.makespan(p, {3, 1}) == 28);
  CHECK(event_simulator{}.makespan(p, {3, 1}) == 28);
}

TEST_CASE("unequal costs: the mean pack is taken for all, rounded up") {
  // 3 + 8 = 11 ticks in two packs, 4 stages: 11 + 3 * 5.5 = 27.5.
  dyncp::priced_plan p;
  p.num_ranks = 1;
  p.class_of_stage = {0, 1, 1, 0};
  p.stage_classes = 2;
  p.first_group = {0, 1, 2};
  p.ranks = {{0, 1}, {0, 1}};
  p.costs = {{1, 1, 0}, {2, 6, 9}, {1, 2, 0}, {2, 2, 0}};  // class 0, then class 1
  CHECK(closed_form{}.makespan(p, {4, 1}) == 28);
}

TEST_CASE("nothing takes no time, and sums saturate") {
  dyncp::priced_plan none;
  none.num_ranks = 2;
  none.class_of_stage = {0};
  none.first_group = {0, 0};
  CHECK(closed_form{}.makespan(none, {1, 1}) == 0);
  const ticks most = ticks{1} << 60;
  const auto huge = equal_costs(1, 64, {8, 1}, {most, most, 0});
  CHECK(closed_form{}.makespan(huge, {8, 1}) == std::numeric_limits<ticks>::max());
}
