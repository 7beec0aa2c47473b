// SPDX-License-Identifier: Apache-2.0
// dynamic_cp against every valid plan of a published scheduler for the first 2048 lengths of
// examples/data/github.len (tests/golden/peers.json, field pp8_fix).
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/files.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/presets.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>

TEST_CASE("dynamic_cp beats every valid published plan of the github batch") {
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
  std::map<std::int32_t, double> iteration;  // by ranks
  int rows = 0;
  for (const nlohmann::json& record : peers["records"]) {
    if (record["trace"] != "github" || !record["pp8_fix"]["valid"].get<bool>()) continue;
    ++rows;
    const auto ranks = record["ranks"].get<std::int32_t>();
    if (!iteration.contains(ranks)) {
      dyncp::problem p;
      p.sequences = batch->sequences;
      p.model = *dyncp::find_model("reference-13b");
      p.cluster = *dyncp::find_cluster("reference-13b");
      p.parallel.ranks = ranks;
      p.parallel.pp = 8;
      p.limits.max_tokens_per_rank = 16384;
      const auto made =
          dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)}.plan(p);
      REQUIRE(made);
      iteration[ranks] = made->statistics.iteration_s;
      CHECK(made->statistics.makespan_s >=
            dyncp::to_seconds(made->certificate.binding().value));
    }
    CAPTURE(ranks);
    CAPTURE(record["scheduler"].get<std::string>());
    CHECK(iteration[ranks] < record["pp8_fix"]["iteration_s"].get<double>());
  }
  CHECK(rows == 9);
}
