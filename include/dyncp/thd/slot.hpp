// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/zigzag.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// Consecutive tokens of one sequence in consecutive rows of one rank.
struct row_run {
  std::int32_t row = 0;       ///< first local row
  std::int32_t position = 0;  ///< position in its sequence of the first row
  std::int32_t rows = 0;      ///< rows, padding included
  std::int32_t valid = 0;     ///< rows that hold a token: the first ones

  friend constexpr bool operator==(const row_run&, const row_run&) = default;
};

/// The rows of one sequence on one rank: two runs in the zigzag layout, else one, as `front`.
///
/// The back follows the front without a gap. A back with valid rows has a full front, since it
/// comes later in the sequence; so the valid rows of a slot are its first valid() rows, and their
/// positions ascend: a plain causal kernel over them is right.
struct slot {
  row_run front;
  row_run back;

  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t row() const noexcept { return front.row; }
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t rows() const noexcept {
    return front.rows + back.rows;
  }
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t valid() const noexcept {
    return front.valid + back.valid;
  }
  friend constexpr bool operator==(const slot&, const slot&) = default;
};

namespace detail {

[[nodiscard]] DYNCP_HOST_DEVICE constexpr row_run make_run(std::int32_t row, std::int32_t position,
                                                           std::int32_t rows,
                                                           std::int32_t length) noexcept {
  // Clamped, never length / cp: with 698 tokens in 704 rows on 4 ranks the counts are 170, 176,
  // 176, 176 (TE#3331).
  const std::int32_t left = length - position;
  return {row, position, rows, left < 0 ? 0 : left < rows ? left : rows};
}

}  // namespace detail

/// The rows of sequence `s` on `rank`. Requires s < sequences, rank < cp. Complexity: constant.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr slot slot_of(const pack_view& pack, std::int32_t s,
                                                       std::int32_t rank) noexcept {
  const std::int32_t length = pack.length(s);
  const std::int32_t padded = pack.padded(s);
  const std::int32_t offset = pack.cu_padded[s];
  const std::int32_t cp = pack.cp;
  if (pack.layout == layout_kind::zigzag) {
    const std::int32_t chunk = zigzag::chunk_tokens(padded, cp);
    const std::int32_t back = padded / cp - chunk;  // chunk, or 0 on a single rank
    const std::int32_t row = offset / cp;
    return {detail::make_run(row, zigzag::front_chunk(rank) * chunk, chunk, length),
            detail::make_run(row + chunk, zigzag::back_chunk(rank, cp) * chunk, back, length)};
  }
  std::int32_t begin = 0;  // positions [begin, end) of the sequence are on the rank
  std::int32_t end = 0;
  std::int32_t row = 0;
  if (pack.layout == layout_kind::contiguous) {
    begin = rank * (padded / cp);
    end = begin + padded / cp;
    row = offset / cp;
  } else {
    const std::int32_t share = pack.local_rows();
    const std::int32_t first = rank * share - offset;  // of the share, as a position
    begin = first < 0 ? 0 : first > padded ? padded : first;
    end = first + share < 0 ? 0 : first + share > padded ? padded : first + share;
    // A sequence that does not touch the share gets the row at which it would have been.
    row = begin - first < 0 ? 0 : begin - first > share ? share : begin - first;
  }
  return {detail::make_run(row, begin, end - begin, length),
          detail::make_run(row + end - begin, padded, 0, length)};
}

}  // namespace v0
}  // namespace dyncp
