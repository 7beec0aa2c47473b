// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace dyncp_test {

struct problem_and_plan {
  dyncp::problem prob;
  dyncp::plan plan;
};

/// A random problem (without a fixed M, idle ranks allowed, no limit on tokens in flight) and a
/// plan that throws each atomic group onto some ranks where it fits: valid, and of no use.
/// Nothing when a group fits nowhere. Knows nothing of the packers.
inline std::optional<problem_and_plan> random_plan(random& rng) {
  dyncp::problem prob = random_problem(rng);
  prob.limits.micro_batches = 0;
  prob.limits.no_idle_ranks = false;
  prob.limits.max_inflight_tokens = 0;
  if (!dyncp::check(prob)) return std::nullopt;
  std::map<std::int64_t, std::vector<std::int32_t>> parts;
  for (std::size_t i = 0; i < prob.sequences.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    const std::int64_t atom = prob.sequences[i].atom;
    parts[atom >= 0 ? atom : 1000 + index].push_back(index);
  }
  dyncp::plan plan{prob.parallel.ranks, prob.limits.max_tokens_per_rank, prob.padding, {}};
  const auto fits = [&](const dyncp::pack& pk) {
    const auto cap = static_cast<std::size_t>(prob.limits.max_sequences_per_pack);
    return dyncp::pack_load(pk, prob.sequences, prob.padding).tokens <=
               dyncp::pack_capacity(prob, pk.ranks.size) &&
           (cap == 0 || pk.sequences.size() <= cap);
  };
  const auto join = [&](const std::vector<std::int32_t>& part) {
    for (int attempt = 0; attempt < 3 && !plan.micro_batches.empty(); ++attempt) {
      auto& packs =
          plan.micro_batches[static_cast<std::size_t>(rng.between(
                                 0, static_cast<std::int64_t>(plan.micro_batches.size()) - 1))]
              .packs;
      if (packs.empty()) continue;
      dyncp::pack& pk = packs[static_cast<std::size_t>(
          rng.between(0, static_cast<std::int64_t>(packs.size()) - 1))];
      const std::size_t before = pk.sequences.size();
      pk.sequences.insert(pk.sequences.end(), part.begin(), part.end());
      if (fits(pk)) return true;
      pk.sequences.resize(before);
    }
    return false;
  };
  const std::vector<std::int32_t> sizes = dyncp::allowed_cp_sizes(prob.parallel);
  const auto open = [&](const std::vector<std::int32_t>& part) {
    const std::size_t first = static_cast<std::size_t>(rng.next() % sizes.size());
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const std::int32_t c = sizes[(first + k) % sizes.size()];
      const std::int32_t step = dyncp::is_power_of_two(c) ? c : 1;
      const auto at =
          static_cast<std::int32_t>(rng.between(0, (prob.parallel.ranks - c) / step) * step);
      const dyncp::pack pk{{at, c}, part};
      if (!fits(pk)) continue;
      for (dyncp::micro_batch& mb : plan.micro_batches) {
        const bool clash = std::any_of(mb.packs.begin(), mb.packs.end(), [&](const auto& other) {
          return other.ranks.overlaps(pk.ranks) ||
                 (prob.limits.uniform_cp && other.ranks.size != c);
        });
        if (clash || rng.one_in(3)) continue;
        mb.packs.push_back(pk);
        return true;
      }
      plan.micro_batches.push_back({{pk}});
      return true;
    }
    return false;
  };
  for (const auto& [atom, part] : parts) {
    if (!(rng.one_in(2) && join(part)) && !open(part)) return std::nullopt;
  }
  while (plan.num_micro_batches() % dyncp::micro_batch_multiple(prob) != 0) {
    plan.micro_batches.emplace_back();
  }
  return problem_and_plan{std::move(prob), std::move(plan)};
}

}  // namespace dyncp_test
