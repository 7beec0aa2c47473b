// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/rank_range.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A plan as the simulators see it: who is coupled to whom, and for how many ticks.
struct priced_plan {
  std::int32_t num_ranks = 0;
  std::int32_t stage_classes = 1;
  std::vector<std::int32_t> class_of_stage;  // (pp*vpp): virtual stage -> class
  std::vector<std::int32_t> first_group;     // (M+1): micro-batch j has [first[j], first[j+1])
  std::vector<rank_range> ranks;             // (groups), disjoint within a micro-batch
  std::vector<op_cost> costs;                // (stage_classes, groups)

  [[nodiscard]] std::int32_t num_micro_batches() const noexcept {
    return static_cast<std::int32_t>(first_group.size()) - 1;
  }
  [[nodiscard]] std::size_t num_groups() const noexcept { return ranks.size(); }
  /// Costs of all groups on stages of a class, shape (groups).
  [[nodiscard]] std::span<const op_cost> costs_of_class(std::int32_t stage_class) const noexcept {
    return std::span(costs).subspan(static_cast<std::size_t>(stage_class) * num_groups(),
                                    num_groups());
  }
};

[[nodiscard]] constexpr link link_of(rank_range r, std::int32_t per_node) noexcept {
  return in_one_node(r.begin, r.size, per_node) ? link::nvlink : link::network;
}

/// Prices every pack once per stage class. Complexity: O(sequences + groups * classes).
/// Requires a plan whose indices are valid; empty packs cost nothing and are left out. Groups are
/// put in the order of their first ranks, which plans from files need not keep.
template <cost_model Cost>
[[nodiscard]] priced_plan price_plan(const plan& p, const problem& prob, const Cost& cost) {
  const std::int32_t per_node = ranks_per_node(prob.cluster.gpus_per_node, prob.parallel);
  priced_plan out;
  out.num_ranks = p.num_ranks;
  out.stage_classes = cost.stage_classes();
  const std::int32_t stages = prob.parallel.pp * prob.parallel.vpp;
  for (std::int32_t s = 0; s < stages; ++s) out.class_of_stage.push_back(cost.stage_class(s));
  out.first_group.push_back(0);
  std::vector<load> loads;
  std::vector<const pack*> packs;
  for (const micro_batch& mb : p.micro_batches) {
    packs.clear();
    for (const pack& pk : mb.packs) packs.push_back(&pk);
    const auto before = [](const pack* a, const pack* b) {
      return a->ranks.begin < b->ranks.begin;
    };
    if (!std::is_sorted(packs.begin(), packs.end(), before)) {
      std::stable_sort(packs.begin(), packs.end(), before);
    }
    for (const pack* pk : packs) {
      if (pk->sequences.empty()) continue;
      out.ranks.push_back(pk->ranks);
      loads.push_back(pack_load(*pk, prob.sequences, p.padding));
    }
    out.first_group.push_back(static_cast<std::int32_t>(out.ranks.size()));
  }
  out.costs.reserve(loads.size() * static_cast<std::size_t>(out.stage_classes));
  for (std::int32_t k = 0; k < out.stage_classes; ++k) {
    for (std::size_t g = 0; g < loads.size(); ++g) {
      out.costs.push_back(
          cost.cost(loads[g], out.ranks[g].size, link_of(out.ranks[g], per_node), k));
    }
  }
  return out;
}

}  // namespace v0
}  // namespace dyncp
