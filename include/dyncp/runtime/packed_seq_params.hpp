// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/group_handle.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/thd/pack_view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// What attention, RoPE and the loss need to know of the pack that a rank works on. It travels
/// with its micro-batch: nothing reads a CP size or group from anywhere else (a static one there
/// gave NaN and illegal accesses, Megatron#6821).
///
/// Megatron's field names stand beside: cu_seqlens_q = cu_seqlens_kv = cu().real,
/// cu_seqlens_q_padded = cu().padded, max_seqlen_q = max_length(), local_cp_size = cp_size(),
/// cp_group = group.
///
/// A value; const members may be called concurrently.
struct packed_seq_params {
  pack_layout layout;                      ///< lengths, padding, tokens, cp size, zigzag or not
  group_handle group;                      ///< ranks, and this one's place among them
  std::vector<std::int64_t> sequence_ids;  ///< (sequences), the caller's, in THD order
  std::int32_t micro_batch = 0;            ///< its place in the plan

  [[nodiscard]] std::int32_t cp_size() const noexcept { return group.size(); }
  [[nodiscard]] std::int32_t cp_rank() const noexcept { return group.index; }
  [[nodiscard]] const cu_seqlens& cu() const noexcept { return layout.cu(); }
  [[nodiscard]] std::int32_t max_length() const noexcept { return layout.max_length(); }
  [[nodiscard]] std::int32_t max_padded_length() const noexcept {
    return layout.max_padded_length();
  }
  /// Rows of the pack, padding and tail included; this rank holds local_tokens() of them.
  [[nodiscard]] std::int32_t total_tokens() const noexcept { return layout.tokens(); }
  [[nodiscard]] std::int32_t local_tokens() const noexcept { return view().local_rows(); }
  [[nodiscard]] pack_view view() const noexcept { return layout.view(); }
};

/// The parameters of a pack of sequences with these ids and lengths (tokens), in THD order.
///
/// Errors: invalid_argument for ids and lengths that do not pair up; those of `pack_layout::make`.
[[nodiscard]] inline result<packed_seq_params> make_packed_seq_params(
    std::span<const std::int64_t> ids, std::span<const std::int64_t> lengths,
    const group_handle& group, layout_kind layout, const padding_rule& padding,
    std::int32_t micro_batch = 0) {
  if (ids.size() != lengths.size()) {
    return error{errc::invalid_argument,
                 std::to_string(ids.size()) + " sequence ids for " +
                     std::to_string(lengths.size()) + " lengths",
                 static_cast<std::int64_t>(ids.size()), static_cast<std::int64_t>(lengths.size()),
                 "give one id for each length"};
  }
  auto pack = pack_layout::make(lengths, layout, group.size(), padding);
  if (!pack) return std::move(pack).error();
  return packed_seq_params{std::move(*pack), group, {ids.begin(), ids.end()}, micro_batch};
}

}  // namespace v0
}  // namespace dyncp
