// SPDX-License-Identifier: Apache-2.0
// Virtual times of the example's trainer against the simulator, and planning ahead of a large job.
#include "megatron_style/demos.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace megatron_style;

TEST_CASE("the order of the schedulers in virtual time is the simulator's") {
  demo_options demo;
  demo.world = {8, 2, 1, 1};
  demo.static_cp = 8;
  demo.steps = 3;
  demo.batch = 96;
  const std::vector<race_entry> entries = race(demo, 2);
  REQUIRE(entries.size() == 3);
  for (const race_entry& e : entries) {
    MESSAGE(std::string(name_of(e.who)), ": simulated ", 1e3 * e.best.plan.makespan_s,
            " ms, virtual ", 1e3 * e.best.report.makespan_s, " ms");
  }
  CHECK(entries[0].best.plan.makespan_s > 1.05 * entries[1].best.plan.makespan_s);
  CHECK(entries[1].best.plan.makespan_s > 1.05 * entries[2].best.plan.makespan_s);
  CHECK(same_order(entries, 0.05));
}

TEST_CASE("a batch of 2048 sequences is planned while the one before it trains") {
  const planning_report r = plan_ahead(8);
  MESSAGE("plan ", 1e3 * r.planning_s, " ms, iteration ", r.iteration_s, " s, first wait ",
          1e3 * r.first_wait_s, " ms, steady wait ", 1e3 * r.steady_wait_s, " ms");
  CHECK(r.sequences == 2048);
  CHECK(r.planning_s < 0.5 * r.iteration_s);
  // Iterations are cut short here, so a starved processor may let the trainer wait now and then.
  CHECK(2 * r.waits < 7);
}

TEST_CASE("a plan that is begun when it is needed is waited for") {
  const planning_report r = plan_ahead(8, 0);
  MESSAGE("plan ", 1e3 * r.planning_s, " ms, steady wait ", 1e3 * r.steady_wait_s, " ms");
  // What the check above would find if nothing were planned ahead.
  CHECK(2 * r.waits > 7);
}
