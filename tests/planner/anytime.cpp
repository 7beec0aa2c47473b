// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

// The analytic model, counting how often it is asked: what a plan's work grows with.
class counting_cost : public dyncp::analytic_cost {
 public:
  explicit counting_cost(const dyncp::analytic_cost& base)
      : analytic_cost(base), calls_(std::make_shared<std::int64_t>(0)) {}

  [[nodiscard]] dyncp::op_cost cost(const dyncp::load& l, std::int32_t c, dyncp::link k,
                                    std::int32_t stage_class) const {
    ++*calls_;
    return analytic_cost::cost(l, c, k, stage_class);
  }
  [[nodiscard]] counting_cost at_full_attention_rate() const {
    return counting_cost(analytic_cost::at_full_attention_rate());
  }
  [[nodiscard]] std::int64_t calls() const { return *calls_; }

 private:
  std::shared_ptr<std::int64_t> calls_;
};

static_assert(dyncp::cost_model<counting_cost>);

dyncp::problem github(std::int32_t ranks, std::int64_t skip = 0) {
  const auto list = dyncp::read_length_file(DYNCP_DATA_DIR "/github.len");
  REQUIRE(list);
  dyncp::length_selection wanted;
  wanted.min_length = 16;
  wanted.max_length = 131072;
  wanted.count = 2048;
  wanted.skip = skip;
  const auto batch = dyncp::select_batch(*list, wanted);
  REQUIRE(batch);
  dyncp::problem p = dyncp_test::reference_problem({1}, ranks, 8, 16384);
  p.sequences = batch->sequences;
  return p;
}

// Every twentieth sequence is another one: 5 %.
dyncp::problem changed(const dyncp::problem& p, std::int32_t ranks) {
  const dyncp::problem next = github(ranks, 2048);
  dyncp::problem out = p;
  for (std::size_t i = 0; i < out.sequences.size(); i += 20) {
    out.sequences[i].length = next.sequences[i].length;
  }
  return out;
}

}  // namespace

TEST_CASE("a valid plan at once, and better ones while steps last") {
  const dyncp::problem p = github(32);
  dyncp::dynamic_cp packer;
  packer.search_steps = 600;
  const dyncp::planner planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel), packer};
  std::vector<double> seen;
  const auto best = planner.plan_anytime(p, [&](const dyncp::planned& better) {
    CHECK(dyncp::validate(better.plan, p).empty());
    if (!seen.empty()) CHECK(better.statistics.makespan_s < seen.back());
    seen.push_back(better.statistics.makespan_s);
    return true;
  });
  REQUIRE(best);
  REQUIRE(seen.size() >= 2);
  CHECK(best->statistics.makespan_s <= seen.back());

  // Steps alone decide: the same plan again.
  const auto again = planner.plan_anytime(p, [](const dyncp::planned&) { return true; });
  REQUIRE(again);
  CHECK(dyncp::digest(again->plan) == dyncp::digest(best->plan));

  // Stopped at the first one: that one, or better by what is always done at the end.
  int calls = 0;
  const auto first = planner.plan_anytime(p, [&](const dyncp::planned&) {
    ++calls;
    return false;
  });
  REQUIRE(first);
  CHECK(calls == 1);
  CHECK(first->statistics.makespan_s <= seen.front());
  CHECK(first->statistics.makespan_s >= best->statistics.makespan_s);
}

TEST_CASE("after 5 % of the sequences changed, planning costs at most a quarter") {
  // On 64 and 128 ranks the longest sequence's path bounds this batch: planning ends after one
  // round and is little more than pricing the sequences, of which nothing can be spared.
  for (const std::int32_t ranks : {8, 16, 32, 128}) {
    CAPTURE(ranks);
    const dyncp::problem p = github(ranks);
    const dyncp::problem next = changed(p, ranks);
    const counting_cost cost{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
    const dyncp::planner planner{cost};
    const auto last = planner.plan(p);
    REQUIRE(last);

    std::int64_t before = cost.calls();
    const auto cold = planner.plan(next);
    const std::int64_t cold_work = cost.calls() - before;
    before = cost.calls();
    const auto warm = planner.plan(next, last->hint);
    const std::int64_t warm_work = cost.calls() - before;
    REQUIRE(cold);
    REQUIRE(warm);
    CAPTURE(cold_work);
    CAPTURE(warm_work);
    CHECK(dyncp::validate(warm->plan, next).empty());
    CHECK((ranks == 128 ? 1 : 4) * warm_work <= cold_work);
    CHECK(warm->statistics.makespan_s <= 1.01 * cold->statistics.makespan_s);
  }
}

TEST_CASE("a hint for other ranks is of no use and does no harm") {
  const dyncp::problem small = github(8);
  const dyncp::problem large = github(32);
  const dyncp::planner planner8{
      dyncp::analytic_cost(small.model, small.cluster, small.parallel)};
  const dyncp::planner planner32{
      dyncp::analytic_cost(large.model, large.cluster, large.parallel)};
  const auto hint = planner8.plan(small);
  REQUIRE(hint);
  const auto hinted = planner32.plan(large, hint->hint);
  const auto plain = planner32.plan(large);
  REQUIRE(hinted);
  REQUIRE(plain);
  CHECK(dyncp::digest(hinted->plan) == dyncp::digest(plain->plan));
}
