// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dyncp {
inline namespace v0 {

/// The baseline that Dynamic-CP is measured against: next-fit packing at the static CP size.
///
/// 1. Sequences are taken in order; a pack is closed when the next one does not fit in
///    limit * cp padded tokens, or in `pack_tokens` where that is less (or over the sequence cap).
/// 2. The number of packs is raised to a multiple of dp (times the micro-batch multiple): the last
///    pack with more than one sequence gives its last one to a new pack, until the number is right
///    or no pack can give; lanes that stay empty are idle.
/// 3. Pack i*dp + j goes to lane j (ranks j*cp .. j*cp + cp-1) of micro-batch i.
/// Errors: sequence_too_long, infeasible for an atomic group; not_found when the fixed M, idle
/// ranks or the tokens in flight rule the plan out; unsupported when cp is not an allowed size.
/// Source: Megatron-LM's `dp_balanced` scheduler, by its description; reproduces its plans. O(n).
struct packing_only {
  static constexpr std::string_view name = "packing_only";

  std::int64_t pack_tokens = 0;  ///< padded tokens of a pack; 0: limit * cp

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    if (auto ok = detail::check_static_cp(prob, name); !ok) return ok.error();
    const std::int64_t capacity = detail::static_capacity(prob, pack_tokens);
    auto items = detail::static_items(prob, prob.parallel.static_cp, capacity);
    if (!items) return items.error();
    const detail::static_bins bins(prob, *items, capacity);
    detail::item_packs packs;
    load sum;
    for (std::size_t i = 0; i < items->size(); ++i) {
      const auto item = static_cast<std::int32_t>(i);
      if (packs.empty() || !bins.fits(sum, item)) {
        packs.emplace_back();
        sum = {};
      }
      packs.back().push_back(item);
      sum += (*items)[i].sum;
    }
    detail::raise_to_whole(prob, packs);
    return detail::settle(prob, detail::deal_to_lanes(prob, *items, packs), name);
  }
};

}  // namespace v0
}  // namespace dyncp
