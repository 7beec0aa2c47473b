// SPDX-License-Identifier: Apache-2.0
// The baselines against the rows of tests/golden/peers.json that published schedulers made of the
// first 2048 lengths of examples/data/github.len: micro-batches exactly, iteration time, validity.
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/files.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/packers/default_dynamic_cp.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/packers/static_balanced.hpp>
#include <dyncp/packers/three_stage.hpp>
#include <dyncp/packers/three_stage_2959.hpp>
#include <dyncp/packers/verl.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace {

dyncp::problem github_batch() {
  const auto list = dyncp::read_length_file(DYNCP_DATA_DIR "/github.len");
  REQUIRE(list);
  dyncp::length_selection wanted;
  wanted.min_length = 16;
  wanted.max_length = 131072;
  wanted.count = 2048;
  const auto batch = dyncp::select_batch(*list, wanted);
  REQUIRE(batch);
  dyncp::problem p;
  p.sequences = batch->sequences;
  p.model = *dyncp::find_model("reference-13b");
  p.cluster = *dyncp::find_cluster("reference-13b");
  p.parallel.pp = 8;
  p.parallel.static_cp = 8;
  return p;
}

// Without validation: some of the originals' plans exceed the limit, and time is compared all the
// same.
double iteration_s(const dyncp::plan& made, dyncp::problem p, double fixed_s, double nvlink) {
  p.cluster.fixed_s = fixed_s;
  p.cluster.nvlink_bytes_per_s = nvlink;
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const dyncp::priced_plan priced = dyncp::price_plan(made, p, cost);
  return dyncp::to_seconds(dyncp::event_simulator{}.makespan(priced, {p.parallel.pp, 1})) +
         dyncp::all_reduce_s(p.model, p.cluster, p.parallel);
}

template <class Packer>
void reproduces(const char* scheduler) {
  dyncp::problem p = github_batch();
  const auto text = dyncp::read_file(DYNCP_GOLDEN_DIR "/peers.json");
  REQUIRE(text);
  const nlohmann::json peers = nlohmann::json::parse(*text);
  int rows = 0;
  for (const nlohmann::json& record : peers["records"]) {
    if (record["trace"] != "github" || record["scheduler"] != scheduler) continue;
    ++rows;
    p.parallel.ranks = record["ranks"].get<std::int32_t>();
    p.limits.max_tokens_per_rank = record["limit"].get<std::int64_t>();
    // #2959 was run with groups of at most 8 ranks.
    p.parallel.max_cp = std::string(scheduler) == "three_stage_2959" ? 8 : 0;
    CAPTURE(scheduler);
    CAPTURE(p.parallel.ranks);
    const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
    const auto made = Packer{}.pack(p, cost);
    REQUIRE(made);
    CHECK(made->num_micro_batches() == record["pp8_fix"]["micro_batches"].get<std::int32_t>());
    CHECK(dyncp::validate(*made, p).empty() == record["pp8_fix"]["valid"].get<bool>());
    const auto close = [&](const char* key, double fixed_s, double nvlink) {
      CAPTURE(key);
      const double judged = record[key]["iteration_s"].get<double>();
      CHECK(std::abs(iteration_s(*made, p, fixed_s, nvlink) / judged - 1.0) < 1e-6);
    };
    close("pp8_fix", 1e-3, 450e9);
    close("pp8", 0.0, 450e9);
    close("pp8_150", 0.0, 150e9);
    close("pp8_150_fix", 1e-3, 150e9);
  }
  CHECK(rows == 3);
}

template <class Packer>
double fixed_iteration_s(const dyncp::problem& p) {
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const auto made = Packer{}.pack(p, cost);
  REQUIRE(made);
  REQUIRE(dyncp::validate(*made, p).empty());
  return iteration_s(*made, p, p.cluster.fixed_s, p.cluster.nvlink_bytes_per_s);
}

}  // namespace

TEST_CASE("packing_only makes the recorded plans of dp_balanced") {
  reproduces<dyncp::packing_only>("dp_balanced");
}

TEST_CASE("default_dynamic_cp makes the recorded plans") {
  reproduces<dyncp::default_dynamic_cp>("default_dynamic_cp");
}

TEST_CASE("verl makes the recorded plans, over the limit as they are") {
  reproduces<dyncp::verl>("verl");
}

TEST_CASE("three_stage_2959 makes the recorded plans, its choice of M included") {
  reproduces<dyncp::three_stage_2959>("three_stage_2959");
}

TEST_CASE("static_balanced and three_stage are no straw men") {
  dyncp::problem p = github_batch();
  p.limits.max_tokens_per_rank = 16384;
  for (const std::int32_t ranks : {8, 32, 64}) {
    CAPTURE(ranks);
    p.parallel.ranks = ranks;
    const double packed = fixed_iteration_s<dyncp::packing_only>(p);
    CHECK(fixed_iteration_s<dyncp::static_balanced>(p) < packed);
    CHECK(fixed_iteration_s<dyncp::three_stage>(p) <
          fixed_iteration_s<dyncp::default_dynamic_cp>(p));
  }
}
