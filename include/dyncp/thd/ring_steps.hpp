// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/config.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Which rows of its slots a rank brings to a step.
enum class row_part : std::int32_t { none, all, front, back };

/// One step of ring attention: the queries of one rank against the keys of another.
///
/// Four shapes serve every ring: (all, all, causal) on the diagonal, (all, front, full) against
/// an earlier rank, (back, all, full) against a later one, (all, all, full) without a mask.
struct ring_step {
  row_part q = row_part::none;
  row_part kv = row_part::none;
  attention_mask mask = attention_mask::full;  ///< causal only on the diagonal

  friend constexpr bool operator==(const ring_step&, const ring_step&) = default;
};

/// The step in which `rank` meets the keys and values of `owner`.
///
/// Chosen by comparing owner with rank, never the number of the step, so that it holds for rings
/// in any order. A mask leaves nothing to do (none, none) only outside the zigzag layout.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr ring_step ring_step_of(layout_kind layout,
                                                                 attention_mask mask,
                                                                 std::int32_t rank,
                                                                 std::int32_t owner) noexcept {
  if (mask == attention_mask::full) return {row_part::all, row_part::all, attention_mask::full};
  if (owner == rank) return {row_part::all, row_part::all, attention_mask::causal};
  if (layout == layout_kind::zigzag) {
    return owner < rank ? ring_step{row_part::all, row_part::front, attention_mask::full}
                        : ring_step{row_part::back, row_part::all, attention_mask::full};
  }
  return owner < rank ? ring_step{row_part::all, row_part::all, attention_mask::full}
                      : ring_step{row_part::none, row_part::none, attention_mask::full};
}

/// Whose keys `rank` holds at step t of a ring that sends to rank + 1: its own first, then those
/// of the rank before, and so on.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t ring_owner(std::int32_t rank,
                                                                  std::int32_t step,
                                                                  std::int32_t cp) noexcept {
  const std::int32_t owner = (rank - step) % cp;
  return owner < 0 ? owner + cp : owner;
}

/// Whose keys `rank` holds at step t of a ring that runs back from where `ring_owner` ended: those
/// of rank + 1 first, its own last.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t ring_owner_back(std::int32_t rank,
                                                                       std::int32_t step,
                                                                       std::int32_t cp) noexcept {
  return (rank + 1 + step) % cp;
}

/// The work of one step on one sequence: q rows of the rank against kv rows of the owner.
///
/// Rows are local: of the rank's own q and of the k/v block that the owner sent. Padding is left
/// out. An empty q range needs no work; an empty kv range gives output 0 and log-sum-exp -inf.
struct attention_segment {
  std::int32_t q_row = 0;
  std::int32_t q_rows = 0;
  std::int32_t kv_row = 0;
  std::int32_t kv_rows = 0;

  friend constexpr bool operator==(const attention_segment&, const attention_segment&) = default;
};

/// Pairs of query and key that a segment computes. Under a causal mask q_rows = kv_rows.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int64_t attended_pairs(
    const attention_segment& segment, attention_mask mask) noexcept {
  const std::int64_t n = segment.q_rows;
  return mask == attention_mask::causal ? n * (n + 1) / 2 : n * segment.kv_rows;
}

namespace detail {

struct row_range {
  std::int32_t row = 0;
  std::int32_t rows = 0;
};

[[nodiscard]] DYNCP_HOST_DEVICE constexpr row_range valid_rows(const slot& s,
                                                               row_part part) noexcept {
  switch (part) {
    case row_part::all: return {s.front.row, s.valid()};
    case row_part::front: return {s.front.row, s.front.valid};
    case row_part::back: return {s.back.row, s.back.valid};
    case row_part::none: break;
  }
  return {s.front.row, 0};
}

}  // namespace detail

/// The segment of sequence `s` when `rank` of pack `q` meets `owner` of pack `kv`.
///
/// For self-attention both packs are the same. Cross-attention has two packs with the same
/// number of sequences and cp, and the full mask alone. Complexity: constant.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr attention_segment segment_of(
    const pack_view& q, const pack_view& kv, const ring_step& step, std::int32_t s,
    std::int32_t rank, std::int32_t owner) noexcept {
  const detail::row_range rows = detail::valid_rows(slot_of(q, s, rank), step.q);
  const detail::row_range keys = detail::valid_rows(slot_of(kv, s, owner), step.kv);
  return {rows.row, rows.rows, keys.row, keys.rows};
}

/// `segment_of` for every sequence, (sequences), empty ones included, so that the shape of the
/// table depends on nothing but the number of sequences.
[[nodiscard]] inline std::vector<attention_segment> segments_of(const pack_view& q,
                                                                const pack_view& kv,
                                                                const ring_step& step,
                                                                std::int32_t rank,
                                                                std::int32_t owner) {
  std::vector<attention_segment> segments(static_cast<std::size_t>(q.sequences));
  for (std::int32_t s = 0; s < q.sequences; ++s) {
    segments[static_cast<std::size_t>(s)] = segment_of(q, kv, step, s, rank, owner);
  }
  return segments;
}

}  // namespace v0
}  // namespace dyncp
