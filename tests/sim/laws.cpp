// SPDX-License-Identifier: Apache-2.0
#include "random_priced.hpp"

#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/one_f_one_b.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

using dyncp::op_cost;
using dyncp::priced_plan;
using dyncp::ticks;
using dyncp_test::priced_case;
using dyncp_test::random_priced;

namespace {

ticks time_of(const priced_case& c) {
  return dyncp::event_simulator{}.makespan(c.plan, c.pipe);
}

// The plan with the ranks of block k moved behind those of block k + 1, ...: ranks renamed by
// `to`, which must keep every group together.
priced_plan renamed(const priced_plan& p, const std::vector<std::int32_t>& to) {
  priced_plan out = p;
  for (std::int32_t j = 0; j < p.num_micro_batches(); ++j) {
    const auto begin = static_cast<std::size_t>(p.first_group[static_cast<std::size_t>(j)]);
    const auto end = static_cast<std::size_t>(p.first_group[static_cast<std::size_t>(j) + 1]);
    std::vector<std::size_t> order(end - begin);
    std::iota(order.begin(), order.end(), begin);
    const auto first = [&](std::size_t g) {
      std::int32_t least = p.num_ranks;
      for (std::int32_t r = p.ranks[g].begin; r < p.ranks[g].end(); ++r) {
        least = std::min(least, to[static_cast<std::size_t>(r)]);
      }
      return least;
    };
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return first(a) < first(b); });
    for (std::size_t i = 0; i < order.size(); ++i) {
      out.ranks[begin + i] = {first(order[i]), p.ranks[order[i]].size};
      for (std::int32_t k = 0; k < p.stage_classes; ++k) {
        const std::size_t row = static_cast<std::size_t>(k) * p.num_groups();
        out.costs[row + begin + i] = p.costs[row + order[i]];
      }
    }
  }
  return out;
}

// Runs `body(case, rng)` on random cases.
template <class Body>
void on_random_cases(std::uint64_t standard_seed, std::int64_t rounds, Body body) {
  const std::uint64_t seed = dyncp_test::seed_or(standard_seed);
  for (std::int64_t round = 0; round < dyncp_test::count_or(rounds); ++round) {
    dyncp_test::random rng(seed + static_cast<std::uint64_t>(round));
    const priced_case c = random_priced(rng);
    CAPTURE(seed + static_cast<std::uint64_t>(round));
    CAPTURE(describe(c));
    body(c, rng);
  }
}

}  // namespace

TEST_CASE("all costs times k take k times as long") {
  on_random_cases(1, 3000, [](const priced_case& c, dyncp_test::random& rng) {
    const std::int64_t k = rng.between(0, 1000);
    priced_case scaled = c;
    for (op_cost& cost : scaled.plan.costs) {
      cost = {k * cost.forward, k * cost.backward, k * cost.transfer};
    }
    REQUIRE(time_of(scaled) == k * time_of(c));
  });
}

TEST_CASE("ranks in reverse order take as long") {
  on_random_cases(2, 3000, [](const priced_case& c, dyncp_test::random&) {
    std::vector<std::int32_t> to;
    for (std::int32_t r = c.plan.num_ranks; r-- > 0;) to.push_back(r);
    priced_case other = c;
    other.plan = renamed(c.plan, to);
    REQUIRE(time_of(other) == time_of(c));
  });
}

TEST_CASE("blocks of ranks that no group joins may change places, or be simulated apart") {
  on_random_cases(3, 6000, [](const priced_case& c, dyncp_test::random& rng) {
    const auto cut = static_cast<std::int32_t>(rng.between(0, c.plan.num_ranks));
    for (const dyncp::rank_range r : c.plan.ranks) {
      if (r.begin < cut && r.end() > cut) return;
    }
    std::vector<std::int32_t> to;
    for (std::int32_t r = 0; r < c.plan.num_ranks; ++r) {
      to.push_back(r < cut ? r + c.plan.num_ranks - cut : r - cut);
    }
    priced_case other = c;
    other.plan = renamed(c.plan, to);
    REQUIRE(time_of(other) == time_of(c));

    // The whole takes as long as the slower half.
    ticks slower = 0;
    for (const auto& [low, high] : {std::pair{0, cut}, std::pair{cut, c.plan.num_ranks}}) {
      if (low == high) continue;
      priced_case half = c;
      half.plan = {};
      half.plan.num_ranks = high - low;
      half.plan.stage_classes = c.plan.stage_classes;
      half.plan.class_of_stage = c.plan.class_of_stage;
      half.plan.first_group = {0};
      std::vector<std::size_t> kept;
      for (std::int32_t j = 0; j < c.plan.num_micro_batches(); ++j) {
        for (std::int32_t g = c.plan.first_group[static_cast<std::size_t>(j)];
             g < c.plan.first_group[static_cast<std::size_t>(j) + 1]; ++g) {
          const dyncp::rank_range r = c.plan.ranks[static_cast<std::size_t>(g)];
          if (r.begin < low || r.end() > high) continue;
          half.plan.ranks.push_back({r.begin - low, r.size});
          kept.push_back(static_cast<std::size_t>(g));
        }
        half.plan.first_group.push_back(static_cast<std::int32_t>(half.plan.ranks.size()));
      }
      for (std::int32_t k = 0; k < c.plan.stage_classes; ++k) {
        for (const std::size_t g : kept) half.plan.costs.push_back(c.plan.costs_of_class(k)[g]);
      }
      slower = std::max(slower, time_of(half));
    }
    REQUIRE(time_of(c) == slower);
  });
}

TEST_CASE("no cost that grows makes the whole faster, and no time grows by more than it") {
  on_random_cases(4, 3000, [](const priced_case& c, dyncp_test::random& rng) {
    if (c.plan.costs.empty()) return;
    priced_case dearer = c;
    const auto at = static_cast<std::size_t>(
        rng.between(0, static_cast<std::int64_t>(c.plan.costs.size()) - 1));
    op_cost& cost = dearer.plan.costs[at];
    const ticks more = rng.between(1, 60);
    const std::int64_t which = rng.between(0, 2);
    (which == 0 ? cost.forward : which == 1 ? cost.backward : cost.transfer) += more;
    const ticks before = time_of(c);
    const ticks after = time_of(dearer);
    REQUIRE(after >= before);
    REQUIRE(after <= before + more * c.pipe.stages * c.pipe.chunks * 2);
  });
}

TEST_CASE("between the busiest worker and all work in a row") {
  on_random_cases(5, 3000, [](const priced_case& c, dyncp_test::random&) {
    ticks all = 0;
    ticks busiest = 0;
    for (std::int32_t s = 0; s < c.pipe.stages; ++s) {
      std::vector<ticks> worker(static_cast<std::size_t>(c.plan.num_ranks), 0);
      for (std::int32_t chunk = 0; chunk < c.pipe.chunks; ++chunk) {
        const auto vs = static_cast<std::size_t>(chunk * c.pipe.stages + s);
        const auto costs = c.plan.costs_of_class(c.plan.class_of_stage[vs]);
        for (std::size_t g = 0; g < costs.size(); ++g) {
          all += costs[g].total() + 2 * costs[g].transfer;
          for (std::int32_t r = c.plan.ranks[g].begin; r < c.plan.ranks[g].end(); ++r) {
            worker[static_cast<std::size_t>(r)] += costs[g].total();
          }
        }
      }
      for (const ticks t : worker) busiest = std::max(busiest, t);
    }
    REQUIRE(time_of(c) >= busiest);
    REQUIRE(time_of(c) <= all);
  });
}

TEST_CASE("slices of a worker do not overlap, and their sums are the costs") {
  on_random_cases(6, 2000, [](const priced_case& c, dyncp_test::random&) {
    const dyncp::timeline t = dyncp::event_simulator{}.trace(c.plan, c.pipe);
    std::map<std::pair<std::int32_t, std::int32_t>, ticks> end;   // (stage, rank)
    std::map<std::pair<std::int32_t, std::int32_t>, ticks> busy;  // (stage, group)
    ticks last = 0;
    for (const dyncp::timeline_slice& s : t.slices) {
      const auto group = static_cast<std::size_t>(s.group);
      const auto vs = static_cast<std::size_t>(s.chunk * c.pipe.stages + s.stage);
      const op_cost& cost = c.plan.costs_of_class(c.plan.class_of_stage[vs])[group];
      REQUIRE(s.end - s.start == (s.backward ? cost.backward : cost.forward));
      busy[{s.stage, s.group}] += s.end - s.start;
      last = std::max(last, s.end);
      // The order of the list is an order of time on every worker.
      for (std::int32_t r = c.plan.ranks[group].begin; r < c.plan.ranks[group].end(); ++r) {
        REQUIRE(s.start >= end[{s.stage, r}]);
        end[{s.stage, r}] = s.end;
      }
    }
    REQUIRE(last == t.makespan);
    for (std::int32_t s = 0; s < c.pipe.stages; ++s) {
      for (std::size_t g = 0; g < c.plan.num_groups(); ++g) {
        ticks expected = 0;
        for (std::int32_t chunk = 0; chunk < c.pipe.chunks; ++chunk) {
          const auto vs = static_cast<std::size_t>(chunk * c.pipe.stages + s);
          expected += c.plan.costs_of_class(c.plan.class_of_stage[vs])[g].total();
        }
        REQUIRE(busy[{s, static_cast<std::int32_t>(g)}] == expected);
      }
    }
  });
}

TEST_CASE("empty micro-batches at the end make nothing faster") {
  on_random_cases(7, 2000, [](const priced_case& c, dyncp_test::random& rng) {
    if (c.pipe.chunks > 1) return;
    priced_case longer = c;
    for (std::int64_t n = rng.between(1, 5); n > 0; --n) {
      longer.plan.first_group.push_back(longer.plan.first_group.back());
    }
    REQUIRE(time_of(longer) >= time_of(c));
    // Two stages have no third to wait for.
    if (c.pipe.stages < 3) REQUIRE(time_of(longer) == time_of(c));
  });
}

TEST_CASE("an empty micro-batch passes through in order, and that can cost time, by hand") {
  // Three stages, forwards of 1, backwards of 10, 1, 5. The last stage's backwards end at 13, 15,
  // 30, the second's at 23, 25, 35, the first's at 33, 34, 40.
  dyncp::priced_plan p;
  p.num_ranks = 1;
  p.class_of_stage = {0, 0, 0};
  p.first_group = {0, 1, 2, 3};
  p.ranks.assign(3, {0, 1});
  p.costs = {{1, 10, 0}, {1, 1, 0}, {1, 5, 0}};
  CHECK(dyncp::event_simulator{}.makespan(p, {3, 1}) == 40);
  // A fourth, empty one: the second stage passes it on before its last backward, and the first
  // sends it after its first backward only, at 33: the last backwards end at 38 and 43.
  p.first_group.push_back(3);
  CHECK(dyncp::event_simulator{}.makespan(p, {3, 1}) == 43);
}
