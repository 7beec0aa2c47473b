// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// What a plan must keep to. Zero means "no limit" where a default of 0 stands.
struct plan_limits {
  std::int64_t max_tokens_per_rank = 0;    ///< padded tokens of a pack over its ranks; required
  std::int64_t max_inflight_tokens = 0;    ///< padded tokens per rank in flight on any stage
  std::int32_t max_sequences_per_pack = 0;
  std::int32_t micro_batches = 0;          ///< fixed M; 0: the planner chooses
  std::int32_t micro_batch_multiple = 1;   ///< M is a multiple of this (interleaving group)
  bool no_idle_ranks = false;              ///< every rank has a pack in every micro-batch (EP)
  bool uniform_cp = false;                 ///< one CP size within a micro-batch

  friend bool operator==(const plan_limits&, const plan_limits&) = default;
};

/// The most micro-batches that are planned.
inline constexpr std::int32_t max_micro_batches = 1 << 20;

/// cu_seqlens are int32: the padded tokens of one pack.
inline constexpr std::int64_t max_pack_tokens = (std::int64_t{1} << 31) - 1;

}  // namespace v0
}  // namespace dyncp
