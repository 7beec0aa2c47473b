// SPDX-License-Identifier: Apache-2.0
// The example's trainer: equal to one dense rank on every partition, under every scheduler.
#include "megatron_style/demos.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

using namespace megatron_style;

namespace {

struct parity_case {
  const char* name;
  world_shape world;
  std::int32_t static_cp;
};

template <class T>
void check_parity(const parity_case& c, std::int32_t steps, bool single) {
  demo_options demo;
  demo.world = c.world;
  demo.static_cp = c.static_cp;
  demo.steps = steps;
  demo.batch = 12;
  run_options options = make_run(demo, 40 * c.static_cp, 48);
  const reference<T> dense = make_reference<T>(options);
  for (const scheduler who :
       {scheduler::packing_only, scheduler::static_cp, scheduler::dynamic_cp}) {
    options.plan_by = who;
    const run_result run = run_threads<T>(options, &dense);
    INFO(std::string(c.name), ", ", std::string(name_of(who)));
    REQUIRE(run.failures == std::vector<std::string>{});
    REQUIRE(run.steps.size() == static_cast<std::size_t>(steps));
    const deviation worst = run.worst();
    CHECK(worst.loss <= parity_bound(single));
    CHECK(worst.gradient <= parity_bound(single));
    std::set<std::int32_t> counts;
    std::set<std::int32_t> sizes;
    for (const step_result& s : run.steps) {
      counts.insert(s.plan.micro_batches);
      for (const dyncp::cp_usage& u : s.plan.cp_mix) sizes.insert(u.cp);
      CHECK(s.report.makespan_s > 0);
      CHECK(s.report.busy_share > 0);
      CHECK(s.report.busy_share <= 1.0 + 1e-9);
    }
    // Steps differ in their micro-batches, and with Dynamic-CP in their groups.
    if (who == scheduler::dynamic_cp) CHECK(counts.size() > 1);
    if (who == scheduler::dynamic_cp && c.world.domain > 1) CHECK(sizes.size() > 1);
    if (who != scheduler::dynamic_cp) CHECK(sizes == std::set<std::int32_t>{c.static_cp});
  }
}

}  // namespace

TEST_CASE("20 steps in double are those of one dense rank") {
  for (const parity_case& c : {
           parity_case{"DP x CP, 1F1B", {4, 2, 1, 1}, 4},
           parity_case{"DP x CP, interleaved", {4, 2, 2, 1}, 2},
           parity_case{"DP x CP x TP", {2, 1, 1, 2}, 2},
           parity_case{"everything", {2, 2, 2, 2}, 2},
           parity_case{"deep pipeline", {1, 4, 1, 1}, 1},
       }) {
    check_parity<double>(c, 20, false);
  }
}

TEST_CASE("20 steps in float stay within the stated bound") {
  check_parity<float>({"float", {4, 2, 1, 1}, 4}, 20, true);
}

TEST_CASE("a sample that no plan can hold ends the step with the same error on all ranks") {
  demo_options demo;
  demo.world = {2, 2, 1, 2};
  demo.static_cp = 1;
  demo.steps = 1;
  demo.batch = 4;
  run_options options = make_run(demo, 40, 48);
  options.samples[2].length = 1000;
  const run_result run = run_threads<double>(options, nullptr);
  CHECK(run.failures.size() == 8);
  for (const std::string& f : run.failures) {
    CHECK_MESSAGE(f.find("sequence 2 has 1000 tokens") != std::string::npos, f);
  }
}
