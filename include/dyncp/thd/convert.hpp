// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Consecutive rows of the whole pack in consecutive rows of one rank.
struct packed_run {
  std::int32_t packed = 0;
  std::int32_t rank = 0;
  std::int32_t row = 0;
  std::int32_t rows = 0;

  friend constexpr bool operator==(const packed_run&, const packed_run&) = default;
};

/// All rows of a pack as runs, ascending in packed order, without gap or overlap.
///
/// Padding and tail included. Complexity: n log n in the runs, at most sequences * 2 * cp + cp.
[[nodiscard]] inline std::vector<packed_run> packed_runs(const pack_view& pack) {
  std::vector<packed_run> runs;
  const std::int32_t share = pack.local_rows();
  if (pack.layout == layout_kind::row_split) {
    for (std::int32_t rank = 0; rank < pack.cp && share > 0; ++rank) {
      runs.push_back({rank * share, rank, 0, share});
    }
    return runs;
  }
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    for (std::int32_t rank = 0; rank < pack.cp; ++rank) {
      const slot rows = slot_of(pack, s, rank);
      for (const row_run& run : {rows.front, rows.back}) {
        if (run.rows > 0) {
          runs.push_back({pack.cu_padded[s] + run.position, rank, run.row, run.rows});
        }
      }
    }
  }
  const std::int32_t first = pack.sequence_rows();
  const std::int32_t tail = (pack.tokens - first) / pack.cp;
  for (std::int32_t rank = 0; rank < pack.cp && tail > 0; ++rank) {
    runs.push_back({first + rank * tail, rank, first / pack.cp, tail});
  }
  std::sort(runs.begin(), runs.end(),
            [](const packed_run& a, const packed_run& b) { return a.packed < b.packed; });
  return runs;
}

/// Rows that move from one place to another when the layout of a pack changes.
struct row_move {
  std::int32_t from_rank = 0;
  std::int32_t from_row = 0;
  std::int32_t to_rank = 0;
  std::int32_t to_row = 0;
  std::int32_t rows = 0;

  friend constexpr bool operator==(const row_move&, const row_move&) = default;
};

/// The moves that turn layout `from` of a pack into layout `to`, in packed order.
///
/// Every row of every rank is the source of one move and the target of one. Rank r sends the
/// moves with from_rank r and receives those with to_rank r; as the order is the same on all ranks,
/// the rows between two ranks can travel in one message. From zigzag to contiguous, a rank sends
/// its front to one rank and its back to one.
/// Requires the two views to have the same sequences, tokens and cp. Complexity: n log n in runs.
[[nodiscard]] inline std::vector<row_move> conversion(const pack_view& from, const pack_view& to) {
  DYNCP_ASSERT(from.tokens == to.tokens && from.cp == to.cp);
  const std::vector<packed_run> sources = packed_runs(from);
  const std::vector<packed_run> targets = packed_runs(to);
  std::vector<row_move> moves;
  std::size_t i = 0;
  std::size_t j = 0;
  std::int32_t packed = 0;
  while (i < sources.size() && j < targets.size()) {
    const packed_run& source = sources[i];
    const packed_run& target = targets[j];
    const std::int32_t source_end = source.packed + source.rows;
    const std::int32_t target_end = target.packed + target.rows;
    const std::int32_t end = std::min(source_end, target_end);
    moves.push_back({source.rank, source.row + (packed - source.packed), target.rank,
                     target.row + (packed - target.packed), end - packed});
    packed = end;
    if (source_end == end) ++i;
    if (target_end == end) ++j;
  }
  return moves;
}

}  // namespace v0
}  // namespace dyncp
