// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/cuda/abi.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/profiler_range.hpp>
#include <dyncp/thd/pack_view.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// What becomes of rows that hold no token.
enum class padding_rows : std::int32_t {
  zero,
  copy,  ///< whatever the source holds there
};

// Rows of any width between arrays that a rank holds whole, computed from the pack: no index list
// is made or uploaded. For rows that lie on other ranks there is `row_router` (dyncp/runtime).
//
// | function               | from                          | to                                  |
// | ---------------------- | ----------------------------- | ----------------------------------- |
// | split_rows             | whole pack, (tokens)          | rows of one rank, (local_rows)      |
// | merge_rows             | rows of one rank              | their places in the whole pack      |
// | take_front, take_back  | rows of one rank, zigzag      | first, second chunks, one sequence  |
// |                        |                               | after the other,                    |
// |                        |                               | (sequence_rows / (2 * cp))          |
// | put_front, put_back    | the same                      | their places in the rows of a rank  |
//
// A layout is converted on one rank by a merge of the one and a split of the other, or at once by
// `device::copy_rows` with a table from `conversion` (dyncp/thd/convert.hpp).
//
// The arrays of `pack` are in device memory; `sequence_rows`, its last padded prefix sum, is known
// on the host. Each row is row_bytes long and moved in accesses of up to 16 bytes, as alignment
// allows; one group of lanes a row, so that work is even whatever the lengths are. Complexity:
// linear in the bytes, logarithmic in the sequences for each row. Errors: those of the device.

namespace detail {
[[nodiscard]] inline result<void> move_rows(device& d, stream s, abi::row_move_kind kind,
                                            const pack_view& pack, std::int32_t rank,
                                            std::int32_t sequence_rows, const void* from, void* to,
                                            std::int64_t row_bytes, padding_rows padding) {
  const profiler_range range("dyncp move rows");
  abi::move_rows_call c;
  c.pack = pack;
  c.kind = kind;
  c.rank = rank;
  c.sequence_rows = sequence_rows;
  c.zero_padding = padding == padding_rows::zero ? 1 : 0;
  c.to = to;
  c.from = from;
  c.row_bytes = row_bytes;
  return abi::to_result(abi::move_rows(d.handle(), c, s));
}
}  // namespace detail

[[nodiscard]] inline result<void> split_rows(device& d, stream s, const pack_view& pack,
                                             std::int32_t rank, const void* whole, void* local,
                                             std::int64_t row_bytes,
                                             padding_rows padding = padding_rows::zero) {
  return detail::move_rows(d, s, abi::row_move_kind::split, pack, rank, 0, whole, local, row_bytes,
                           padding);
}
/// Writes the rows of this rank only; padding rows of the whole pack are zero or copied, too.
[[nodiscard]] inline result<void> merge_rows(device& d, stream s, const pack_view& pack,
                                             std::int32_t rank, const void* local, void* whole,
                                             std::int64_t row_bytes,
                                             padding_rows padding = padding_rows::zero) {
  return detail::move_rows(d, s, abi::row_move_kind::merge, pack, rank, 0, local, whole, row_bytes,
                           padding);
}
/// Requires the zigzag layout and cp > 1, as do the next three.
[[nodiscard]] inline result<void> take_front(device& d, stream s, const pack_view& pack,
                                             std::int32_t rank, std::int32_t sequence_rows,
                                             const void* local, void* chunks,
                                             std::int64_t row_bytes,
                                             padding_rows padding = padding_rows::zero) {
  return detail::move_rows(d, s, abi::row_move_kind::take_front, pack, rank, sequence_rows, local,
                           chunks, row_bytes, padding);
}
[[nodiscard]] inline result<void> take_back(device& d, stream s, const pack_view& pack,
                                            std::int32_t rank, std::int32_t sequence_rows,
                                            const void* local, void* chunks,
                                            std::int64_t row_bytes,
                                            padding_rows padding = padding_rows::zero) {
  return detail::move_rows(d, s, abi::row_move_kind::take_back, pack, rank, sequence_rows, local,
                           chunks, row_bytes, padding);
}
[[nodiscard]] inline result<void> put_front(device& d, stream s, const pack_view& pack,
                                            std::int32_t rank, std::int32_t sequence_rows,
                                            const void* chunks, void* local,
                                            std::int64_t row_bytes,
                                            padding_rows padding = padding_rows::zero) {
  return detail::move_rows(d, s, abi::row_move_kind::put_front, pack, rank, sequence_rows, chunks,
                           local, row_bytes, padding);
}
[[nodiscard]] inline result<void> put_back(device& d, stream s, const pack_view& pack,
                                           std::int32_t rank, std::int32_t sequence_rows,
                                           const void* chunks, void* local, std::int64_t row_bytes,
                                           padding_rows padding = padding_rows::zero) {
  return detail::move_rows(d, s, abi::row_move_kind::put_back, pack, rank, sequence_rows, chunks,
                           local, row_bytes, padding);
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
