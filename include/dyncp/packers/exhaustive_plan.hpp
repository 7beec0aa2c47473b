// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// The first plan of all that there are, for small batches under constraints on M or idleness
/// that defeat the search: every item in every pack and in every group that could be opened.
///
/// Errors: infeasible when all were tried; not_found after `steps` placements.
class exhaustive_plan {
 public:
  exhaustive_plan(const problem& prob, const item_table& items, std::int64_t steps)
      : prob_(prob), items_(items), steps_(steps) {}

  [[nodiscard]] result<plan> find() {
    const std::int32_t multiple = micro_batch_multiple(prob_);
    const std::int32_t fixed = prob_.limits.micro_batches;
    // Micro-batches without idle ranks hold an item each.
    const std::int32_t most = fixed > 0 ? fixed : items_.count();
    for (std::int32_t m = fixed > 0 ? fixed : multiple; m <= most; m += multiple) {
      plan_ = {prob_.parallel.ranks, prob_.limits.max_tokens_per_rank, prob_.padding, {}};
      plan_.micro_batches.resize(static_cast<std::size_t>(m));
      if (place(0)) return plan_;
      if (steps_ <= 0) {
        return make_error(errc::not_found,
                          "the search for a plan under these constraints was cut short",
                          "allow idle ranks, or let the planner choose the micro-batches");
      }
    }
    return make_error(errc::infeasible,
                      "no plan keeps every rank busy (or M fixed) with these sequences",
                      "allow idle ranks, other CP sizes, or another number of micro-batches");
  }

 private:
  [[nodiscard]] bool place(std::int32_t item) {
    if (item == items_.count()) return validate(plan_, prob_).empty();
    const auto members = items_.members_of(item);
    // By index throughout: deeper calls move the packs.
    for (std::size_t j = 0; j < plan_.micro_batches.size(); ++j) {
      auto& packs = plan_.micro_batches[j].packs;
      for (std::size_t g = 0; g < packs.size(); ++g) {
        if (--steps_ <= 0) return false;
        const std::size_t before = packs[g].sequences.size();
        packs[g].sequences.insert(packs[g].sequences.end(), members.begin(), members.end());
        if (fits(packs[g]) && place(item + 1)) return true;
        packs[g].sequences.resize(before);
      }
      for (std::int32_t k = items_.least_size[static_cast<std::size_t>(item)];
           k < items_.num_sizes(); ++k) {
        const std::int32_t c = items_.sizes[static_cast<std::size_t>(k)];
        if (prob_.limits.uniform_cp && !packs.empty() && packs[0].ranks.size != c) continue;
        const std::int32_t step = is_power_of_two(c) ? c : 1;
        for (std::int32_t at = 0; at + c <= prob_.parallel.ranks; at += step) {
          const bool taken = std::any_of(packs.begin(), packs.end(), [&](const pack& other) {
            return other.ranks.overlaps({at, c});
          });
          if (taken) continue;
          if (--steps_ <= 0) return false;
          packs.push_back({{at, c}, {members.begin(), members.end()}});
          if (fits(packs.back()) && place(item + 1)) return true;
          packs.pop_back();
        }
      }
    }
    return false;
  }

  [[nodiscard]] bool fits(const pack& pk) const {
    const std::int32_t cap = prob_.limits.max_sequences_per_pack;
    return pack_load(pk, prob_.sequences, prob_.padding).tokens <=
               pack_capacity(prob_, pk.ranks.size) &&
           (cap == 0 || pk.sequences.size() <= static_cast<std::size_t>(cap));
  }

  const problem& prob_;
  const item_table& items_;
  std::int64_t steps_;
  plan plan_;
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
