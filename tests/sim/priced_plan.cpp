// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

// Counts what it is asked: forward is the tokens, backward the squares, transfer c; the network
// adds a million, stage class k adds k * 10^9.
struct echo_cost {
  std::int32_t classes = 1;
  [[nodiscard]] std::int32_t stage_classes() const { return classes; }
  [[nodiscard]] std::int32_t stage_class(std::int32_t s) const { return s % classes; }
  [[nodiscard]] std::int32_t bottleneck_class() const { return 0; }
  [[nodiscard]] dyncp::op_cost cost(const dyncp::load& l, std::int32_t c, dyncp::link k,
                                    std::int32_t stage_class) const {
    const std::int64_t far = k == dyncp::link::network ? 1000000 : 0;
    return {l.tokens + far + stage_class * std::int64_t{1000000000}, l.squares, c};
  }
};
static_assert(dyncp::cost_model<echo_cost>);

}  // namespace

TEST_CASE("every pack is priced once a class, with its load, size and link") {
  dyncp::problem prob = dyncp_test::reference_problem({10, 20, 30, 5}, 4, 3, 100);
  prob.cluster.gpus_per_node = 2;
  dyncp::plan p{4, 100, {}, {}};
  p.micro_batches = {{{{{0, 2}, {0, 3}}, {{2, 1}, {1}}}}, {}, {{{{1, 2}, {2}}}}};
  p.micro_batches[2].packs = {{{1, 2}, {2}}};
  const dyncp::priced_plan priced = dyncp::price_plan(p, prob, echo_cost{2});
  CHECK(priced.num_ranks == 4);
  CHECK(priced.stage_classes == 2);
  CHECK(priced.class_of_stage == std::vector<std::int32_t>{0, 1, 0});
  CHECK(priced.first_group == std::vector<std::int32_t>{0, 2, 2, 3});
  CHECK(priced.num_micro_batches() == 3);
  REQUIRE(priced.num_groups() == 3);
  CHECK(priced.ranks[0] == dyncp::rank_range{0, 2});
  CHECK(priced.ranks[2] == dyncp::rank_range{1, 2});
  REQUIRE(priced.costs.size() == 6);
  CHECK(priced.costs_of_class(0)[0] == dyncp::op_cost{15, 125, 2});
  CHECK(priced.costs_of_class(0)[1] == dyncp::op_cost{20, 400, 1});
  CHECK(priced.costs_of_class(0)[2] == dyncp::op_cost{1000030, 900, 2});  // over two nodes
  CHECK(priced.costs_of_class(1)[1] == dyncp::op_cost{1000000020, 400, 1});
}

TEST_CASE("groups in any order are put in order; empty packs cost nothing") {
  const dyncp::problem prob = dyncp_test::reference_problem({10, 20, 30}, 4, 1, 100);
  dyncp::plan p{4, 100, {}, {}};
  p.micro_batches.resize(1);
  p.micro_batches[0].packs = {{{3, 1}, {0}}, {{2, 1}, {}}, {{0, 1}, {1}}, {{1, 1}, {2}}};
  const dyncp::priced_plan priced = dyncp::price_plan(p, prob, echo_cost{});
  REQUIRE(priced.num_groups() == 3);
  CHECK(priced.ranks[0].begin == 0);
  CHECK(priced.ranks[1].begin == 1);
  CHECK(priced.ranks[2].begin == 3);
  CHECK(priced.costs[0].forward == 20);
  CHECK(priced.costs[1].forward == 30);
  CHECK(priced.costs[2].forward == 10);
}

TEST_CASE("padding counts in tokens and squares, as the plan says") {
  const dyncp::problem prob = dyncp_test::reference_problem({5, 3}, 2, 1, 100);
  dyncp::plan p{2, 100, {.zigzag = true, .shard_multiple = 10}, {}};
  p.micro_batches.resize(1);
  p.micro_batches[0].packs = {{{0, 2}, {0, 1}}};
  const dyncp::priced_plan priced = dyncp::price_plan(p, prob, echo_cost{});
  CHECK(priced.costs[0] == dyncp::op_cost{20, 80, 2});
}

TEST_CASE("reference-13b: a plan's makespan from its operations, by hand") {
  // Two packs on one rank and two stages of 20 layers: F1 + F2 .. as in 1F1B: F0 F0' then the last
  // stage's F0 B0 F1 B1, then B1 on the first.
  const dyncp::problem prob = dyncp_test::reference_problem({1000, 2000}, 1, 2, 4000);
  dyncp::plan p{1, 4000, {}, {}};
  p.micro_batches.resize(2);
  p.micro_batches[0].packs = {{{0, 1}, {0}}};
  p.micro_batches[1].packs = {{{0, 1}, {1}}};
  const auto seconds = [](double tokens) {
    const double linear = 20 * 2 * 317194240.0 * tokens / 600e12;
    const double attention = 20 * 10240.0 * tokens * tokens / 500e12;
    const double forward = linear + attention + 1e-3;
    return std::pair{forward, forward + 2 * (linear + attention) + 1e-3};
  };
  const auto [f0, b0] = seconds(1000);
  const auto [f1, b1] = seconds(2000);
  const dyncp::analytic_cost cost(prob.model, prob.cluster, prob.parallel);
  const double got = dyncp::to_seconds(
      dyncp::event_simulator{}.makespan(dyncp::price_plan(p, prob, cost), {2, 1}));
  CHECK(got == doctest::Approx(f0 + std::max(f0 + b0, f1) + f1 + b1 + b1).epsilon(1e-11));
}
