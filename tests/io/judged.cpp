// SPDX-License-Identifier: Apache-2.0
// Every plan under tests/golden/judged gets the verdict and the times of the evaluator that was
// written independently of this library.
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/json.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace {

void check_equal(double value, double judged) {
  CAPTURE(value);
  CAPTURE(judged);
  CHECK(std::abs(value - judged) <= 1e-9 * std::abs(judged));
}

dyncp::problem problem_of(const dyncp::plan_document& d, const nlohmann::json& changed) {
  dyncp::problem p;
  p.model = *dyncp::find_model("reference-13b");
  p.cluster = *dyncp::find_cluster("reference-13b");
  p.parallel.ranks = d.plan.num_ranks;
  p.parallel.pp = 8;
  p.limits.max_tokens_per_rank = d.plan.max_tokens_per_rank;
  p.padding = d.plan.padding;
  p.sequences = *dyncp::make_batch(d.seqlens);
  for (const auto& [key, value] : changed.items()) {
    if (key == "pp") {
      p.parallel.pp = value.get<std::int32_t>();
    } else if (key == "gpus_per_node") {
      p.cluster.gpus_per_node = value.get<std::int32_t>();
    } else if (key == "beta_intra") {
      p.cluster.nvlink_bytes_per_s = value.get<double>();
    } else {
      FAIL("unknown parameter of the evaluator: " << key);
    }
  }
  return p;
}

void check_times(const dyncp::plan& plan, const dyncp::problem& p, const nlohmann::json& judged) {
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const std::int32_t per_node = dyncp::ranks_per_node(p.cluster.gpus_per_node, p.parallel);
  REQUIRE(plan.micro_batches.size() == judged["forward_s"].size());
  for (std::size_t j = 0; j < plan.micro_batches.size(); ++j) {
    const auto& packs = plan.micro_batches[j].packs;
    REQUIRE(packs.size() == judged["forward_s"][j].size());
    for (std::size_t g = 0; g < packs.size(); ++g) {
      const dyncp::load l = dyncp::pack_load(packs[g], p.sequences, plan.padding);
      const dyncp::link k = dyncp::link_of(packs[g].ranks, per_node);
      const dyncp::op_cost ticks = cost.cost(l, packs[g].ranks.size, k, 0);
      check_equal(dyncp::to_seconds(ticks.forward), judged["forward_s"][j][g].get<double>());
      check_equal(dyncp::to_seconds(ticks.backward), judged["backward_s"][j][g].get<double>());
    }
  }
  const dyncp::priced_plan priced = dyncp::price_plan(plan, p, cost);
  const dyncp::pipeline pipe{p.parallel.pp, p.parallel.vpp};
  const dyncp::plan_statistics s = dyncp::statistics_of(
      plan, p, cost, priced, dyncp::event_simulator{}.makespan(priced, pipe));
  check_equal(s.makespan_s, judged["makespan_s"].get<double>());
  check_equal(s.all_reduce_s, judged["all_reduce_s"].get<double>());
  check_equal(s.iteration_s, judged["iteration_s"].get<double>());
  check_equal(s.ideal_s, judged["ideal_s"].get<double>());
  check_equal(s.peak_tokens_per_rank, judged["peak_tokens_per_rank"].get<double>());
  check_equal(s.inflight_peak_tokens, judged["inflight_peak_tokens"].get<double>());
}

}  // namespace

TEST_CASE("the judged plans are reproduced") {
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(DYNCP_GOLDEN_DIR "/judged")) {
    files.insert(entry.path());
  }
  REQUIRE(files.size() >= 21);
  for (const std::filesystem::path& path : files) {
    CAPTURE(path.filename().string());
    const auto text = dyncp::read_file(path.string());
    REQUIRE(text);
    const nlohmann::json file = nlohmann::json::parse(*text);
    const auto document = dyncp::parse_plan(file["plan"].dump(), path.filename().string());
    REQUIRE(document);
    const dyncp::problem p = problem_of(*document, file["changed"]);
    const nlohmann::json& judged = file["judged"];

    std::map<std::string, int> kinds;
    for (const dyncp::violation& v : dyncp::validate(document->plan, p)) {
      ++kinds[std::string(to_string(v.kind))];
    }
    CHECK(kinds == judged["errors"].get<std::map<std::string, int>>());
    CHECK(kinds.empty() == judged["valid"].get<bool>());
    if (judged.contains("makespan_s")) check_times(document->plan, p, judged);
  }
}
