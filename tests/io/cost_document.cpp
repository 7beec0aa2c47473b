// SPDX-License-Identifier: Apache-2.0
// Cost models and records as JSON: they read back equal; what is wrong is named by its place.
#include <dyncp/cost/cost_fitter.hpp>
#include <dyncp/cost/fitted_cost.hpp>
#include <dyncp/io/cost_document.hpp>
#include <dyncp/io/json.hpp>
#include <dyncp/problem/presets.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using dyncp::errc;

namespace {

dyncp::fitted_cost some_cost() {
  const auto model = *dyncp::find_model("qwen3-8b");
  const auto cluster = *dyncp::find_cluster("h200");
  dyncp::parallel_spec parallel;
  parallel.ranks = 8;
  parallel.pp = 3;
  return *dyncp::fitted_cost::make({dyncp::coefficients_of(model, cluster, parallel),
                                    dyncp::coefficients_of(model, cluster, parallel, true)},
                                   3, 2e-5, 1.0 / 3e10);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a cost model reads back equal, bit for bit") {
  const auto cost = some_cost();
  const std::string text = dyncp::to_json(cost);
  const auto back = dyncp::parse_fitted_cost(text, "cost.json");
  REQUIRE(back);
  CHECK(*back == cost);
  CHECK(back->digest_words() == cost.digest_words());
  CHECK(dyncp::to_json(*back) == text);
}

TEST_CASE("records read back equal") {
  const std::vector<dyncp::cost_record> records = {
      {4096, 16777216, 1, dyncp::link::nvlink, 0.0008},
      {16777217, 281474976710657, 16, dyncp::link::network, 1.0 / 3}};
  const std::string text = dyncp::to_json(records);
  const auto back = dyncp::parse_cost_records(text, "records.json");
  REQUIRE(back);
  CHECK(*back == records);
}

TEST_CASE("what is wrong is named by its place") {
  const std::string cost = dyncp::to_json(some_cost());
  const std::string records =
      dyncp::to_json(std::vector<dyncp::cost_record>{{4, 16, 2, dyncp::link::network, 0.5}});
  struct wrong {
    std::string text;
    errc code;
    std::string place;
  };
  for (const wrong& w : {
           wrong{replaced(cost, "dyncp-cost-1", "other"), errc::parse_error, "format"},
           wrong{replaced(cost, "\"per_square_s\"", "\"per_squares\""), errc::parse_error,
                 "classes[0].forward"},
           wrong{replaced(cost, "\"overlap\":1", "\"overlap\":\"1\""), errc::parse_error,
                 "classes[0].forward.overlap"},
           wrong{replaced(cost, "\"overlap\":1", "\"overlap\":1.5"), errc::invalid_argument,
                 "the document"},
           wrong{replaced(cost, "\"virtual_stages\": 3", "\"virtual_stages\": 0"),
                 errc::invalid_argument, "virtual_stages"},
           wrong{replaced(cost, "\"hop_s\":[", "\"hop_s\":[1,"), errc::parse_error,
                 "classes[0].forward.hop_s"},
           wrong{"{}", errc::parse_error, "format"}, wrong{"", errc::parse_error, "line 1"}}) {
    const auto got = dyncp::parse_fitted_cost(w.text, "cost.json");
    REQUIRE(!got);
    INFO(got.error().message());
    CHECK(got.error().code == w.code);
    CHECK(got.error().what.find("cost.json") == 0);
    CHECK(got.error().what.find(w.place) != std::string::npos);
  }
  for (const wrong& w :
       {wrong{replaced(records, "\"link\":\"network\"", "\"link\":\"rope\""), errc::unknown_name,
              "records[0].link"},
        wrong{replaced(records, "\"c\":2", "\"c\":0"), errc::invalid_argument, "records[0].c"},
        wrong{replaced(records, "\"seconds\":0.5", "\"seconds\":null"), errc::parse_error,
              "records[0].seconds"},
        wrong{replaced(records, "\"tokens\":4", "\"tokens\":4.5"), errc::parse_error,
              "records[0].tokens"},
        wrong{replaced(records, "\"records\"", "\"rows\""), errc::parse_error, "records"}}) {
    const auto got = dyncp::parse_cost_records(w.text, "r.json");
    REQUIRE(!got);
    INFO(got.error().message());
    CHECK(got.error().code == w.code);
    CHECK(got.error().what.find(w.place) != std::string::npos);
  }
}
