// SPDX-License-Identifier: Apache-2.0
#pragma once

// Forward attention over the segments of one ring step, on tensor cores through mma.sync.
//
// A block takes 128 query rows of one head and walks over the keys of their segment in tiles of 64,
// with a running maximum and sum for each row (Milakov and Gimelshein 2018; the tiling is that of
// FlashAttention-2, Dao 2023). Each of its 4 warps has 32 rows, so that a fragment of K or V, once
// out of shared memory, serves two products. While a tile is worked on, the next one arrives.

#include "elements.hpp"
#include "fragments.hpp"
#include "kernels.hpp"
#include "launch.hpp"
#include "ptx.hpp"
#include "segments.hpp"
#include "vector.hpp"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

template <int Dim>
struct forward_tiling {
  static constexpr int queries = 128;  // of a block
  static constexpr int keys = 64;      // of a tile
  static constexpr int warps = 4;
  static constexpr int threads = 32 * warps;
  static constexpr int warp_rows = queries / warps;
  static constexpr int stages = 2;
  // Shared memory: q (queries, Dim); for each stage k and v (keys, Dim); `forward_block`.
  static constexpr std::uint32_t q_bytes = queries * Dim * 2;
  static constexpr std::uint32_t k_bytes = keys * Dim * 2;
  static constexpr std::uint32_t stage_bytes = 2 * k_bytes;
  static constexpr std::uint32_t block_at = q_bytes + stages * stage_bytes;
  static constexpr std::uint32_t shared_bytes = block_at + 48;
};

/// What a block knows of its work, once for all threads: registers are short.
template <class T>
struct forward_block {
  const T* k;  // row 0 of the segment, the block's head
  const T* v;
  std::int32_t q_row;        // local row of the block's first query
  std::int32_t query_count;  // from there to the end of the segment, perhaps more than a block's
  std::int32_t kv_rows;
};

template <class T, int Dim>
__global__ void __launch_bounds__(forward_tiling<Dim>::threads, 2)
    attention_forward_kernel(const __grid_constant__ forward_arguments<T> a) {
  using tiling = forward_tiling<Dim>;
  constexpr int row_blocks = tiling::warp_rows / 16;
  constexpr int key_blocks = tiling::keys / 8;
  constexpr int dim_blocks = Dim / 8;

  // Late tiles of a causal sequence have most keys: they go first.
  const auto slot = static_cast<std::int32_t>(gridDim.x - 1 - blockIdx.x);
  const segment_tile tile =
      tile_at<segment_side::queries, tiling::queries>(a.table.segments, a.table.count, slot);
  if (!tile.exists) return;
  const auto head = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t first_query = tile.tile * tiling::queries;  // in the segment
  forward_block<T>& block = shared<forward_block<T>>(tiling::block_at);
  if (threadIdx.x == 0) {
    block = {a.k.at(tile.segment.kv_row, head / a.group, Dim),
             a.v.at(tile.segment.kv_row, head / a.group, Dim), tile.segment.q_row + first_query,
             tile.segment.q_rows - first_query, tile.segment.kv_rows};
  }
  __syncthreads();
  const std::int32_t key_count = a.causal && first_query + tiling::queries < block.kv_rows
                                     ? first_query + tiling::queries
                                     : block.kv_rows;
  const std::int32_t tiles = (key_count + tiling::keys - 1) / tiling::keys;

  const std::uint32_t q_tile = shared_base();

  const auto load_keys = [&](std::int32_t number) {
    const std::uint32_t stage =
        q_tile + tiling::q_bytes + static_cast<std::uint32_t>(number % 2) * tiling::stage_bytes;
    const std::int32_t first = number * tiling::keys;
    load_tile_async<tiling::keys, Dim, tiling::threads>(stage, block.k + first * a.k.row_stride,
                                                        a.k.row_stride, block.kv_rows - first);
    load_tile_async<tiling::keys, Dim, tiling::threads>(stage + tiling::k_bytes,
                                                        block.v + first * a.v.row_stride,
                                                        a.v.row_stride, block.kv_rows - first);
  };
  load_tile_async<tiling::queries, Dim, tiling::threads>(q_tile, a.q.at(block.q_row, head, Dim),
                                                         a.q.row_stride, block.query_count);
  if (tiles > 0) load_keys(0);
  ptx::commit_copies();

  // Of the rows g and g + 8 of each row block; in units of scores before scaling.
  float largest[2 * row_blocks];
  float sum[2 * row_blocks];  // of the calling lane's columns
  float out[row_blocks][dim_blocks][4];
#pragma unroll
  for (int r = 0; r < 2 * row_blocks; ++r) {
    largest[r] = -INFINITY;
    sum[r] = 0;
  }
#pragma unroll
  for (int m = 0; m < row_blocks; ++m) {
#pragma unroll
    for (int n = 0; n < dim_blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][n][i] = 0;
    }
  }
  for (std::int32_t number = 0; number < tiles; ++number) {
    ptx::wait_copies<0>();
    __syncthreads();  // the tile is there for all, and all are done with the one before
    if (number + 1 < tiles) load_keys(number + 1);
    ptx::commit_copies();

    const thread_place place = thread_place::here();
    const std::int32_t warp_query = place.warp() * tiling::warp_rows;
    const std::int32_t first_key = number * tiling::keys;
    const std::int32_t last_query = first_query + warp_query + tiling::warp_rows - 1;
    if (a.causal && first_key > last_query) continue;  // nothing to see for this warp
    const std::uint32_t k_tile =
        q_tile + tiling::q_bytes + static_cast<std::uint32_t>(number % 2) * tiling::stage_bytes;
    const std::uint32_t v_tile = k_tile + tiling::k_bytes;

    const auto across = lane_address<Dim>::across(place.lane());
    const auto down = lane_address<Dim>::down(place.lane());
    float scores[row_blocks][key_blocks][4];
#pragma unroll
    for (int m = 0; m < row_blocks; ++m) {
#pragma unroll
      for (int n = 0; n < key_blocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
      }
    }
    // One chunk pair of q ahead. Not unrolled: the compiler would load further ahead than there are
    // registers.
    std::uint32_t q_part[row_blocks][4];
#pragma unroll
    for (int m = 0; m < row_blocks; ++m) {
      ptx::load_matrices(q_part[m], down(q_tile, warp_query + 16 * m, 0));
    }
#pragma unroll 1
    for (int c = 0; c < Dim / 8; c += 2) {
      std::uint32_t k_part[2][4];
      ptx::load_matrices(k_part[0], across(k_tile, 0, c));
      std::uint32_t q_next[row_blocks][4];
#pragma unroll
      for (int m = 0; m < row_blocks; ++m) {
        ptx::load_matrices(q_next[m], down(q_tile, warp_query + 16 * m, (c + 2) % (Dim / 8)));
      }
#pragma unroll
      for (int n = 0; n < key_blocks; n += 2) {
        const std::uint32_t(&now)[4] = k_part[n / 2 % 2];
        if (n + 2 < key_blocks) {
          ptx::load_matrices(k_part[(n / 2 + 1) % 2], across(k_tile, 8 * n + 16, c));
        }
#pragma unroll
        for (int m = 0; m < row_blocks; ++m) {
          ptx::multiply_add(scores[m][n], q_part[m], now[0], now[1], T{});
          ptx::multiply_add(scores[m][n + 1], q_part[m], now[2], now[3], T{});
        }
      }
#pragma unroll
      for (int m = 0; m < row_blocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) q_part[m][i] = q_next[m][i];
      }
    }

    const std::int32_t kv_rows = block.kv_rows;
    const std::int32_t visible = a.causal ? first_query + warp_query + 1 : kv_rows;
    if (first_key + tiling::keys > (visible < kv_rows ? visible : kv_rows)) {
#pragma unroll
      for (int m = 0; m < row_blocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::int32_t query = first_query + warp_query + 16 * m + place.row(i);
          const std::int32_t limit =
              a.causal && query + 1 < kv_rows ? query + 1 : kv_rows;
#pragma unroll
          for (int n = 0; n < key_blocks; ++n) {
            if (first_key + 8 * n + place.column(i) >= limit) {
              scores[m][n][i] = -INFINITY;
            }
          }
        }
      }
    }

#pragma unroll
    for (int r = 0; r < 2 * row_blocks; ++r) {
      const int m = r / 2;
      const int i = (r % 2) * 2;
      float top = largest[r];
#pragma unroll
      for (int n = 0; n < key_blocks; ++n) {
        top = fmaxf(top, fmaxf(scores[m][n][i], scores[m][n][i + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
      // No key yet: everything below becomes 2^-inf, not 2^(-inf + inf).
      const float shift = top == -INFINITY ? 0.0F : top * a.scale_log2;
      const float kept = ptx::exp2(largest[r] * a.scale_log2 - shift);
      largest[r] = top;
      float added = 0;
#pragma unroll
      for (int n = 0; n < key_blocks; ++n) {
#pragma unroll
        for (int j = i; j < i + 2; ++j) {
          scores[m][n][j] = ptx::exp2(scores[m][n][j] * a.scale_log2 - shift);
          added += scores[m][n][j];
        }
      }
      sum[r] = sum[r] * kept + added;
#pragma unroll
      for (int n = 0; n < dim_blocks; ++n) {
        out[m][n][i] *= kept;
        out[m][n][i + 1] *= kept;
      }
    }

#pragma unroll
    for (int n = 0; n < key_blocks; n += 2) {
      std::uint32_t weights[row_blocks][4];
#pragma unroll
      for (int m = 0; m < row_blocks; ++m) {
        weights[m][0] = ptx::pack(scores[m][n][0], scores[m][n][1], T{});
        weights[m][1] = ptx::pack(scores[m][n][2], scores[m][n][3], T{});
        weights[m][2] = ptx::pack(scores[m][n + 1][0], scores[m][n + 1][1], T{});
        weights[m][3] = ptx::pack(scores[m][n + 1][2], scores[m][n + 1][3], T{});
      }
#pragma unroll
      for (int d = 0; d < dim_blocks; d += 2) {
        std::uint32_t v_part[4];
        ptx::load_matrices_transposed(v_part, down(v_tile, 8 * n, d));
#pragma unroll
        for (int m = 0; m < row_blocks; ++m) {
          ptx::multiply_add(out[m][d], weights[m], v_part[0], v_part[1], T{});
          ptx::multiply_add(out[m][d + 1], weights[m], v_part[2], v_part[3], T{});
        }
      }
    }
  }
  ptx::wait_copies<0>();

  const thread_place place = thread_place::here();
#pragma unroll
  for (int r = 0; r < 2 * row_blocks; ++r) {
    const int m = r / 2;
    const int i = (r % 2) * 2;
    float total = sum[r];
    total += __shfl_xor_sync(0xffffffffU, total, 1);
    total += __shfl_xor_sync(0xffffffffU, total, 2);
    const bool none = largest[r] == -INFINITY && total == 0.0F;
    const float inverse = none ? 0.0F : 1.0F / total;
    const std::int32_t row = place.warp() * tiling::warp_rows + 16 * m + place.row(i);
    const bool exists = row < block.query_count;
    const std::int64_t local = block.q_row + row;
#pragma unroll
    for (int d = 0; d < dim_blocks; d += 2) {
      const float4 four = four_columns(
          float2{out[m][d][i] * inverse, out[m][d][i + 1] * inverse},
          float2{out[m][d + 1][i] * inverse, out[m][d + 1][i + 1] * inverse}, place.lane());
      if (exists) {
        store(a.out.out.at(local, head, Dim) + 8 * d + four_columns_at(place.lane()), four);
      }
    }
    if (exists && place.lane() % 4 == 0) {
      *a.out.lse.at(local, head, 1) =
          none ? -INFINITY : largest[r] * a.scale + logf(total);
    }
  }
}

/// Requires 16-byte aligned rows and heads of all operands, scale > 0, Dim = head size of all.
template <class T, int Dim>
cudaError_t launch_forward(const forward_arguments<T>& a, cudaStream_t stream) {
  using tiling = forward_tiling<Dim>;
  const launch_config config{
      .blocks = a.table.count == 0 ? 0 : tile_slots<tiling::queries>(a.table.rows, a.table.count),
      .rows = a.heads,
      .threads = tiling::threads,
      .shared_bytes = tiling::shared_bytes,
      .stream = stream};
  return launch(attention_forward_kernel<T, Dim>, config, a);
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
