// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/runtime/group_handle.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/thd/pack_layout.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// What every pipeline stage and tensor rank of one rank knows of a micro-batch: all of
/// `packed_seq_params` but the group handle, which belongs to a pool and is asked for by `bind`.
struct micro_batch_metadata {
  rank_range ranks;                        ///< the CP group; size 0: this rank is idle
  pack_layout layout;                      ///< lengths, padding, tokens; empty when idle
  std::vector<std::int64_t> sequence_ids;  ///< (sequences), in THD order

  [[nodiscard]] bool idle() const noexcept { return ranks.size == 0; }
};

/// One iteration as one rank of the DPxCP domain sees it, the same on all its pp * tp processes.
///
/// A value; copies are independent, const members may be called concurrently.
struct step_metadata {
  std::int64_t iteration = 0;
  std::uint64_t digest = 0;      ///< of problem and plan, as compared by the ranks
  std::int32_t rank = 0;         ///< of the DPxCP domain
  std::int32_t num_ranks = 1;
  length_sums sums;              ///< of the real lengths of the whole batch, for FLOPs and rates
  std::vector<micro_batch_metadata> micro_batches;

  [[nodiscard]] std::int32_t num_micro_batches() const noexcept {
    return static_cast<std::int32_t>(micro_batches.size());
  }
};

/// What `rank` is told of a plan that was laid out. Linear in its sequences and micro-batches.
[[nodiscard]] inline step_metadata make_step_metadata(const plan_layout& layout, std::int32_t rank,
                                                      std::int64_t iteration,
                                                      std::uint64_t digest) {
  step_metadata out;
  out.iteration = iteration;
  out.digest = digest;
  out.rank = rank;
  out.num_ranks = layout.num_ranks();
  for (const std::int64_t length : layout.lengths()) {
    out.sums.tokens += length;
    out.sums.squares += int128{length} * length;
    out.sums.count += 1;
    if (length > out.sums.longest) out.sums.longest = length;
  }
  out.micro_batches.resize(static_cast<std::size_t>(layout.num_micro_batches()));
  for (std::int32_t m = 0; m < layout.num_micro_batches(); ++m) {
    const placed_pack* const p = layout.pack_at(rank, m);
    if (p == nullptr) continue;
    micro_batch_metadata& mb = out.micro_batches[static_cast<std::size_t>(m)];
    mb.ranks = p->ranks;
    mb.layout = p->layout;
    for (const std::int32_t s : p->sequences) mb.sequence_ids.push_back(layout.id(s));
  }
  return out;
}

/// The parameters of micro-batch `m` for attention, RoPE and the loss, on the caller's own group;
/// nothing if the rank is idle. `group_of(rank_range) -> result<group_handle>` is `pool.group`, or
/// a function of a trainer that has groups of its own.
///
/// Errors: invalid_argument for a micro-batch that does not exist; those of `group_of`; mismatch if
/// its group is another one, since a smaller group is never an answer (Megatron-LM#5679).
template <class GroupOf>
[[nodiscard]] result<std::optional<packed_seq_params>> bind(const step_metadata& step,
                                                            std::int32_t m, GroupOf&& group_of) {
  if (m < 0 || m >= step.num_micro_batches()) {
    return error{errc::invalid_argument, "micro-batch " + std::to_string(m) + " of " +
                 std::to_string(step.num_micro_batches()), m, step.num_micro_batches(),
                 "iterations have numbers of micro-batches of their own: ask the step for it"};
  }
  const micro_batch_metadata& mb = step.micro_batches[static_cast<std::size_t>(m)];
  if (mb.idle()) return std::optional<packed_seq_params>{};
  result<group_handle> group = group_of(mb.ranks);
  if (!group) return std::move(group).error();
  if (group->ranks != mb.ranks || group->index != step.rank - mb.ranks.begin) {
    return error{errc::mismatch, "micro-batch " + std::to_string(m) + " runs on ranks " +
                 std::to_string(mb.ranks.begin) + ".." + std::to_string(mb.ranks.end() - 1) +
                 ", but the group given for it has " + std::to_string(group->size()) +
                 " ranks from " + std::to_string(group->ranks.begin), group->size(), mb.ranks.size,
                 "return the group of exactly these ranks"};
  }
  return std::optional<packed_seq_params>(
      packed_seq_params{mb.layout, *group, mb.sequence_ids, m});
}

}  // namespace v0
}  // namespace dyncp
