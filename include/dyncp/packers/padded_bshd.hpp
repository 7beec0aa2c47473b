// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// No packing at all: rows of one length, as in the layout [batch, sequence, heads, dim].
///
/// 1. The row length is that of the longest sequence of the batch, or `row_tokens` when that is
///    more (a trainer's fixed sequence length), rounded up to the alignment.
/// 2. In batch order, each lane of static_cp ranks gets `sequences_per_micro_batch` rows in each
///    micro-batch: M = ceil(gbs / (dp * mbs)), rounded up to the micro-batch multiple.
///
/// The padding is real: it is the padding rule of the plan that says so (every sequence is padded
/// to a multiple of the row length), and limit check, cost, layout and messages follow that rule.
/// So the rows of a whole batch are equal; padding each micro-batch to its own longest sequence
/// would need a rule for each pack, which plans do not have. FLOPs reports count real lengths.
/// Errors: sequence_too_long when a row exceeds a pack's limit; infeasible when mbs rows do;
/// unsupported for atomic groups, rows over 2^24 tokens, and a cp that is not allowed; not_found as
/// `packing_only`. Complexity: O(n).
struct padded_bshd {
  static constexpr std::string_view name = "padded_bshd";

  std::int32_t sequences_per_micro_batch = 1;  ///< mbs, of one lane
  std::int64_t row_tokens = 0;                 ///< least length of a row

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    if (auto ok = detail::check_static_cp(prob, name); !ok) return ok.error();
    if (auto ok = detail::check_no_atoms(prob, name); !ok) return ok.error();
    const std::int32_t cp = prob.parallel.static_cp;
    std::size_t longest = 0;
    for (std::size_t i = 0; i < prob.sequences.size(); ++i) {
      if (prob.sequences[i].length > prob.sequences[longest].length) longest = i;
    }
    problem rows = prob;
    const std::int64_t row =
        round_up(std::max(prob.sequences[longest].length, row_tokens),
                 alignment(prob.padding, cp));
    rows.padding.multiple = row;
    if (padded_pack_tokens(rows.padding, cp, row) > pack_capacity(prob, cp)) {
      return too_long_error(rows, static_cast<std::int64_t>(longest), cp);
    }
    if (row > (std::int64_t{1} << 24)) {
      return error{errc::unsupported, "padded_bshd makes rows of " + std::to_string(row) +
                   " tokens", row, std::int64_t{1} << 24, "use a packer"};
    }
    if (auto ok = check_rows(rows, row); !ok) return ok.error();

    const auto mbs = static_cast<std::size_t>(sequences_per_micro_batch);
    const auto lanes = static_cast<std::size_t>(prob.parallel.ranks / cp);
    plan out = detail::blank_plan(rows);
    for (std::size_t i = 0; i < prob.sequences.size(); ++i) {
      const std::size_t cell = i / mbs;
      if (i % (mbs * lanes) == 0) out.micro_batches.emplace_back();
      if (i % mbs == 0) {
        const auto lane = static_cast<std::int32_t>(cell % lanes);
        out.micro_batches.back().packs.push_back({{lane * cp, cp}, {}});
      }
      out.micro_batches.back().packs.back().sequences.push_back(static_cast<std::int32_t>(i));
    }
    return detail::settle(rows, std::move(out), name);
  }

 private:
  [[nodiscard]] result<void> check_rows(const problem& rows, std::int64_t row) const {
    const std::int32_t cp = rows.parallel.static_cp;
    const std::int32_t mbs = sequences_per_micro_batch;
    if (mbs < 1) {
      return error{errc::invalid_argument, "padded_bshd has " + std::to_string(mbs) +
                   " sequences in a micro-batch", mbs, 1, "use 1 or more"};
    }
    const std::int32_t cap = rows.limits.max_sequences_per_pack;
    const std::int64_t capacity = pack_capacity(rows, cp);
    // Beyond the limit at twice the rows, the product needs no look.
    const bool fits = mbs <= capacity / row &&
                      padded_pack_tokens(rows.padding, cp, mbs * row) <= capacity;
    if (!fits || (cap > 0 && mbs > cap)) {
      return error{errc::infeasible,
                   std::to_string(mbs) + " rows of " + std::to_string(row) +
                       " tokens exceed a pack",
                   mbs, capacity / row, "lower the sequences of a micro-batch"};
    }
    return {};
  }
};

}  // namespace v0
}  // namespace dyncp
