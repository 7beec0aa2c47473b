// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/log_sink.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/trainer/micro_batch_log.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

namespace dyncp {
inline namespace v0 {

/// Which CP sizes the plans of a run used, and why: for the question that every user asks first,
/// why it is always 1, or always the largest. A value; belongs to one thread.
class cp_mix {
 public:
  /// Of plans with this budget per rank and largest group. Requires both to be 1 or more, as those
  /// of any plan are.
  cp_mix(std::int64_t max_tokens_per_rank, std::int32_t max_cp)
      : budget_(max_tokens_per_rank), max_cp_(max_cp) {
    DYNCP_ASSERT(max_tokens_per_rank > 0 && max_cp > 0);
  }

  void add(const plan_layout& layout) {
    for (const placed_pack& p : layout.packs()) {
      const std::int64_t padded = p.layout.max_padded_length();
      const std::int64_t needed = next_power_of_two(std::max<std::int64_t>(
          1, ceil_div(padded, budget_)));
      use& u = sizes_[p.ranks.size];
      u.packs += 1;
      u.sequences += static_cast<std::int64_t>(p.sequences.size());
      u.tokens += p.layout.cu().real.back();
      packs_ += 1;
      if (needed >= p.ranks.size) {
        shortest_forced_ = by_length_ == 0 ? padded : std::min(shortest_forced_, padded);
        by_length_ += 1;
      }
      by_coverage_ += needed < p.ranks.size && p.sequences.size() == 1 ? 1 : 0;
      longest_ = std::max<std::int64_t>(longest_, p.layout.max_length());
    }
  }

  [[nodiscard]] bool always(std::int32_t cp) const noexcept {
    return sizes_.size() == 1 && sizes_.begin()->first == cp;
  }

  /// "cp 1: 12 packs, 75 % of tokens; cp 4: 3 packs, 25 % of tokens", and the reason if the size is
  /// the same throughout.
  [[nodiscard]] std::string text() const {
    if (packs_ == 0) return "no micro-batch yet";
    int128 all = 0;
    for (const auto& [cp, u] : sizes_) all += u.tokens;
    std::string out;
    for (const auto& [cp, u] : sizes_) {
      const auto share =
          all > 0 ? static_cast<std::int64_t>((200 * u.tokens + all) / (2 * all)) : 0;
      out += (out.empty() ? "cp " : "; cp ") + std::to_string(cp) + ": " +
             detail::counted(u.packs, "pack") + ", " + detail::counted(u.sequences, "sequence") +
             ", " + std::to_string(share) + " % of tokens";
    }
    if (max_cp_ > 1 && always(1)) return out + ". " + why_one();
    if (max_cp_ > 1 && always(max_cp_)) return out + ". " + why_largest();
    return out;
  }

  /// Sends `text` to the sink. Errors: callback_failed.
  [[nodiscard]] result<void> log(const log_sink& sink) const {
    return log_to(sink, log_level::info, "dynamic_cp", text());
  }

 private:
  struct use {
    std::int64_t packs = 0;
    std::int64_t sequences = 0;
    int128 tokens = 0;
  };

  [[nodiscard]] std::string why_one() const {
    return "cp is always 1 because no sequence exceeds the budget of one rank: the longest has " +
           std::to_string(longest_) + " of " + std::to_string(budget_) +
           " tokens; a budget below " + std::to_string(longest_) +
           " would spread the longest, or dynamic CP is not needed for this data";
  }

  [[nodiscard]] std::string why_largest() const {
    const std::string head = "cp is always " + std::to_string(max_cp_) + " because ";
    if (by_length_ * 2 >= packs_) {
      return head + "the longest sequence of most packs needs it: the shortest of these has " +
             std::to_string(shortest_forced_) + " padded tokens, over " +
             std::to_string(budget_ * max_cp_ / 2) + " that cp " + std::to_string(max_cp_ / 2) +
             " holds; raise the budget to " +
             std::to_string(ceil_div(2 * shortest_forced_, max_cp_)) +
             " for smaller groups, or let packs mix CP sizes";
    }
    if (by_coverage_ * 2 >= packs_) {
      return head + "micro-batches have fewer sequences than there are groups to fill: a larger "
             "global batch, or a larger budget for fewer micro-batches, gives every group one";
    }
    return head + "smaller groups would exceed the budget of " + std::to_string(budget_) +
           " tokens, or a limit of the plan, in some pack of their micro-batch; raise it";
  }

  std::int64_t budget_;
  std::int32_t max_cp_;
  std::map<std::int32_t, use> sizes_;
  std::int64_t packs_ = 0;
  std::int64_t by_length_ = 0;
  std::int64_t by_coverage_ = 0;
  std::int64_t longest_ = 0;
  std::int64_t shortest_forced_ = 0;  // longest sequence of a pack that needs its size, the least
};

}  // namespace v0
}  // namespace dyncp
