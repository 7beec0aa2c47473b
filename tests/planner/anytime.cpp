// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
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
    // The same plan comes again and again while no better one is found.
    if (!seen.empty()) CHECK(better.statistics.makespan_s <= seen.back());
    if (seen.empty() || better.statistics.makespan_s < seen.back()) {
      seen.push_back(better.statistics.makespan_s);
    }
    return true;
  });
  REQUIRE(best);
  REQUIRE(seen.size() >= 2);
  CHECK(best->statistics.makespan_s <= seen.back());

  // Steps alone decide: the same plan again.
  const auto again = planner.plan_anytime(p, [](const dyncp::planned&) { return true; });
  REQUIRE(again);
  CHECK(dyncp::digest(again->plan) == dyncp::digest(best->plan));

  // Stopped at the first one: that one.
  int calls = 0;
  const auto first = planner.plan_anytime(p, [&](const dyncp::planned&) {
    ++calls;
    return false;
  });
  REQUIRE(first);
  CHECK(calls == 1);
  CHECK(first->statistics.makespan_s == seen.front());
  CHECK(first->statistics.makespan_s >= best->statistics.makespan_s);
}

TEST_CASE("the caller is asked at once, also without steps and whatever the limits") {
  std::vector<dyncp::problem> problems(5, dyncp_test::reference_problem(
                                              {900, 5000, 70, 20000, 3000, 410, 410}, 8, 2, 16384));
  problems[1].limits.max_inflight_tokens = 16384;
  problems[2].limits.no_idle_ranks = true;
  problems[3].limits.micro_batches = 2;
  problems[4] = github(16);
  for (const dyncp::problem& p : problems) {
    CAPTURE(&p - problems.data());
    const dyncp::planner planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
    double last = 0;
    const auto made = planner.plan_anytime(p, [&](const dyncp::planned& better) {
      last = better.statistics.makespan_s;
      return true;
    });
    REQUIRE(made);
    CHECK(last == made->statistics.makespan_s);
  }
}

TEST_CASE("no step is taken once the caller wants no more") {
  const dyncp::problem p = github(32);
  const counting_cost cost{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
  dyncp::dynamic_cp packer;
  packer.search_steps = 4000;
  const dyncp::planner planner{cost, packer};
  std::int64_t all_calls = 0;
  std::int64_t start = cost.calls();
  std::int64_t last = start;
  std::int64_t longest_wait = 0;
  const auto best = planner.plan_anytime(p, [&](const dyncp::planned&) {
    if (all_calls++ > 0) longest_wait = std::max(longest_wait, cost.calls() - last);
    last = cost.calls();
    return true;
  });
  REQUIRE(best);
  const std::int64_t work = cost.calls() - start;
  CHECK(all_calls >= 4000 / 32);
  CHECK(longest_wait <= work / 20);

  start = cost.calls();
  REQUIRE(planner.evaluate(p, best->plan));
  const std::int64_t report = cost.calls() - start;
  // At the first plan, while budgets are annealed, and in the single moves at the end.
  for (const std::int64_t stop_at : {std::int64_t{1}, std::int64_t{30}, all_calls - 20}) {
    CAPTURE(stop_at);
    std::int64_t calls = 0;
    std::int64_t stopped = 0;
    const auto made = planner.plan_anytime(p, [&](const dyncp::planned&) {
      stopped = cost.calls();
      return ++calls < stop_at;
    });
    REQUIRE(made);
    CHECK(calls == stop_at);
    CHECK(cost.calls() - stopped <= 2 * report);
  }
}

TEST_CASE("search steps count once, however many plans a limit makes the packer try") {
  const auto work_of_search = [](const dyncp::problem& p) {
    const counting_cost cost{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
    std::int64_t work = 0;
    for (const std::int64_t steps : {0, 2000}) {
      dyncp::dynamic_cp packer;
      packer.search_steps = steps;
      const std::int64_t start = cost.calls();
      REQUIRE(packer.pack(p, cost));
      work = cost.calls() - start - work;
    }
    return work;
  };
  dyncp::problem p = github(16);
  const std::int64_t plain = work_of_search(p);
  p.limits.max_inflight_tokens = 60000;
  // More than once, since no steps go into single moves, which are cheaper, and one plan is new.
  CHECK(work_of_search(p) <= 4 * plain);
  p.limits.max_inflight_tokens = 0;
  p.limits.no_idle_ranks = true;
  CHECK(work_of_search(p) <= 4 * plain);
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
