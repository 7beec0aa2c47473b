// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// A plan that exists whenever each item fits alone: one item a group, first-fit over the ranks of
/// the current micro-batch, and empty micro-batches between those that together exceed the tokens
/// in flight. Slow to train, so only for budgets under which nothing better was found.
///
/// Errors: infeasible when an item alone exceeds the tokens in flight; not_found when the fixed M
/// is too small for it. Complexity: O(items * ranks).
[[nodiscard]] inline result<plan> spaced_plan(const problem& prob, const item_table& items) {
  plan out{prob.parallel.ranks, prob.limits.max_tokens_per_rank, prob.padding, {}};
  const std::int64_t budget = prob.limits.max_inflight_tokens;
  const pipeline pipe{prob.parallel.pp, prob.parallel.vpp};
  // Micro-batches that a stage may hold at once: that many apart, two never meet.
  const std::int64_t window =
      pipe.chunks == 1 ? pipe.stages : 2 * (pipe.stages - 1) + pipe.stages * pipe.chunks;
  std::vector<char> used;
  std::vector<std::int64_t> fullest;  // (M): tokens of the fullest rank
  std::int32_t size_now = 0;
  for (std::int32_t i = 0; i < items.count(); ++i) {
    std::int32_t k = items.least_size[static_cast<std::size_t>(i)];
    const auto shard = [&](std::int32_t size) {
      const std::int32_t c = items.sizes[static_cast<std::size_t>(size)];
      return ceil_div(padded_pack_tokens(prob.padding, c, items.load_of(i, size).tokens), c);
    };
    while (budget > 0 && shard(k) > budget && k + 1 < items.num_sizes()) ++k;
    if (budget > 0 && shard(k) > budget) {
      const sequence& s = prob.sequences[static_cast<std::size_t>(items.members_of(i)[0])];
      return error{errc::infeasible,
                   "sequence " + std::to_string(s.id) + " (" + std::to_string(s.length) +
                       " tokens) alone exceeds the tokens in flight",
                   shard(k), budget,
                   "raise --max-inflight-tokens to " + std::to_string(shard(k)) +
                       " or allow larger CP groups"};
    }
    const std::int32_t c = items.sizes[static_cast<std::size_t>(k)];
    const auto open = [&] {
      std::int64_t held = shard(k);
      for (std::int64_t back = 1; budget > 0 && back < window; ++back) {
        if (static_cast<std::int64_t>(fullest.size()) < back) break;
        held += fullest[fullest.size() - static_cast<std::size_t>(back)];
      }
      for (std::int64_t gap = 1; held > budget && budget > 0 && gap < window; ++gap) {
        out.micro_batches.emplace_back();
        fullest.push_back(0);
      }
      out.micro_batches.emplace_back();
      fullest.push_back(0);
      used.assign(static_cast<std::size_t>(prob.parallel.ranks), 0);
      size_now = c;
    };
    const auto find = [&] {
      const std::int32_t step = is_power_of_two(c) ? c : 1;
      for (std::int32_t at = 0; at + c <= prob.parallel.ranks; at += step) {
        if (std::find(used.begin() + at, used.begin() + at + c, 1) == used.begin() + at + c) {
          return at;
        }
      }
      return -1;
    };
    const bool other_size = prob.limits.uniform_cp && size_now != c;
    // Under a budget each micro-batch holds one item: the sum in flight is then known.
    if (used.empty() || other_size || budget > 0 || find() < 0) open();
    const std::int32_t at = find();
    std::fill(used.begin() + at, used.begin() + at + c, char{1});
    const auto members = items.members_of(i);
    out.micro_batches.back().packs.push_back({{at, c}, {members.begin(), members.end()}});
    fullest.back() = std::max(fullest.back(), shard(k));
  }
  for (micro_batch& mb : out.micro_batches) {
    std::sort(mb.packs.begin(), mb.packs.end(), [](const pack& a, const pack& b) {
      return a.ranks.begin < b.ranks.begin;
    });
  }
  return out;
}

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
