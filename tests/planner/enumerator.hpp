// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cost/reference_cost.hpp"
#include "sim/brute_scheduler.hpp"

#include <dyncp/core/ticks.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace dyncp_test {

/// The least makespan by counting: each sequence has a digit, which names a micro-batch and a group
/// (an aligned power of two of ranks), and all numbers are tried; groups of a micro-batch that
/// overlap, or hold too much, are no plan, nor is one of which p micro-batches in a row hold more on
/// a rank than may be in flight. Priced by `reference_of` and timed by `brute_scheduler`:
/// shares no code with the library's costs and simulators, nor with `exact_reference`.
inline std::int64_t least_by_counting(const dyncp::problem& p, int most) {
  const int ranks = p.parallel.ranks;
  std::vector<dyncp::rank_range> groups;
  for (int c = 1; c <= ranks; c *= 2) {
    for (int at = 0; at < ranks; at += c) groups.push_back({at, c});
  }
  const std::size_t n = p.sequences.size();
  const std::size_t base = static_cast<std::size_t>(most) * groups.size();
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  for (std::vector<std::size_t> digits(n, 0);;) {
    std::vector<std::int64_t> tokens(base, 0);
    std::vector<std::int64_t> squares(base, 0);
    for (std::size_t i = 0; i < n; ++i) {
      tokens[digits[i]] += p.sequences[i].length;
      squares[digits[i]] += p.sequences[i].length * p.sequences[i].length;
    }
    dyncp::priced_plan plan;
    plan.num_ranks = ranks;
    plan.class_of_stage.assign(static_cast<std::size_t>(p.parallel.pp), 0);
    plan.first_group.push_back(0);
    bool valid = true;
    for (std::size_t at = 0; at < base && valid; ++at) {
      const dyncp::rank_range g = groups[at % groups.size()];
      if (tokens[at] > 0) {
        valid = tokens[at] <= p.limits.max_tokens_per_rank * g.size;
        valid = valid && std::none_of(plan.ranks.begin() + plan.first_group.back(),
                                      plan.ranks.end(),
                                      [&](dyncp::rank_range other) { return other.overlaps(g); });
        const reference_cost cost = reference_of(p.model, p.cluster, p.parallel, tokens[at],
                                                 squares[at], g.size, false, false);
        const auto ticks = [](long double s) { return std::llroundl(std::ldexp(s, 40)); };
        plan.ranks.push_back(g);
        plan.costs.push_back({ticks(cost.forward), ticks(cost.backward), 0});
      }
      if ((at + 1) % groups.size() == 0) {
        plan.first_group.push_back(static_cast<std::int32_t>(plan.ranks.size()));
      }
    }
    if (p.limits.max_inflight_tokens > 0) {
      const auto held = [&](int micro_batch, int rank) {
        for (std::size_t g = 0; g < groups.size(); ++g) {
          const std::int64_t here =
              tokens[static_cast<std::size_t>(micro_batch) * groups.size() + g];
          if (here > 0 && groups[g].begin <= rank && rank < groups[g].end()) {
            return (here + groups[g].size - 1) / groups[g].size;
          }
        }
        return std::int64_t{0};
      };
      for (int first = 0; first < most; ++first) {
        for (int rank = 0; rank < ranks; ++rank) {
          std::int64_t window = 0;
          for (int j = first; j < std::min(most, first + p.parallel.pp); ++j) {
            window += held(j, rank);
          }
          valid = valid && window <= p.limits.max_inflight_tokens;
        }
      }
    }
    if (valid) best = std::min(best, brute_scheduler(plan, {p.parallel.pp, 1}).run());
    std::size_t i = 0;
    while (i < n && ++digits[i] == base) digits[i++] = 0;
    if (i == n) return best;
  }
}

}  // namespace dyncp_test
