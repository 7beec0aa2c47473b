// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"
#include "launch.hpp"
#include "row_lanes.hpp"
#include "vector.hpp"

#include <dyncp/thd/cu_seqlens.hpp>
#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/slot.hpp>

#include <cstddef>
#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace {

struct thd_rows_launch {
  thd_rows_arguments a;
  row_lanes lanes;
  std::int32_t rows;
};

/// Where a row of the grid comes from and goes to; `valid` if it holds a token.
struct row_pair {
  std::int32_t from = 0;
  std::int32_t to = 0;
  bool valid = false;
};

/// Row `row` of all first (or second) chunks, one sequence after the other: local row and token.
DYNCP_DEVICE row_pair chunk_row(const pack_view& pack, std::int32_t rank, std::int32_t row,
                                bool back) {
  const std::int32_t s = sequence_at(pack.cu_padded, pack.sequences, row * 2 * pack.cp);
  const slot rows = slot_of(pack, s, rank);
  const row_run& run = back ? rows.back : rows.front;
  const std::int32_t i = row - pack.cu_padded[s] / (2 * pack.cp);
  return {run.row + i, row, i < run.valid};
}

DYNCP_DEVICE row_pair pair_of(const thd_rows_arguments& a, std::int32_t row) {
  using kind = abi::row_move_kind;
  switch (a.kind) {
    case kind::split:
      return {packed_row(a.pack, a.rank, row), row, token_at(a.pack, a.rank, row).valid};
    case kind::merge:
      return {row, packed_row(a.pack, a.rank, row), token_at(a.pack, a.rank, row).valid};
    case kind::take_front:
    case kind::take_back:
      return chunk_row(a.pack, a.rank, row, a.kind == kind::take_back);
    case kind::put_front:
    case kind::put_back: break;
  }
  const row_pair taken = chunk_row(a.pack, a.rank, row, a.kind == kind::put_back);
  return {taken.to, taken.from, taken.valid};
}

/// One row per group of lanes, in units of V.
template <class V>
__global__ void __launch_bounds__(row_lanes::threads, row_lanes::blocks_at_once)
    thd_rows_kernel(const __grid_constant__ thd_rows_launch p) {
  const std::int64_t row = p.lanes.row(blockIdx.x, threadIdx.x);
  if (row >= p.rows) return;
  const row_pair pair = pair_of(p.a, static_cast<std::int32_t>(row));
  auto* const to = static_cast<std::byte*>(p.a.to) + pair.to * p.a.row_bytes;
  const auto* const from = static_cast<const std::byte*>(p.a.from) + pair.from * p.a.row_bytes;
  copy_row<V>(p.lanes, to, p.a.zero_padding && !pair.valid ? nullptr : from, p.a.row_bytes);
}

template <class V>
cudaError_t launch_in_units(const thd_rows_arguments& a, std::int32_t rows, cudaStream_t stream) {
  const row_lanes lanes = row_lanes::of(a.row_bytes / static_cast<std::int64_t>(sizeof(V)));
  return launch(thd_rows_kernel<V>, {.blocks = lanes.blocks(rows), .threads = row_lanes::threads,
                                     .stream = stream}, thd_rows_launch{a, lanes, rows});
}

}  // namespace

cudaError_t prepare_thd_rows() {
  return prepare_all(thd_rows_kernel<uint4>, thd_rows_kernel<uint2>, thd_rows_kernel<std::uint32_t>,
                     thd_rows_kernel<std::uint16_t>, thd_rows_kernel<std::uint8_t>);
}

cudaError_t launch_thd_rows(const thd_rows_arguments& a, std::int32_t sequence_rows,
                            cudaStream_t stream) {
  using kind = abi::row_move_kind;
  const bool all = a.kind == kind::split || a.kind == kind::merge;
  const std::int32_t rows = all ? a.pack.local_rows() : sequence_rows / (2 * a.pack.cp);
  if (rows == 0 || a.row_bytes == 0) return cudaSuccess;
  switch (common_unit(a.row_bytes, a.to, a.from)) {
    case 16: return launch_in_units<uint4>(a, rows, stream);
    case 8: return launch_in_units<uint2>(a, rows, stream);
    case 4: return launch_in_units<std::uint32_t>(a, rows, stream);
    case 2: return launch_in_units<std::uint16_t>(a, rows, stream);
    default: return launch_in_units<std::uint8_t>(a, rows, stream);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
