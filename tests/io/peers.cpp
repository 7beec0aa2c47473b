// SPDX-License-Identifier: Apache-2.0
// packing_only against the rows of tests/golden/peers.json that a published `dp_balanced` scheduler
// made of the first 2048 lengths of examples/data/github.len.
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/files.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/presets.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace {

void check_close(double value, double judged) {
  CAPTURE(value);
  CAPTURE(judged);
  CHECK(std::abs(value - judged) <= 1e-6 * std::abs(judged));
}

}  // namespace

TEST_CASE("packing_only is the published baseline") {
  const auto list = dyncp::read_length_file(DYNCP_DATA_DIR "/github.len");
  REQUIRE(list);
  dyncp::length_selection wanted;
  wanted.min_length = 16;
  wanted.max_length = 131072;
  wanted.count = 2048;
  const auto batch = dyncp::select_batch(*list, wanted);
  REQUIRE(batch);

  const auto text = dyncp::read_file(DYNCP_GOLDEN_DIR "/peers.json");
  REQUIRE(text);
  const nlohmann::json peers = nlohmann::json::parse(*text);
  int rows = 0;
  for (const nlohmann::json& record : peers["records"]) {
    if (record["trace"] != "github" || record["scheduler"] != "dp_balanced") continue;
    ++rows;
    CAPTURE(record["ranks"].get<int>());
    dyncp::problem p;
    p.sequences = batch->sequences;
    p.model = *dyncp::find_model("reference-13b");
    p.cluster = *dyncp::find_cluster("reference-13b");
    p.parallel.ranks = record["ranks"].get<std::int32_t>();
    p.parallel.pp = 8;
    p.parallel.static_cp = record["cp_static"].get<std::int32_t>();
    p.limits.max_tokens_per_rank = record["limit"].get<std::int64_t>();
    const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
    const auto made = dyncp::planner(cost, dyncp::packing_only{}).plan(p);
    REQUIRE(made);
    const nlohmann::json& judged = record["pp8_fix"];
    CHECK(made->statistics.micro_batches == judged["micro_batches"].get<std::int32_t>());
    check_close(made->statistics.iteration_s, judged["iteration_s"].get<double>());
    check_close(made->statistics.efficiency, judged["efficiency"].get<double>());
  }
  CHECK(rows == 3);
}
