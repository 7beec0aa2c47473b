// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/fluid_bound.hpp>
#include <dyncp/sim/fluid_pipeline.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

// Slots of real length as a plan of one rank, in ticks of 1e-6.
dyncp::ticks simulated(const std::vector<double>& slots, dyncp::pipeline pipe, double forward) {
  dyncp::priced_plan p;
  p.num_ranks = 1;
  p.class_of_stage.assign(static_cast<std::size_t>(pipe.stages * pipe.chunks), 0);
  p.first_group.push_back(0);
  for (const double x : slots) {
    const double one = 1e6 * x / pipe.chunks;
    p.ranks.push_back({0, 1});
    p.costs.push_back({std::llround(one * forward), std::llround(one * (1 - forward)), 0});
    p.first_group.push_back(p.first_group.back() + 1);
  }
  return dyncp::event_simulator{}.makespan(p, pipe);
}

}  // namespace

TEST_CASE("least makespans that another solver found") {
  // The same linear programs (start times as variables) solved by HiGHS through scipy.
  struct row {
    std::int32_t stages;
    double backward;  // times forward
    std::int32_t slots;
    std::int32_t peak_slot;
    double total;
    double peak;
    double makespan;
  };
  for (const row& r : {row{8, 3, 16, 8, 3.2, 1, 8.573007}, {8, 3, 24, 8, 31.6, 1, 38.366103},
                       {8, 3, 40, 13, 31.6, 1, 35.342574}, {8, 2, 40, 20, 31.6, 1, 34.574641},
                       {4, 2, 12, 5, 6.0, 1, 7.281286}, {4, 3, 10, 0, 5.0, 1, 7.335106},
                       {2, 2, 5, 2, 3.0, 1, 3.428571}, {8, 3, 16, 0, 1.0, 0, 1.347407},
                       {4, 2, 9, 0, 1.0, 0, 1.234917}}) {
    CAPTURE(r.stages);
    CAPTURE(r.slots);
    dyncp::fluid_pipeline fluid({r.stages, 1}, r.slots);
    const auto found =
        fluid.least_makespan({r.total, 0, r.peak, r.peak_slot, 1 / (1 + r.backward)}, 1e-4);
    CHECK(found.bound <= r.makespan * (1 + 1e-6));
    CHECK(found.bound >= r.makespan * (1 - 1.1e-4));
    CHECK(found.attained >= r.makespan * (1 - 1e-6));
  }
}

TEST_CASE("what is attained is what the simulator gives, and the bound is below any division") {
  const std::uint64_t seed = dyncp_test::seed_or(5);
  for (std::int64_t round = 0; round < dyncp_test::count_or(120); ++round) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    dyncp::pipeline pipe{static_cast<std::int32_t>(rng.between(1, 6)),
                         static_cast<std::int32_t>(rng.between(1, 2))};
    const auto slots = static_cast<std::int32_t>(rng.between(1, 4)) * pipe.stages;
    dyncp::fluid_work work;
    work.total = 1;
    work.least = rng.one_in(2) ? 0 : 0.2 / slots;
    work.peak = 0.01 * static_cast<double>(rng.between(0, 40));
    work.peak_slot = static_cast<std::int32_t>(rng.between(0, slots - 1));
    work.forward_share = 1.0 / static_cast<double>(rng.between(2, 4));
    dyncp::fluid_pipeline fluid(pipe, slots);
    const dyncp::fluid_makespan found = fluid.least_makespan(work);
    const dyncp::ticks known = simulated(found.slots, pipe, work.forward_share);
    CHECK(static_cast<double>(known) == doctest::Approx(1e6 * found.attained).epsilon(1e-4));
    CHECK(found.bound <= found.attained * (1 + 1e-9));
    CHECK(found.attained <= found.bound * (1 + 1.1e-3));

    // Any other division of the same work, within its minima, takes at least the bound.
    std::vector<double> other;
    double sum = 0;
    for (std::int32_t j = 0; j < slots; ++j) {
      other.push_back(static_cast<double>(rng.between(0, 1000)));
      sum += other.back();
    }
    const double peak = std::max(work.peak, work.least);
    const double rest = work.total - work.least * (slots - 1) - peak;
    if (rest < 0 || sum == 0) continue;
    for (std::int32_t j = 0; j < slots; ++j) {
      double& x = other[static_cast<std::size_t>(j)];
      x = rest * x / sum + (j == work.peak_slot ? peak : work.least);
    }
    CHECK(static_cast<double>(simulated(other, pipe, work.forward_share)) >=
          1e6 * found.bound * (1 - 1e-6) - 2.0 * static_cast<double>(slots * pipe.stages));
  }
}

TEST_CASE("one stage has no bubble, one slot passes all stages") {
  dyncp::fluid_pipeline single({1, 1}, 7);
  CHECK(single.least_makespan({3, 0, 2, 4, 0.25}).bound == doctest::Approx(3));
  dyncp::fluid_pipeline alone({8, 1}, 1);
  CHECK(alone.least_makespan({3, 0, 1, 0, 0.25}).bound == doctest::Approx(24));
  // Minima above the total are what is run.
  CHECK(single.least_makespan({1, 0.5, 2, 0, 0.25}).bound == doctest::Approx(5));
  CHECK(single.least_makespan({0, 0, 0, 0, 0.25}).bound == 0);
}

TEST_CASE("the fluid bound of the recorded github cells is what the first study found") {
  // Batch of 2,048 lengths, 16,384 tokens a rank, pp 8: LP floors 33.40, 9.16 and 7.592 s, the last
  // being the path of the longest sequence.
  const auto list = dyncp::read_length_file(DYNCP_DATA_DIR "/github.len");
  REQUIRE(list);
  dyncp::length_selection wanted;
  wanted.min_length = 16;
  wanted.max_length = 131072;
  wanted.count = 2048;
  const auto batch = dyncp::select_batch(*list, wanted);
  REQUIRE(batch);
  dyncp::problem p = dyncp_test::reference_problem({1}, 8, 8, 16384);
  p.sequences = batch->sequences;
  for (const auto& [ranks, seconds] : {std::pair{8, 33.40}, {64, 7.592}}) {
    p.parallel.ranks = ranks;
    const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
    const dyncp::fluid_bound bound = dyncp::fluid_makespan_bound(p, cost);
    CHECK(bound.makespan_s == doctest::Approx(seconds).epsilon(2e-3));
    CHECK(bound.cp_size == 8);
    CHECK(bound.longest_s == doctest::Approx(0.949).epsilon(1e-3));
    CHECK(bound.makespan_s >=
          dyncp::to_seconds(dyncp::lower_bounds(p, cost).binding().value) * (1 - 1e-9));
  }
}

TEST_CASE("a limit that forces many micro-batches leaves a bound") {
  // 1000 sequences of 10 tokens, 20 tokens a micro-batch: 250 of them at least. Interleaving takes
  // multiples of five, and the largest M that is looked at, 192, is none.
  dyncp::problem p = dyncp_test::reference_problem(std::vector<std::int64_t>(1000, 10), 2, 5, 20);
  p.parallel.vpp = 2;
  p.parallel.cp_sizes = {2};
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const dyncp::fluid_bound bound = dyncp::fluid_makespan_bound(p, cost);
  // A rank runs 195 micro-batches, each with at least the fixed 3 ms on both chunks.
  CHECK(bound.micro_batches == 195);
  CHECK(bound.makespan_s > 195 * 2 * 0.003);
  CHECK(bound.makespan_s < 2 * 195 * 2 * 0.003);
}
