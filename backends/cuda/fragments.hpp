// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tiles of 2-byte elements in shared memory, and how a warp takes the operands of m16n8k16 out of
// them. `ptx.hpp` shows the registers.

#include "ptx.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// The place of the calling thread in its block, computed anew at each call of `here`: across a
/// loop that needs all registers nothing of it is kept.
class thread_place {
 public:
  [[nodiscard]] DYNCP_DEVICE static thread_place here() {
    thread_place place;
    place.thread_ = threadIdx.x;
    ptx::forget(place.thread_);
    return place;
  }
  [[nodiscard]] DYNCP_DEVICE std::int32_t warp() const {
    return static_cast<std::int32_t>(thread_ / 32);
  }
  [[nodiscard]] DYNCP_DEVICE std::uint32_t lane() const { return thread_ % 32; }
  /// Row and column of element i of the C registers, in their 16 x 8 block.
  [[nodiscard]] DYNCP_DEVICE std::int32_t row(int i) const {
    return static_cast<std::int32_t>(lane() / 4) + i / 2 * 8;
  }
  [[nodiscard]] DYNCP_DEVICE std::int32_t column(int i) const {
    return static_cast<std::int32_t>(lane() % 4) * 2 + i % 2;
  }

 private:
  std::uint32_t thread_ = 0;
};

/// A tile of rows of Dim elements. The 16-byte chunk c of row r lies in place c ^ (r % 8) of its
/// row: eight rows' chunks of one number, which a ldmatrix reads, lie in different banks.
template <int Dim>
struct shared_tile {
  static_assert(Dim % 64 == 0, "a row has a multiple of 8 chunks");
  static constexpr int chunks = Dim / 8;
  static constexpr std::uint32_t row_bytes = Dim * 2;

  [[nodiscard]] DYNCP_DEVICE static std::uint32_t offset(std::int32_t row, std::int32_t chunk) {
    return static_cast<std::uint32_t>(row) * row_bytes +
           (static_cast<std::uint32_t>(chunk ^ (row & 7)) << 4);
  }
};

/// The address that a lane gives to ldmatrix.x4, for 16 x 16 elements from (row, 8 * chunk) on with
/// row % 8 = 0 and chunk even; only `row` and `chunk` differ between calls, the rest is computed
/// once.
///
/// Four operands come out of two orders of the four 8 x 8 matrices (top left, ...):
///   down    lanes 0-7 top left, 8-15 bottom left, 16-23 top right, 24-31 bottom right
///     load_matrices: A from rows (m, k).       load_matrices_transposed: B of two column blocks
///                                              from rows (k, n)
///   across  lanes 0-7 top left, 8-15 top right, 16-23 bottom left, 24-31 bottom right
///     load_matrices: B of two column blocks    load_matrices_transposed: A from rows (k, m)
///     from rows (n, k)
/// B of two column blocks: registers 0, 1 are b0, b1 of the first, 2, 3 of the second.
template <int Dim>
class lane_address {
 public:
  [[nodiscard]] DYNCP_DEVICE static lane_address down(std::uint32_t lane) {
    return {lane & 15, lane >> 4, lane & 7};
  }
  [[nodiscard]] DYNCP_DEVICE static lane_address across(std::uint32_t lane) {
    return {(lane & 7) + (lane >> 4 << 3), lane >> 3 & 1, lane & 7};
  }
  [[nodiscard]] DYNCP_DEVICE std::uint32_t operator()(std::uint32_t tile, std::int32_t row,
                                                      std::int32_t chunk) const {
    return tile + row_part_ + static_cast<std::uint32_t>(row) * shared_tile<Dim>::row_bytes +
           (static_cast<std::uint32_t>(chunk << 4) ^ chunk_part_);
  }

 private:
  DYNCP_DEVICE lane_address(std::uint32_t row, std::uint32_t chunk, std::uint32_t swizzle)
      : row_part_(row * shared_tile<Dim>::row_bytes), chunk_part_((chunk ^ swizzle) << 4) {}

  std::uint32_t row_part_;
  std::uint32_t chunk_part_;
};

/// Starts to copy Rows rows of Dim elements, `stride` elements apart, from `from` to `tile`, by all
/// Threads threads of the block; rows from `valid` on become zero and are not read.
template <int Rows, int Dim, int Threads, class T>
DYNCP_DEVICE void load_tile_async(std::uint32_t tile, const T* from, std::int64_t stride,
                                  std::int32_t valid) {
  static_assert(sizeof(T) == 2);
  constexpr int chunks = shared_tile<Dim>::chunks;
  constexpr int rows_at_once = Threads / chunks;
  static_assert(rows_at_once % 8 == 0 && Rows % rows_at_once == 0);
  const auto row = static_cast<std::int32_t>(threadIdx.x) / chunks;
  const auto chunk = static_cast<std::int32_t>(threadIdx.x) % chunks;
  std::uint32_t to = tile + shared_tile<Dim>::offset(row, chunk);
  from += row * stride + chunk * 8;
#pragma unroll
  for (int r = 0; r < Rows; r += rows_at_once) {
    ptx::copy_async<16>(to, from, row + r < valid);
    to += rows_at_once * shared_tile<Dim>::row_bytes;
    from += rows_at_once * stride;
  }
}

/// Sums of two neighbouring column blocks: with t = lane % 4 the calling lane holds columns 2t and
/// 2t + 1 of both in one row, and gets four consecutive ones: of the first block if t is even, of
/// the second if it is odd, from column 4 * (t / 2) on. All lanes of the warp take part.
DYNCP_DEVICE float4 four_columns(const float2& first, const float2& second, std::uint32_t lane) {
  const bool odd = (lane & 1) != 0;
  const float2 given = odd ? first : second;
  const float x = __shfl_xor_sync(0xffffffffU, given.x, 1);
  const float y = __shfl_xor_sync(0xffffffffU, given.y, 1);
  return odd ? float4{x, y, second.x, second.y} : float4{first.x, first.y, x, y};
}
/// The first of the columns that `four_columns` gives, counted from the first block.
DYNCP_DEVICE std::int32_t four_columns_at(std::uint32_t lane) {
  return static_cast<std::int32_t>((lane & 1) * 8 + (lane >> 1 & 1) * 4);
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
