// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace compare {

/// Slots of a plan, and those whose time is more than 2 % over their bound.
struct slot_balance {
  std::int64_t slots = 0;
  std::int64_t uneven = 0;
};

/// How evenly a plan fills its slots, where that matters: in the regions that end with the plan or
/// at most 2 % before it. The others have time to spare, and the packer spends no search on them.
///
/// A slot is one micro-batch of one region; regions are the blocks of ranks that no group of the
/// plan leaves, at least a node: each is a pipeline of its own, so slots of different regions need
/// not be alike. The time of a slot is its slowest pack's forward and backward. With the slot's
/// sequences at the sizes that they have, no division of them is faster than
///   - the average work of a rank,
///   - the longest sequence alone,
///   - k+1 of the k*w+1 largest parts on w ranks, of which some rank runs k+1 (a sequence at size c
///     has c parts, each the linear and attention time that it adds to a pack).
[[nodiscard]] inline slot_balance measure_balance(const dyncp::plan& plan,
                                                  const dyncp::problem& prob,
                                                  const dyncp::analytic_cost& cost) {
  const std::int32_t per_node =
      dyncp::ranks_per_node(prob.cluster.gpus_per_node, prob.parallel);
  // region[r]: the first rank of r's region.
  std::vector<std::int32_t> region(static_cast<std::size_t>(plan.num_ranks));
  for (std::int32_t r = 0; r < plan.num_ranks; ++r) {
    region[static_cast<std::size_t>(r)] = r / per_node * per_node;
  }
  const auto join = [&](dyncp::rank_range ranks) {
    const std::int32_t first = region[static_cast<std::size_t>(ranks.begin)];
    const std::int32_t last = region[static_cast<std::size_t>(ranks.end() - 1)];
    if (first == last) return;
    for (std::int32_t& r : region) {
      if (r > first && r <= last) r = first;
    }
  };
  for (const dyncp::micro_batch& mb : plan.micro_batches) {
    for (const dyncp::pack& pk : mb.packs) join(pk.ranks);
  }
  std::vector<std::int32_t> width(region.size(), 0);
  for (const std::int32_t first : region) ++width[static_cast<std::size_t>(first)];

  const dyncp::priced_plan priced = dyncp::price_plan(plan, prob, cost);
  // What a pack costs with next to nothing in it; parts leave it out.
  const dyncp::load nothing = dyncp::sequence_load(1, 1);
  const double overhead =
      cost.forward_parts(nothing, 1, dyncp::link::nvlink, 0).total_s() +
      cost.backward_parts(nothing, 1, dyncp::link::nvlink, 0).total_s();
  // Which regions decide when the plan ends.
  std::vector<dyncp::ticks> end(region.size(), 0);
  const dyncp::timeline trace =
      dyncp::event_simulator{}.trace(priced, {prob.parallel.pp, prob.parallel.vpp});
  for (const dyncp::timeline_slice& slice : trace.slices) {
    const dyncp::rank_range ranks = priced.ranks[static_cast<std::size_t>(slice.group)];
    dyncp::ticks& last =
        end[static_cast<std::size_t>(region[static_cast<std::size_t>(ranks.begin)])];
    last = std::max(last, slice.end);
  }
  slot_balance found;
  for (std::size_t j = 0; j < plan.micro_batches.size(); ++j) {
    std::vector<double> slowest(region.size(), 0);
    std::vector<double> work(region.size(), 0);
    std::vector<double> longest(region.size(), 0);
    std::vector<std::vector<double>> parts(region.size());
    for (std::int32_t g = priced.first_group[j]; g < priced.first_group[j + 1]; ++g) {
      const auto i = static_cast<std::size_t>(g);
      const auto at = static_cast<std::size_t>(
          region[static_cast<std::size_t>(priced.ranks[i].begin)]);
      const double time = dyncp::to_seconds(priced.costs[i].total());
      slowest[at] = std::max(slowest[at], time);
      work[at] += time * priced.ranks[i].size;
    }
    for (const dyncp::pack& pk : plan.micro_batches[j].packs) {
      const auto at = static_cast<std::size_t>(region[static_cast<std::size_t>(pk.ranks.begin)]);
      const std::int64_t align = dyncp::alignment(prob.padding, pk.ranks.size);
      for (const std::int32_t s : pk.sequences) {
        const dyncp::load alone =
            dyncp::sequence_load(prob.sequences[static_cast<std::size_t>(s)].length, align);
        const dyncp::link link = dyncp::link_of(pk.ranks, per_node);
        const dyncp::cost_parts f = cost.forward_parts(alone, pk.ranks.size, link, 0);
        const dyncp::cost_parts b = cost.backward_parts(alone, pk.ranks.size, link, 0);
        longest[at] = std::max(longest[at], f.total_s() + b.total_s());
        const double part = f.total_s() - f.exposed_s + b.total_s() - b.exposed_s - overhead;
        parts[at].insert(parts[at].end(), static_cast<std::size_t>(pk.ranks.size), part);
      }
    }
    for (std::size_t r = 0; r < region.size(); ++r) {
      if (slowest[r] <= 0 || end[r] < trace.makespan - trace.makespan / 50) continue;
      const auto w = static_cast<std::size_t>(width[r]);
      double bound = std::max(work[r] / width[r], longest[r]);
      std::sort(parts[r].begin(), parts[r].end(), std::greater<>{});
      for (std::size_t k = 1; k * w < parts[r].size(); ++k) {
        const auto last = parts[r].begin() + static_cast<std::ptrdiff_t>(k * w + 1);
        bound = std::max(bound, std::accumulate(last - static_cast<std::ptrdiff_t>(k + 1), last,
                                                overhead));
      }
      ++found.slots;
      if (slowest[r] > 1.02 * bound) ++found.uneven;
    }
  }
  return found;
}

}  // namespace compare
