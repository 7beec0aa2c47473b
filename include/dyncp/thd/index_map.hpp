// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/cu_seqlens.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>
#include <dyncp/thd/zigzag.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A row of a rank of the CP group.
struct rank_row {
  std::int32_t rank = 0;
  std::int32_t row = 0;

  friend constexpr bool operator==(const rank_row&, const rank_row&) = default;
};

/// What a row holds. Rows of the tail have sequence = pack.sequences and position 0.
struct token_ref {
  std::int32_t sequence = 0;
  std::int32_t position = 0;  ///< in its sequence, padding counted behind the last token
  bool valid = false;         ///< a token, not padding

  friend constexpr bool operator==(const token_ref&, const token_ref&) = default;
};

/// The rank and local row of the row at `position` of sequence `s`, padding included.
///
/// Requires s < sequences, position < padded(s). Complexity: constant.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr rank_row locate(const pack_view& pack, std::int32_t s,
                                                          std::int32_t position) noexcept {
  const std::int32_t padded = pack.padded(s);
  const std::int32_t offset = pack.cu_padded[s];
  if (pack.layout == layout_kind::row_split) {
    const std::int32_t share = pack.local_rows();
    return {(offset + position) / share, (offset + position) % share};
  }
  if (pack.layout == layout_kind::contiguous) {
    const std::int32_t share = padded / pack.cp;
    return {position / share, offset / pack.cp + position % share};
  }
  const std::int32_t tokens = zigzag::chunk_tokens(padded, pack.cp);
  const std::int32_t chunk = position / tokens;
  return {zigzag::owner_of_chunk(chunk, pack.cp),
          offset / pack.cp + position % tokens + (chunk >= pack.cp ? tokens : 0)};
}

/// The rank and local row of row `packed` of the whole pack.
///
/// Requires packed < tokens. The tail is cut in equal runs over the ranks. Complexity: logarithmic
/// in the sequences. Inverse of `packed_row`.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr rank_row local_row(const pack_view& pack,
                                                             std::int32_t packed) noexcept {
  if (pack.layout == layout_kind::row_split) {
    return {packed / pack.local_rows(), packed % pack.local_rows()};
  }
  const std::int32_t s = sequence_at(pack.cu_padded, pack.sequences, packed);
  if (s == pack.sequences) {
    const std::int32_t share = (pack.tokens - pack.sequence_rows()) / pack.cp;
    const std::int32_t i = packed - pack.sequence_rows();
    return {i / share, pack.sequence_rows() / pack.cp + i % share};
  }
  return locate(pack, s, packed - pack.cu_padded[s]);
}

/// The sequence that local row `row` of `rank` belongs to; pack.sequences for the tail.
///
/// Requires rank < cp, row < local_rows(). Complexity: logarithmic in the sequences.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t sequence_of_row(const pack_view& pack,
                                                                       std::int32_t rank,
                                                                       std::int32_t row) noexcept {
  // Zigzag and contiguous slots begin at cu_padded / cp on every rank, exactly.
  const std::int32_t packed =
      pack.layout == layout_kind::row_split ? rank * pack.local_rows() + row : row * pack.cp;
  return sequence_at(pack.cu_padded, pack.sequences, packed);
}

/// What local row `row` of `rank` holds. Complexity: logarithmic in the sequences.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr token_ref token_at(const pack_view& pack,
                                                             std::int32_t rank,
                                                             std::int32_t row) noexcept {
  const std::int32_t s = sequence_of_row(pack, rank, row);
  if (s == pack.sequences) return {s, 0, false};
  const slot rows = slot_of(pack, s, rank);
  const std::int32_t i = row - rows.row();
  const std::int32_t position =
      i < rows.front.rows ? rows.front.position + i : rows.back.position + (i - rows.front.rows);
  return {s, position, position < pack.length(s)};
}

/// The row of the whole pack that local row `row` of `rank` holds. Inverse of `local_row`.
///
/// Requires rank < cp, row < local_rows(). Complexity: logarithmic in the sequences.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t packed_row(const pack_view& pack,
                                                                  std::int32_t rank,
                                                                  std::int32_t row) noexcept {
  if (pack.layout == layout_kind::row_split) return rank * pack.local_rows() + row;
  const token_ref token = token_at(pack, rank, row);
  if (token.sequence < pack.sequences) return pack.cu_padded[token.sequence] + token.position;
  const std::int32_t share = (pack.tokens - pack.sequence_rows()) / pack.cp;
  return pack.sequence_rows() + rank * share + (row - pack.sequence_rows() / pack.cp);
}

/// `packed_row` for each local row of `rank`, (local_rows): the index list of a gather.
///
/// Rows of the same sequence ascend. Complexity: linear.
[[nodiscard]] inline std::vector<std::int32_t> packed_rows(const pack_view& pack,
                                                           std::int32_t rank) {
  std::vector<std::int32_t> index(static_cast<std::size_t>(pack.local_rows()));
  std::size_t next = 0;
  if (pack.layout == layout_kind::row_split) {
    for (; next < index.size(); ++next) {
      index[next] = rank * pack.local_rows() + static_cast<std::int32_t>(next);
    }
    return index;
  }
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const slot rows = slot_of(pack, s, rank);
    for (const row_run& run : {rows.front, rows.back}) {
      for (std::int32_t i = 0; i < run.rows; ++i) {
        index[next++] = pack.cu_padded[s] + run.position + i;
      }
    }
  }
  const std::int32_t share = (pack.tokens - pack.sequence_rows()) / pack.cp;
  for (std::int32_t i = 0; next < index.size(); ++i) {
    index[next++] = pack.sequence_rows() + rank * share + i;
  }
  return index;
}

/// Prefix sums of the rows of each sequence on `rank`, (sequences + 1).
///
/// The last entry counts the rank's own rows, not the pack's (prime-rl#2392).
[[nodiscard]] inline std::vector<std::int32_t> local_cu_padded(const pack_view& pack,
                                                               std::int32_t rank) {
  std::vector<std::int32_t> cu(static_cast<std::size_t>(pack.sequences) + 1, 0);
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const std::size_t i = static_cast<std::size_t>(s);
    cu[i + 1] = cu[i] + slot_of(pack, s, rank).rows();
  }
  return cu;
}

}  // namespace v0
}  // namespace dyncp
