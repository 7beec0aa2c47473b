// SPDX-License-Identifier: Apache-2.0
// The order of micro-batches under interleaved 1F1B, against simple orders and against all of them.
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/packers/ramp.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

using order = std::vector<std::int32_t>;

// A plan of a batch on one region, whose micro-batches can be run in any order.
class reordered {
 public:
  explicit reordered(const dyncp::problem& p)
      : problem_(p), cost_(p.model, p.cluster, p.parallel) {
    const auto made = dyncp::dynamic_cp{}.pack(problem_, cost_);
    REQUIRE(made);
    plan_ = *made;
    const dyncp::priced_plan priced = dyncp::price_plan(plan_, problem_, cost_);
    const auto costs = priced.costs_of_class(cost_.bottleneck_class());
    times_.assign(plan_.micro_batches.size(), 0);
    for (std::size_t j = 0; j < times_.size(); ++j) {
      for (auto g = priced.first_group[j]; g < priced.first_group[j + 1]; ++g) {
        times_[j] = std::max(times_[j], costs[static_cast<std::size_t>(g)].total());
      }
    }
  }

  [[nodiscard]] order as_planned() const {
    order all(times_.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  [[nodiscard]] order falling() const {
    order all = as_planned();
    std::stable_sort(all.begin(), all.end(), [&](std::int32_t a, std::int32_t b) {
      return times_[static_cast<std::size_t>(a)] > times_[static_cast<std::size_t>(b)];
    });
    return all;
  }
  [[nodiscard]] const std::vector<dyncp::ticks>& times() const { return times_; }

  [[nodiscard]] double seconds(const order& by) const {
    dyncp::plan p = plan_;
    for (std::size_t j = 0; j < by.size(); ++j) {
      p.micro_batches[j] = plan_.micro_batches[static_cast<std::size_t>(by[j])];
    }
    return dyncp::to_seconds(dyncp::event_simulator{}.makespan(
        dyncp::price_plan(p, problem_, cost_), {problem_.parallel.pp, problem_.parallel.vpp}));
  }

 private:
  dyncp::problem problem_;
  dyncp::analytic_cost cost_;
  dyncp::plan plan_;
  std::vector<dyncp::ticks> times_;
};

dyncp::problem interleaved_problem(dyncp_test::random& rng, int count, std::int32_t pp) {
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) {
    lengths.push_back(rng.one_in(12) ? rng.between(8000, 60000) : rng.between(100, 6000));
  }
  dyncp::problem p = dyncp_test::reference_problem(lengths, 8, pp, 8192);
  p.parallel.vpp = 2;
  return p;
}

}  // namespace

TEST_CASE("no simple order of the micro-batches is faster than the plan's") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    dyncp_test::random rng(seed);
    const std::int32_t pp = seed % 2 == 0 ? 4 : 8;
    const reordered plan(interleaved_problem(rng, 300, pp));
    const double planned = plan.seconds(plan.as_planned());
    const order falling = plan.falling();
    const order rising(falling.rbegin(), falling.rend());
    order reversed = plan.as_planned();
    std::reverse(reversed.begin(), reversed.end());
    order middle;
    for (const std::int32_t i :
         dyncp::detail::largest_in_the_middle(static_cast<std::int32_t>(falling.size()))) {
      middle.push_back(falling[static_cast<std::size_t>(i)]);
    }
    CHECK(planned <= plan.seconds(falling));
    CHECK(planned <= plan.seconds(rising));
    CHECK(planned <= plan.seconds(reversed));
    CHECK(planned <= plan.seconds(middle));
    for (const std::int32_t stages : {pp, 2 * pp}) {
      const double growth = 1.0 + 3.0 / (stages - 1);
      CHECK(planned <= plan.seconds(dyncp::detail::ramp_order(plan.times(), stages, growth)));
    }
  }
}

TEST_CASE("the order is near the best of all orders of a few micro-batches") {
  double sum = 0;
  double worst = 0;
  constexpr int seeds = 20;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    dyncp_test::random rng(seed);
    dyncp::problem p = interleaved_problem(rng, 40, 2);
    p.limits.micro_batches = 6;
    const reordered plan(p);
    double best = plan.seconds(plan.as_planned());
    const double planned = best;
    order any = plan.as_planned();
    do {
      best = std::min(best, plan.seconds(any));
    } while (std::next_permutation(any.begin(), any.end()));
    sum += planned / best - 1.0;
    worst = std::max(worst, planned / best - 1.0);
  }
  MESSAGE("mean gap " << sum / seeds << ", worst " << worst);
  CHECK(sum / seeds <= 0.005);
  CHECK(worst <= 0.02);
}
