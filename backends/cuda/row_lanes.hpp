// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of bytes, each moved by a group of lanes of one warp.

#include "ptx.hpp"
#include "vector.hpp"

#include <dyncp/core/int_math.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// How rows are dealt to threads: 2^shift lanes for a row, blocks of `threads` for 256 >> shift.
struct row_lanes {
  static constexpr int threads = 256;
  static constexpr int blocks_at_once = 6;  // on a processor: as many as hide the memory's latency
  std::int32_t shift = 0;

  /// For rows of `units` accesses: as many lanes, at most a warp.
  [[nodiscard]] static row_lanes of(std::int64_t units) {
    row_lanes lanes;
    while (lanes.shift < 5 && (std::int64_t{1} << lanes.shift) < units) ++lanes.shift;
    return lanes;
  }
  [[nodiscard]] std::int64_t blocks(std::int64_t rows) const {
    return ceil_div(rows, threads >> shift);
  }
  [[nodiscard]] DYNCP_DEVICE std::int64_t row(std::int64_t block, std::uint32_t thread) const {
    return block * (threads >> shift) + (thread >> shift);
  }
  [[nodiscard]] DYNCP_DEVICE std::int32_t lane(std::uint32_t thread) const {
    return static_cast<std::int32_t>(thread) & ((1 << shift) - 1);
  }
  /// The lanes of the warp that share the row of `thread`.
  [[nodiscard]] DYNCP_DEVICE std::uint32_t mask(std::uint32_t thread) const {
    const std::uint32_t all = 0xffffffffU >> (32 - (1 << shift));
    return all << (thread % 32 >> shift << shift);
  }
};

/// The largest power of two up to 16 that divides all of them.
[[nodiscard]] inline std::int64_t common_unit(std::int64_t bytes, const void* a, const void* b) {
  const auto all = static_cast<std::uint64_t>(bytes) | reinterpret_cast<std::uintptr_t>(a) |
                   reinterpret_cast<std::uintptr_t>(b) | 16U;
  return static_cast<std::int64_t>(all & (~all + 1));
}

/// The part of the calling lane of a row: copied, or zeros without `from`. Several loads are under
/// way before the first store.
template <class V>
DYNCP_DEVICE void copy_row(const row_lanes& lanes, std::byte* to, const std::byte* from,
                           std::int64_t row_bytes) {
  constexpr std::int64_t unit = sizeof(V);
  constexpr int ahead = 4;
  const std::int64_t step = unit << lanes.shift;
  std::int64_t at = unit * lanes.lane(threadIdx.x);
  if (from == nullptr) {
    for (; at < row_bytes; at += step) store(to + at, V{});
    return;
  }
  for (; at < row_bytes; at += ahead * step) {
    V values[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (at + i * step < row_bytes) values[i] = load<V>(from + at + i * step);
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (at + i * step < row_bytes) store(to + at + i * step, values[i]);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
