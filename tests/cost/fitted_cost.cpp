// SPDX-License-Identifier: Apache-2.0
// Fitting cost models: published tables, coefficients found again, outliers, forgetting; and a
// fitted model as the cost of a planner.
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/cost/cost_fitter.hpp>
#include <dyncp/cost/fitted_cost.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using dyncp::cost_coefficients;
using dyncp::cost_record;
using dyncp::errc;
using dyncp::fit_cost;


namespace {

/// The coefficients of one layer-stage of the reference, forward.
cost_coefficients reference(bool backward = false) {
  auto model = *dyncp::find_model("reference-13b");
  auto cluster = *dyncp::find_cluster("h100");
  cluster.ring_overlap = 0.7;
  dyncp::parallel_spec parallel;
  parallel.ranks = 16;
  parallel.pp = 8;
  const auto both = dyncp::coefficients_of(model, cluster, parallel);
  return backward ? both.backward : both.forward;
}

double seconds_of(const cost_coefficients& k, const cost_record& r) {
  return dyncp::parts_of(k, {r.tokens, r.squares, 1}, r.c, r.over).total_s();
}

/// Packs of a few sequences of any length on groups of any size, timed by `truth` with noise.
std::vector<cost_record> measured(const cost_coefficients& truth, std::int64_t count, double noise,
                                  dyncp_test::random& rng, std::int32_t max_c = 16) {
  std::vector<cost_record> records;
  for (std::int64_t i = 0; i < count; ++i) {
    cost_record r;
    r.c = 1;
    while (r.c < max_c && rng.one_in(2)) r.c *= 2;
    r.over = rng.one_in(2) ? dyncp::link::network : dyncp::link::nvlink;
    for (std::int64_t s = rng.between(1, 12); s > 0; --s) {
      const std::int64_t length = std::int64_t{1} << rng.between(7, 15);
      const std::int64_t padded = length + 32 * rng.between(0, length / 32);
      r.tokens += padded;
      r.squares += padded * padded;
    }
    r.seconds = seconds_of(truth, r) * (1.0 + noise * (2.0 * rng.unit() - 1.0));
    records.push_back(r);
  }
  return records;
}

double mean_error(const cost_coefficients& k, const cost_coefficients& truth,
                  const std::vector<cost_record>& records) {
  double sum = 0;
  for (const cost_record& r : records) {
    sum += std::abs(seconds_of(k, r) / seconds_of(truth, r) - 1.0);
  }
  return sum / static_cast<double>(records.size());
}

double worst_error(const cost_coefficients& k, const cost_coefficients& truth,
                   const std::vector<cost_record>& records) {
  double worst = 0;
  for (const cost_record& r : records) {
    worst = std::max(worst, std::abs(seconds_of(k, r) / seconds_of(truth, r) - 1.0));
  }
  return worst;
}

}  // namespace

TEST_CASE("published tables: mean leave-one-out error at most 5 percent") {
  std::ifstream file(DYNCP_GOLDEN_DIR "/cost_tables.json");
  const nlohmann::json document = nlohmann::json::parse(file);
  int fitted = 0;
  for (const auto& table : document.at("tables")) {
    const std::string name = table.at("name");
    CHECK(!table.at("source").get<std::string>().empty());
    if (!table.at("fit").get<bool>()) {
      CHECK(!table.at("why").get<std::string>().empty());
      MESSAGE(name << ": not fitted, " << table.at("why").get<std::string>());
      continue;
    }
    std::vector<cost_record> records;
    for (std::size_t i = 0; i < table.at("tokens").size(); ++i) {
      const auto tokens = table.at("tokens")[i].get<std::int64_t>();
      records.push_back({tokens, tokens * tokens, 1, dyncp::link::nvlink,
                         table.at("ms")[i].get<double>() * 1e-3});
    }
    const auto fit = fit_cost(records, {});
    REQUIRE(fit);
    MESSAGE(name << ": mean leave-one-out error " << 100 * fit->quality.leave_one_out_mean
                 << " %, largest " << 100 * fit->quality.leave_one_out_max << " %, of the fit "
                 << 100 * fit->quality.mean_error << " %");
    CHECK(fit->quality.leave_one_out_mean <= 0.05);
    CHECK(fit->quality.mean_error <= fit->quality.leave_one_out_mean);
    ++fitted;
  }
  CHECK(fitted == 4);
}

TEST_CASE("without noise the coefficients are found again, overlap and both links included") {
  for (const bool backward : {false, true}) {
    for (const double overlap : {0.0, 0.35, 0.7, 1.0}) {
      dyncp_test::random rng(51);
      cost_coefficients truth = reference(backward);
      truth.overlap = overlap;
      const auto records = measured(truth, 60, 0.0, rng);
      const auto fit = fit_cost(records, {});
      REQUIRE(fit);
      INFO("overlap " << overlap << " found " << fit->coefficients.overlap);
      dyncp_test::random fresh(52);
      CHECK(worst_error(fit->coefficients, truth, measured(truth, 200, 0.0, fresh)) < 0.01);
      CHECK(std::abs(fit->coefficients.overlap - overlap) < 0.02);
      CHECK(fit->coefficients.per_token_s ==
            doctest::Approx(truth.per_token_s).epsilon(0.01));
      CHECK(fit->coefficients.per_square_s ==
            doctest::Approx(truth.per_square_s).epsilon(0.01));
    }
  }
}

TEST_CASE("noise of 3 percent: fresh packs are predicted within it, and the error is told") {
  dyncp_test::random rng(53);
  const cost_coefficients truth = reference();
  const auto fit = fit_cost(measured(truth, 120, 0.03, rng), {});
  REQUIRE(fit);
  dyncp_test::random fresh(54);
  const auto held_out = measured(truth, 200, 0.0, fresh);
  CHECK(mean_error(fit->coefficients, truth, held_out) < 0.015);
  CHECK(worst_error(fit->coefficients, truth, held_out) < 0.08);
  CHECK(fit->quality.leave_one_out_mean < 0.03);
  CHECK(fit->quality.leave_one_out_mean > 0.005);
}

TEST_CASE("one measurement in ten is three times too long: robust fits do not follow it") {
  dyncp_test::random rng(55);
  const cost_coefficients truth = reference();
  auto records = measured(truth, 100, 0.01, rng);
  for (std::size_t i = 0; i < records.size(); i += 10) records[i].seconds *= 3.0;
  dyncp_test::random fresh(56);
  const auto held_out = measured(truth, 200, 0.0, fresh);
  const auto robust = fit_cost(records, {}, {.max_folds = 4});
  const auto plain = fit_cost(records, {}, {.robust = false, .max_folds = 4});
  REQUIRE(robust);
  REQUIRE(plain);
  const double with = mean_error(robust->coefficients, truth, held_out);
  CHECK(with < 0.02);
  CHECK(mean_error(plain->coefficients, truth, held_out) > 2 * with);
}

TEST_CASE("coefficients are never negative, whatever was measured") {
  dyncp_test::random rng(57);
  for (int round = 0; round < 200; ++round) {
    std::vector<cost_record> records;
    for (std::int64_t i = rng.between(2, 12); i > 0; --i) {
      const std::int64_t tokens = rng.between(1, 100000);
      records.push_back({tokens, rng.between(tokens, tokens * tokens),
                         std::int32_t{1} << rng.between(0, 4),
                         rng.one_in(2) ? dyncp::link::network : dyncp::link::nvlink, rng.unit() + 1e-6});
    }
    const auto fit = fit_cost(records, {}, {.max_folds = 2});
    REQUIRE(fit);
    const cost_coefficients& k = fit->coefficients;
    for (const double x : {k.fixed_s, k.per_token_s, k.per_square_s, k.per_mean_length_s, k.hop_s[0],
                           k.hop_s[1], k.hop_per_token_s[0], k.hop_per_token_s[1]}) {
      CHECK(x >= 0);
      CHECK(std::isfinite(x));
    }
    CHECK(k.overlap >= 0);
    CHECK(k.overlap <= 1);
  }
}

TEST_CASE("what no record tells keeps its start: a ring that was not measured is not free") {
  dyncp_test::random rng(58);
  const cost_coefficients truth = reference();
  cost_coefficients start = truth;
  start.per_token_s *= 2;
  start.fixed_s = 0;
  const auto single = fit_cost(measured(truth, 30, 0.0, rng, 1), start);
  REQUIRE(single);
  CHECK(single->coefficients.hop_s[1] == truth.hop_s[1]);
  CHECK(single->coefficients.hop_per_token_s[0] == truth.hop_per_token_s[0]);
  CHECK(single->coefficients.overlap == truth.overlap);
  CHECK(single->coefficients.per_token_s == doctest::Approx(truth.per_token_s).epsilon(0.01));
  auto in_a_node = measured(truth, 40, 0.0, rng);
  for (cost_record& r : in_a_node) {
    r.over = dyncp::link::nvlink;
    r.seconds = seconds_of(truth, r);
  }
  const auto node = fit_cost(in_a_node, start);
  REQUIRE(node);
  CHECK(node->coefficients.hop_per_token_s[1] == truth.hop_per_token_s[1]);
}

TEST_CASE("a fitter follows a machine that changes, and remembers what is not measured any more") {
  dyncp_test::random rng(59);
  const cost_coefficients before = reference();
  cost_coefficients after = before;
  after.per_token_s *= 1.3;  // clocks were lowered
  after.per_square_s *= 1.3;
  dyncp::cost_fitter fitter(before, {.forgetting = 0.95, .fit = {.max_folds = 2}});
  for (const auto& r : measured(before, 100, 0.01, rng)) fitter.observe(r);
  auto fit = fitter.fit();
  REQUIRE(fit);
  CHECK(fit->coefficients.per_token_s == doctest::Approx(before.per_token_s).epsilon(0.03));
  for (const auto& r : measured(after, 100, 0.01, rng, 1)) fitter.observe(r);
  fit = fitter.fit();
  REQUIRE(fit);
  CHECK(fit->coefficients.per_token_s == doctest::Approx(after.per_token_s).epsilon(0.03));
  // No ring among the latest hundred: what is known of rings stays about as it was.
  CHECK(fit->coefficients.hop_per_token_s[1] ==
        doctest::Approx(before.hop_per_token_s[1]).epsilon(0.3));
  CHECK(fitter.records() == 200);
}

TEST_CASE("records that cannot be are refused by name") {
  const cost_record good{100, 10000, 1, dyncp::link::nvlink, 0.5};
  CHECK(!fit_cost({good}, {}));
  CHECK(!fit_cost({good, good}, {}, {}, {1.0}));
  for (const cost_record& bad :
       {cost_record{0, 1, 1, dyncp::link::nvlink, 1}, cost_record{1, 0, 1, dyncp::link::nvlink, 1},
        cost_record{1, 1, 0, dyncp::link::nvlink, 1}, cost_record{1, 1, 1, dyncp::link::nvlink, 0},
        cost_record{1, 1, 1, dyncp::link::nvlink, std::numeric_limits<double>::quiet_NaN()},
        cost_record{1, 1, 1, dyncp::link::nvlink, std::numeric_limits<double>::infinity()}}) {
    const auto fit = fit_cost({good, bad}, {});
    REQUIRE(!fit);
    CHECK(fit.error().code == errc::invalid_argument);
    CHECK(fit.error().value == 1);
  }
}

TEST_CASE("coefficients of data sheets price as the analytic model does") {
  dyncp_test::random rng(60);
  for (int round = 0; round < 200; ++round) {
    auto model = *dyncp::find_model(rng.one_in(2) ? "reference-13b" : "qwen3-8b");
    auto cluster = *dyncp::find_cluster(rng.one_in(2) ? "h100" : "reference-13b");
    cluster.attention_half_tokens = rng.one_in(2) ? 100 : 0;
    cluster.ring_overlap = rng.unit();
    model.recompute = rng.one_in(2) ? dyncp::recomputation::none : dyncp::recomputation::full;
    dyncp::parallel_spec parallel;
    parallel.ranks = 16;
    parallel.pp = 4;
    parallel.tp = rng.one_in(2) ? 2 : 1;
    const dyncp::analytic_cost analytic(model, cluster, parallel);
    const bool head = model.vocabulary > 0;
    std::vector<dyncp::pass_coefficients> classes = {
        dyncp::coefficients_of(model, cluster, parallel)};
    if (head) classes.push_back(dyncp::coefficients_of(model, cluster, parallel, true));
    const auto fitted = dyncp::fitted_cost::make(classes, 4);
    REQUIRE(fitted);
    CHECK(fitted->stage_classes() == analytic.stage_classes());
    CHECK(fitted->bottleneck_class() == analytic.bottleneck_class());
    const std::int64_t length = rng.between(100, 50000);
    const dyncp::load l{3 * length, 3 * length * length, 3};
    const std::int32_t c = std::int32_t{1} << rng.between(0, 4);
    const dyncp::link over = rng.one_in(2) ? dyncp::link::network : dyncp::link::nvlink;
    for (std::int32_t s = 0; s < 4; ++s) {
      const std::int32_t k = analytic.stage_class(s);
      CHECK(fitted->stage_class(s) == k);
      const auto a = analytic.cost(l, c, over, k);
      const auto b = fitted->cost(l, c, over, k);
      CHECK(static_cast<double>(b.forward) ==
            doctest::Approx(static_cast<double>(a.forward)).epsilon(1e-9));
      if (c == 1 || model.recompute == dyncp::recomputation::none) {
        CHECK(static_cast<double>(b.backward) ==
              doctest::Approx(static_cast<double>(a.backward)).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("a planner plans with a fitted model, within its bounds; the digest covers it") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    dyncp_test::random rng(seed + 61);
    std::vector<std::int64_t> lengths;
    for (int i = 0; i < 60; ++i) lengths.push_back(rng.between(1, rng.one_in(6) ? 30000 : 3000));
    const dyncp::problem prob = dyncp_test::reference_problem(lengths, 8, 4, 8192);
    cost_coefficients f = reference();
    f.fixed_s = seed % 2 == 0 ? 0.0 : f.fixed_s;
    cost_coefficients b = reference(true);
    const auto cost = dyncp::fitted_cost::make({{f, b}}, 4, 1e-5, 1e-9);
    REQUIRE(cost);
    const dyncp::planner planner{*cost};
    const auto best = planner.plan(prob);
    REQUIRE(best);
    CHECK(best->statistics.makespan_s > 0);
    CHECK(dyncp::to_seconds(best->certificate.binding().value) <=
          best->statistics.makespan_s * (1 + 1e-12));
    CHECK(planner.plan(prob)->plan == best->plan);
    b.per_token_s = std::nextafter(b.per_token_s, 1.0);
    const auto other = dyncp::fitted_cost::make({{f, b}}, 4, 1e-5, 1e-9);
    REQUIRE(other);
    CHECK(dyncp::digest(prob, *cost, best->plan) != dyncp::digest(prob, *other, best->plan));
  }
}

TEST_CASE("models that cannot be are refused") {
  const dyncp::pass_coefficients good{reference(), reference(true)};
  CHECK(dyncp::fitted_cost::make({good}, 1));
  CHECK(!dyncp::fitted_cost::make({}, 1));
  CHECK(!dyncp::fitted_cost::make({good, good, good}, 4));
  CHECK(!dyncp::fitted_cost::make({good}, 0));
  CHECK(!dyncp::fitted_cost::make({dyncp::pass_coefficients{}}, 1));
  CHECK(!dyncp::fitted_cost::make({good}, 1, -1.0));
  for (const double bad : {-1e-9, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    dyncp::pass_coefficients k = good;
    k.backward.hop_per_token_s[1] = bad;
    CHECK(!dyncp::fitted_cost::make({k}, 1));
  }
  dyncp::pass_coefficients k = good;
  k.forward.overlap = 1.5;
  CHECK(!dyncp::fitted_cost::make({k}, 1));
}
