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
      if (place_all()) return plan_;
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
  // Where an item is, and from where on it has not been tried: the packs of a micro-batch first,
  // then new ones of each size, from rank `at` on.
  struct placement {
    std::size_t slot = 0;
    std::size_t pack = 0;
    std::int32_t size = 0;
    std::int32_t at = 0;
    bool opened = false;
    std::size_t before = 0;  // sequences in the pack that was joined
  };

  // Depth first, on a list instead of the stack: there may be thousands of items.
  [[nodiscard]] bool place_all() {
    std::vector<placement> placed(1, first_of(0));
    while (!placed.empty()) {
      const auto item = static_cast<std::int32_t>(placed.size()) - 1;
      if (!place(item, placed.back())) {
        if (steps_ <= 0) return false;
        placed.pop_back();
        if (!placed.empty()) take_back(placed.back());
      } else if (item + 1 < items_.count()) {
        placed.push_back(first_of(item + 1));
      } else {
        if (validate(plan_, prob_).empty()) return true;
        take_back(placed.back());
      }
    }
    return false;
  }

  [[nodiscard]] placement first_of(std::int32_t item) const {
    placement first;
    first.size = items_.least_size[static_cast<std::size_t>(item)];
    return first;
  }

  // The next place with room; false when there is none, or no step is left.
  [[nodiscard]] bool place(std::int32_t item, placement& next) {
    const auto members = items_.members_of(item);
    for (; next.slot < plan_.micro_batches.size(); ++next.slot) {
      auto& packs = plan_.micro_batches[next.slot].packs;
      while (next.pack < packs.size()) {
        if (--steps_ <= 0) return false;
        pack& joined = packs[next.pack++];
        next.before = joined.sequences.size();
        next.opened = false;
        joined.sequences.insert(joined.sequences.end(), members.begin(), members.end());
        if (fits(joined)) return true;
        joined.sequences.resize(next.before);
      }
      for (; next.size < items_.num_sizes(); ++next.size, next.at = 0) {
        const std::int32_t c = items_.sizes[static_cast<std::size_t>(next.size)];
        if (prob_.limits.uniform_cp && !packs.empty() && packs[0].ranks.size != c) continue;
        while (next.at + c <= prob_.parallel.ranks) {
          const rank_range ranks{next.at, c};
          next.at += is_power_of_two(c) ? c : 1;
          const bool taken = std::any_of(packs.begin(), packs.end(), [&](const pack& other) {
            return other.ranks.overlaps(ranks);
          });
          if (taken) continue;
          if (--steps_ <= 0) return false;
          next.opened = true;
          packs.push_back({ranks, {members.begin(), members.end()}});
          if (fits(packs.back())) return true;
          packs.pop_back();
        }
      }
      next.pack = 0;
      next.size = items_.least_size[static_cast<std::size_t>(item)];
      next.at = 0;
    }
    return false;
  }

  void take_back(const placement& last) {
    auto& packs = plan_.micro_batches[last.slot].packs;
    if (last.opened) {
      packs.pop_back();
    } else {
      packs[last.pack - 1].sequences.resize(last.before);
    }
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
