// SPDX-License-Identifier: Apache-2.0
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/chrome_trace.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/plan/inflight.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/sim/event_simulator.hpp>

#include "support/random.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

struct traced {
  dyncp::problem problem;
  dyncp::plan plan;
  dyncp::priced_plan priced;
  dyncp::timeline time;
  nlohmann::json json;
};

traced trace_of(std::int32_t pp, std::int32_t vpp, const char* cluster) {
  traced t;
  dyncp_test::random rng(11);
  std::vector<std::int64_t> lengths{60000, 30000};
  for (int i = 0; i < 150; ++i) lengths.push_back(rng.between(50, rng.one_in(10) ? 20000 : 2000));
  t.problem.sequences = *dyncp::make_batch(lengths);
  t.problem.model = *dyncp::find_model("reference-13b");
  t.problem.cluster = *dyncp::find_cluster(cluster);
  t.problem.parallel.ranks = 8;
  t.problem.parallel.pp = pp;
  t.problem.parallel.vpp = vpp;
  t.problem.limits.max_tokens_per_rank = 16384;
  const dyncp::analytic_cost cost(t.problem.model, t.problem.cluster, t.problem.parallel);
  auto packed = dyncp::dynamic_cp{}.pack(t.problem, cost);
  REQUIRE(packed);
  t.plan = *packed;
  t.priced = dyncp::price_plan(t.plan, t.problem, cost);
  t.time = dyncp::event_simulator{}.trace(t.priced, {pp, vpp});
  const auto text = dyncp::chrome_trace(t.plan, t.problem, t.priced, t.time);
  REQUIRE(text);
  t.json = nlohmann::json::parse(*text, nullptr, false);
  REQUIRE_FALSE(t.json.is_discarded());
  return t;
}

using track = std::pair<int, int>;  // stage, rank

void check_trace(const traced& t) {
  constexpr double us = 1e6;
  std::map<track, double> end;        // of the last slice
  std::map<track, double> busy;       // us
  std::map<track, double> last_count; // time of the last counter
  std::map<track, double> peak;
  std::map<track, double> held;
  double last_end = 0;
  for (const nlohmann::json& e : t.json["traceEvents"]) {
    const track at{e["pid"].get<int>(), e["tid"].get<int>()};
    const std::string phase = e["ph"];
    if (phase == "X") {
      const double ts = e["ts"].get<double>();
      const double dur = e["dur"].get<double>();
      CHECK(dur >= 0);
      // Slices nest: here none lies in another, so each begins after the one before it.
      CHECK(ts >= end[at] - 1e-5);
      end[at] = ts + dur;
      last_end = std::max(last_end, ts + dur);
      busy[at] += dur;
      CHECK(e["args"]["tokens"].get<std::int64_t>() > 0);
    } else if (phase == "C") {
      CHECK(e["ts"].get<double>() >= last_count[at]);
      last_count[at] = e["ts"].get<double>();
      held[at] = e["args"]["tokens"].get<double>();
      peak[at] = std::max(peak[at], held[at]);
    } else {
      CHECK(phase == "M");
    }
  }
  CHECK(std::abs(last_end - dyncp::to_seconds(t.time.makespan) * us) < 1e-5);

  // Busy time of each rank on each stage, from the simulator's prices.
  const dyncp::parallel_spec& par = t.problem.parallel;
  std::map<track, double> expected;
  for (std::int32_t vs = 0; vs < par.pp * par.vpp; ++vs) {
    const auto costs = t.priced.costs_of_class(t.priced.class_of_stage[static_cast<std::size_t>(vs)]);
    for (std::size_t g = 0; g < t.priced.num_groups(); ++g) {
      for (std::int32_t r = t.priced.ranks[g].begin; r < t.priced.ranks[g].end(); ++r) {
        expected[{vs % par.pp, r}] += dyncp::to_seconds(costs[g].total()) * us;
      }
    }
  }
  REQUIRE(busy.size() == expected.size());
  for (const auto& [at, sum] : expected) CHECK(std::abs(busy[at] - sum) < 1e-3);

  // Tokens in flight: all is freed at the end, and the peak is that of the window.
  const auto shards = dyncp::tokens_by_rank<double>(
      t.plan, t.problem.sequences,
      [](std::int64_t tokens, std::int32_t c) { return static_cast<double>(tokens) / c; });
  for (std::int32_t s = 0; s < par.pp; ++s) {
    const double window =
        dyncp::peak_inflight(shards, par.ranks, {par.pp, par.vpp}, s) / par.vpp;
    double most = 0;
    for (std::int32_t r = 0; r < par.ranks; ++r) {
      CHECK(held[{s, r}] == 0);
      most = std::max(most, peak[{s, r}]);
    }
    CHECK(std::abs(most - window) <= 1.0);
  }
}

}  // namespace

TEST_CASE("slices follow each other, busy sums and peaks are the simulator's") {
  check_trace(trace_of(4, 1, "reference-13b"));
  check_trace(trace_of(1, 1, "h100"));
  check_trace(trace_of(2, 2, "a100"));  // interleaved, with transfers between stages
}

TEST_CASE("tracks are named and sorted") {
  const traced t = trace_of(2, 1, "reference-13b");
  int processes = 0;
  int threads = 0;
  for (const nlohmann::json& e : t.json["traceEvents"]) {
    if (e["name"] == "process_name") {
      CHECK(e["args"]["name"] == "stage " + std::to_string(e["pid"].get<int>()));
      ++processes;
    }
    if (e["name"] == "thread_name") {
      CHECK(e["args"]["name"] == "rank " + std::to_string(e["tid"].get<int>()));
      ++threads;
    }
  }
  CHECK(processes == 2);
  CHECK(threads == 16);
}

TEST_CASE("a trace that no viewer opens is an error") {
  dyncp::problem prob;
  prob.parallel.pp = 1;
  dyncp::priced_plan priced;
  priced.num_ranks = 1 << 20;
  priced.first_group = {0, 1};
  priced.ranks = {{0, 1 << 20}};
  dyncp::timeline time;
  for (int i = 0; i < 4; ++i) time.slices.push_back({0, 0, 0, 0, false, i, i + 1});
  const auto trace = dyncp::chrome_trace({}, prob, priced, time);
  REQUIRE_FALSE(trace);
  CHECK(trace.error().code == dyncp::errc::overflow);
  CHECK(trace.error().value == 4 << 20);
}
