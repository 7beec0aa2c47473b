// SPDX-License-Identifier: Apache-2.0
#pragma once

// Backward attention over the segments of one ring step, on tensor cores through mma.sync.
//
// A block takes 128 keys of one key/value head and walks over the queries of their segment in tiles
// of 64 rows, last tile first, each for all query heads that share the head. It recomputes the
// weights P from the final log-sum-exp, keeps dK and dV in registers and adds them to memory at the
// end: nobody else has these rows. The rows of dQ belong to all blocks of the segment.
//
// | order of additions to dQ | how                                                 | bits repeat |
// | ------------------------ | --------------------------------------------------- | ----------- |
// | fixed (the default)      | a counter for each tile of dQ says whose turn it is | yes         |
// | any                      | atomic additions                                    | no          |
//
// Fixed order: earlier keys first. Blocks take their work by ticket, in that order, too, so that
// who waits, waits for one that has begun before, whatever else runs on the GPU. Neighbouring
// tickets go to different heads: few blocks of a head are under way at once, a step or two apart.
// Under the causal mask earlier keys have more queries: the longest work begins first. The last
// queries see all keys: beginning with them a block waits for its predecessor at first, and is done
// as early as it has few tiles. Ending with them it would be done behind its predecessor, so that
// all blocks would take as long as the longest. docs/kernels.md has a model of it.

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
struct backward_tiling {
  static constexpr int keys = backward_keys;        // of a block
  static constexpr int queries = backward_queries;  // of a tile
  static constexpr int warps = 8;
  static constexpr int threads = 32 * warps;
  // Threads that hand a turn on and wait for the next, in warps of different schedulers.
  static constexpr unsigned giver = 0;
  static constexpr unsigned taker = 32;
  // Weights (queries, keys): warps 2 x 4, each 32 x 32. dK, dV (keys, Dim): 4 x 2, 32 x Dim / 2.
  // dQ (queries, Dim): 2 x 4, 32 x Dim / 4.
  static constexpr int warp_rows = 32;
  // Shared memory: k, v (keys, Dim); weights and their gradients (queries, keys); for each of two
  // stages q, dout (queries, Dim), lse and delta (queries); `backward_block`.
  static constexpr std::uint32_t k_bytes = keys * Dim * 2;
  static constexpr std::uint32_t v_at = k_bytes;
  static constexpr std::uint32_t weights_bytes = queries * keys * 2;
  static constexpr std::uint32_t weights_at = 2 * k_bytes;
  static constexpr std::uint32_t gradients_at = weights_at + weights_bytes;
  static constexpr std::uint32_t stages_at = gradients_at + weights_bytes;
  static constexpr std::uint32_t q_bytes = queries * Dim * 2;
  static constexpr std::uint32_t lse_at = 2 * q_bytes;  // in a stage
  static constexpr std::uint32_t delta_at = lse_at + queries * 4;
  static constexpr std::uint32_t stage_bytes = delta_at + queries * 4;
  static constexpr std::uint32_t block_at = stages_at + 2 * stage_bytes;
  static constexpr std::uint32_t shared_bytes = block_at + 32;
  static_assert(shared_bytes == backward_shared_bytes(Dim));
};

/// What a block knows of its work, once for all threads: registers are short.
struct backward_block {
  std::int32_t ticket;
  std::int32_t q_row;   // of the segment
  std::int32_t q_rows;
  std::int32_t kv_row;  // of the block
  std::int32_t kv_rows;  // from there to the end of the segment, perhaps more than a block's
  std::int32_t first_key;  // of the block, in the segment
  std::int32_t turn;       // of the block at a tile of dQ
  std::int32_t turns;      // counter of the segment's first tile of dQ
};

template <class T, int Dim>
__global__ void __launch_bounds__(backward_tiling<Dim>::threads, 1)
    attention_backward_kernel(const __grid_constant__ backward_arguments<T> a) {
  using tiling = backward_tiling<Dim>;
  constexpr int blocks = tiling::warp_rows / 16;  // of rows, in each product
  constexpr int key_blocks = 4;                   // of the weights of a warp
  constexpr int dkv_blocks = Dim / 16;
  constexpr int dq_blocks = Dim / 32;

  backward_block& block = shared<backward_block>(tiling::block_at);
  const bool ordered = a.turns != nullptr;
  if (threadIdx.x == 0) {
    block.ticket = ordered ? atomicAdd(a.ticket, 1) : static_cast<std::int32_t>(blockIdx.x);
  }
  __syncthreads();
  const std::int32_t slot = block.ticket / a.kv_heads;
  const std::int32_t kv_head = block.ticket - slot * a.kv_heads;
  const segment_tile tile =
      tile_at<segment_side::keys, tiling::keys>(a.table.segments, a.table.count, slot);
  if (!tile.exists) return;
  // The tiles of queries from the diagonal on.
  const std::int32_t first_tile = a.causal ? tile.tile * (tiling::keys / tiling::queries) : 0;
  std::int32_t query_tile = (tile.segment.q_rows + tiling::queries - 1) / tiling::queries - 1;
  if (query_tile < first_tile) return;
  if (threadIdx.x == 0) {  // all but the ticket, which others may be reading
    block.q_row = tile.segment.q_row;
    block.q_rows = tile.segment.q_rows;
    block.turn = tile.tile;
    block.first_key = tile.tile * tiling::keys;
    block.kv_row = tile.segment.kv_row + block.first_key;
    block.kv_rows = tile.segment.kv_rows - block.first_key;
    block.turns = tile.segment.q_row / tiling::queries + tile.index;
  }
  __syncthreads();

  const std::uint32_t base = shared_base();
  load_tile_async<tiling::keys, Dim, tiling::threads>(
      base, a.k.at(block.kv_row, kv_head, Dim), a.k.row_stride, block.kv_rows);
  load_tile_async<tiling::keys, Dim, tiling::threads>(
      base + tiling::v_at, a.v.at(block.kv_row, kv_head, Dim), a.v.row_stride, block.kv_rows);
  const auto load_queries = [&](std::int32_t parity, std::int32_t head, std::int32_t at) {
    const std::uint32_t stage = base + tiling::stages_at +
                                static_cast<std::uint32_t>(parity) * tiling::stage_bytes;
    const std::int32_t first = at * tiling::queries;
    const std::int32_t count = block.q_rows - first;
    const std::int64_t row = block.q_row + first;
    load_tile_async<tiling::queries, Dim, tiling::threads>(stage, a.q.at(row, head, Dim),
                                                           a.q.row_stride, count);
    load_tile_async<tiling::queries, Dim, tiling::threads>(
        stage + tiling::q_bytes, a.dout.at(row, head, Dim), a.dout.row_stride, count);
    const auto i = static_cast<std::int32_t>(threadIdx.x % tiling::queries);
    if (threadIdx.x < 2 * tiling::queries) {
      const bool second = threadIdx.x >= tiling::queries;
      const thd_view<const float>& from = second ? a.delta : a.lse;
      ptx::copy_async<4>(stage + (second ? tiling::delta_at : tiling::lse_at) +
                             static_cast<std::uint32_t>(i) * 4,
                         from.at(row + i, head, 1), i < count);
    }
  };
  load_queries(0, kv_head * a.group, query_tile);
  ptx::commit_copies();

  float dk[blocks][dkv_blocks][4];
  float dv[blocks][dkv_blocks][4];
#pragma unroll
  for (int m = 0; m < blocks; ++m) {
#pragma unroll
    for (int n = 0; n < dkv_blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        dk[m][n][i] = 0;
        dv[m][n][i] = 0;
      }
    }
  }

  std::int32_t head = kv_head * a.group;
  const std::int32_t heads_end = head + a.group;
  std::int32_t parity = 0;
  std::int32_t* turn = nullptr;  // counter of the tile of dQ
  while (query_tile >= first_tile) {
    ptx::wait_copies<0>();
    __syncthreads();  // the tile is there for all, and all are done with the one before
    const bool last_of_group = head + 1 == heads_end;
    if (!last_of_group || query_tile > first_tile) {
      load_queries(1 - parity, last_of_group ? kv_head * a.group : head + 1,
                   last_of_group ? query_tile - 1 : query_tile);
    }
    ptx::commit_copies();

    // A tile of dQ gets its additions from the first block of keys to the last that it meets.
    // Handing a turn on stops a warp until the additions are in memory, looking for the next until
    // memory answers: behind the copies, each in a warp of its own, while others compute.
    std::int32_t seen = 0;
    if (ordered) {
      std::int32_t* const before = turn;
      turn = a.turns + (std::int64_t{head} * a.turn_slots + block.turns + query_tile);
      if (threadIdx.x == tiling::giver && before != nullptr) {
        ptx::store_release(before, block.turn + 1);
      }
      if (threadIdx.x == tiling::taker) seen = ptx::load_acquire(turn);
    }

    const std::uint32_t stage_at =
        tiling::stages_at + static_cast<std::uint32_t>(parity) * tiling::stage_bytes;
    const std::uint32_t q_tile = base + stage_at;
    const std::uint32_t dout_tile = q_tile + tiling::q_bytes;
    {
      const thread_place place = thread_place::here();
      const std::int32_t warp_query = place.warp() / 4 * tiling::warp_rows;
      const std::int32_t warp_key = place.warp() % 4 * tiling::warp_rows;
      const auto across = lane_address<Dim>::across(place.lane());
      const auto down = lane_address<Dim>::down(place.lane());
      float weights[blocks][key_blocks][4];
      float gradients[blocks][key_blocks][4];
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int n = 0; n < key_blocks; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            weights[m][n][i] = 0;
            gradients[m][n][i] = 0;
          }
        }
      }
      const auto multiply = [&](float (&to)[blocks][key_blocks][4], std::uint32_t rows,
                                std::uint32_t columns) {
#pragma unroll 2
        for (int c = 0; c < Dim / 8; c += 2) {
          std::uint32_t left[blocks][4];
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
            ptx::load_matrices(left[m], down(rows, warp_query + 16 * m, c));
          }
#pragma unroll
          for (int n = 0; n < key_blocks; n += 2) {
            std::uint32_t right[4];
            ptx::load_matrices(right, across(columns, warp_key + 8 * n, c));
#pragma unroll
            for (int m = 0; m < blocks; ++m) {
              ptx::multiply_add(to[m][n], left[m], right[0], right[1], T{});
              ptx::multiply_add(to[m][n + 1], left[m], right[2], right[3], T{});
            }
          }
        }
      };
      multiply(weights, q_tile, base);
      multiply(gradients, dout_tile, base + tiling::v_at);

      const std::int32_t first_query = query_tile * tiling::queries;
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const std::int32_t row = warp_query + 16 * m + place.row(i);
          const float lse = shared<float>(stage_at + tiling::lse_at +
                                          static_cast<std::uint32_t>(row) * 4);
          const float delta = shared<float>(stage_at + tiling::delta_at +
                                            static_cast<std::uint32_t>(row) * 4);
          const float shift = lse * 1.44269504088896340736F;
          // A row without keys has no weights, not infinite ones.
          const std::int32_t visible = lse == -INFINITY ? 0
                                       : a.causal ? first_query + row + 1 - block.first_key
                                                  : block.kv_rows;
          const std::int32_t limit = visible < block.kv_rows ? visible : block.kv_rows;
#pragma unroll
          for (int n = 0; n < key_blocks; ++n) {
            const std::int32_t key = warp_key + 8 * n + place.column(0);
            float p[2];
            float ds[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              // What is masked may be anything, infinite included: it is not multiplied.
              const bool counts = key + j < limit;
              p[j] = counts ? ptx::exp2(weights[m][n][i + j] * a.scale_log2 - shift) : 0.0F;
              ds[j] = counts ? p[j] * (gradients[m][n][i + j] - delta) : 0.0F;
            }
            const std::uint32_t at =
                shared_tile<tiling::keys>::offset(row, (warp_key + 8 * n) / 8) +
                (place.lane() % 4) * 4;
            shared<std::uint32_t>(tiling::weights_at + at) = ptx::pack(p[0], p[1], T{});
            shared<std::uint32_t>(tiling::gradients_at + at) = ptx::pack(ds[0], ds[1], T{});
          }
        }
      }
    }
    if (ordered && threadIdx.x == tiling::taker) {
      while (seen < block.turn) seen = ptx::load_acquire(turn);
    }
    __syncthreads();  // weights and gradients are there, and it is this block's turn

    {
      const thread_place place = thread_place::here();
      const std::int32_t warp_key = place.warp() % 4 * tiling::warp_rows;
      const std::int32_t warp_chunk = place.warp() / 4 * (Dim / 16);
      const auto across = lane_address<tiling::keys>::across(place.lane());
      const auto down = lane_address<Dim>::down(place.lane());
#pragma unroll 1
      for (int c = 0; c < tiling::queries; c += 16) {
        std::uint32_t left[blocks][4];
        const auto multiply = [&](float (&to)[blocks][dkv_blocks][4], std::uint32_t columns,
                                  std::uint32_t rows) {
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
            ptx::load_matrices_transposed(left[m], across(columns, c, (warp_key + 16 * m) / 8));
          }
#pragma unroll
          for (int n = 0; n < dkv_blocks; n += 2) {
            std::uint32_t right[4];
            ptx::load_matrices_transposed(right, down(rows, c, warp_chunk + n));
#pragma unroll
            for (int m = 0; m < blocks; ++m) {
              ptx::multiply_add(to[m][n], left[m], right[0], right[1], T{});
              ptx::multiply_add(to[m][n + 1], left[m], right[2], right[3], T{});
            }
          }
        };
        multiply(dv, base + tiling::weights_at, dout_tile);
        multiply(dk, base + tiling::gradients_at, q_tile);
      }
    }
    {
      const thread_place place = thread_place::here();
      const std::int32_t warp_query = place.warp() / 4 * tiling::warp_rows;
      const std::int32_t warp_chunk = place.warp() % 4 * (Dim / 32);
      const std::int32_t first_row = query_tile * tiling::queries + warp_query + place.row(0);
      float* const first = a.dq.at(block.q_row + first_row, head, Dim) + warp_chunk * 8 +
                           four_columns_at(place.lane());
      const auto row_at = [&](int m, int i) { return first + (16 * m + 4 * i) * a.dq.row_stride; };
      const auto exists = [&](int m, int i) { return first_row + 16 * m + 4 * i < block.q_rows; };
      // The sums so far, on their way during the product; past L1, which may hold what an earlier
      // block of this processor read. Without the zeros they would take registers around the loop.
      float4 sums[blocks][2][dq_blocks / 2] = {};
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          if (!ordered || !exists(m, i)) continue;
#pragma unroll
          for (int n = 0; n < dq_blocks; n += 2) {
            sums[m][i / 2][n / 2] = __ldcg(reinterpret_cast<const float4*>(row_at(m, i) + 8 * n));
          }
        }
      }
      const auto down_keys = lane_address<tiling::keys>::down(place.lane());
      const auto down = lane_address<Dim>::down(place.lane());
      float dq[blocks][dq_blocks][4];
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int n = 0; n < dq_blocks; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) dq[m][n][i] = 0;
        }
      }
#pragma unroll 2
      for (int c = 0; c < tiling::keys / 8; c += 2) {
        std::uint32_t left[blocks][4];
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
          ptx::load_matrices(left[m],
                             down_keys(base + tiling::gradients_at, warp_query + 16 * m, c));
        }
#pragma unroll
        for (int n = 0; n < dq_blocks; n += 2) {
          std::uint32_t right[4];
          ptx::load_matrices_transposed(right, down(base, 8 * c, warp_chunk + n));
#pragma unroll
          for (int m = 0; m < blocks; ++m) {
            ptx::multiply_add(dq[m][n], left[m], right[0], right[1], T{});
            ptx::multiply_add(dq[m][n + 1], left[m], right[2], right[3], T{});
          }
        }
      }
      // Four columns of a row each, in place: [m][n][i] to [m][n + 1][i + 1] become one float4.
      const auto four_of = [&](int m, int n, int i) {
        return float4{dq[m][n][i], dq[m][n][i + 1], dq[m][n + 1][i], dq[m][n + 1][i + 1]};
      };
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int n = 0; n < dq_blocks; n += 2) {
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const float4 four = four_columns(
                float2{dq[m][n][i] * a.scale, dq[m][n][i + 1] * a.scale},
                float2{dq[m][n + 1][i] * a.scale, dq[m][n + 1][i + 1] * a.scale}, place.lane());
            dq[m][n][i] = four.x;
            dq[m][n][i + 1] = four.y;
            dq[m][n + 1][i] = four.z;
            dq[m][n + 1][i + 1] = four.w;
          }
        }
      }
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          if (!exists(m, i)) continue;
#pragma unroll
          for (int n = 0; n < dq_blocks; n += 2) {
            const float4 four = four_of(m, n, i);
            if (ordered) {
              const float4& x = sums[m][i / 2][n / 2];
              store(row_at(m, i) + 8 * n,
                    float4{x.x + four.x, x.y + four.y, x.z + four.z, x.w + four.w});
            } else {
              ptx::add_atomically(row_at(m, i) + 8 * n, four);
            }
          }
        }
      }
    }
    parity = 1 - parity;
    head = last_of_group ? kv_head * a.group : head + 1;
    query_tile = last_of_group ? query_tile - 1 : query_tile;
  }
  __syncthreads();
  if (ordered && threadIdx.x == tiling::giver) ptx::store_release(turn, block.turn + 1);

  const thread_place place = thread_place::here();
  const std::int32_t first_row = place.warp() % 4 * tiling::warp_rows + place.row(0);
  const std::int32_t column = place.warp() / 4 * (Dim / 2) + four_columns_at(place.lane());
  const auto add = [&](const float (&from)[blocks][dkv_blocks][4], const thd_view<float>& view,
                       float factor) {
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
      float* const first = view.at(block.kv_row + first_row + 16 * m, kv_head, Dim) + column;
      const auto exists = [&](int i) { return first_row + 16 * m + 4 * i < block.kv_rows; };
      float4 sums[2][dkv_blocks / 2];
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        if (!exists(i)) continue;
#pragma unroll
        for (int n = 0; n < dkv_blocks; n += 2) {
          sums[i / 2][n / 2] = load<float4>(first + 4 * i * view.row_stride + 8 * n);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
#pragma unroll
        for (int n = 0; n < dkv_blocks; n += 2) {
          const float4 four = four_columns(
              float2{from[m][n][i] * factor, from[m][n][i + 1] * factor},
              float2{from[m][n + 1][i] * factor, from[m][n + 1][i + 1] * factor}, place.lane());
          if (!exists(i)) continue;
          const float4& x = sums[i / 2][n / 2];
          store(first + 4 * i * view.row_stride + 8 * n,
                float4{x.x + four.x, x.y + four.y, x.z + four.z, x.w + four.w});
        }
      }
    }
  };
  add(dk, a.dk, a.scale);
  add(dv, a.dv, 1.0F);
}

/// Requires 16-byte aligned rows and heads of all operands, scale > 0, Dim = head size of all, and
/// zeros in `ticket` and `turns`.
template <class T, int Dim>
cudaError_t launch_backward(const backward_arguments<T>& a, cudaStream_t stream) {
  using tiling = backward_tiling<Dim>;
  backward_arguments<T> arguments = a;
  arguments.kv_heads = a.heads / a.group;
  arguments.turn_slots = static_cast<std::int32_t>(
      tile_slots<tiling::queries>(a.table.rows, a.table.count));
  const launch_config config{
      .blocks = a.table.count == 0
                    ? 0
                    : tile_slots<tiling::keys>(a.kv_rows, a.table.count) * arguments.kv_heads,
      .threads = tiling::threads,
      .shared_bytes = tiling::shared_bytes,
      .stream = stream};
  return launch(attention_backward_kernel<T, Dim>, config, arguments);
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
