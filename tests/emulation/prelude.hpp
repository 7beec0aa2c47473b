// SPDX-License-Identifier: Apache-2.0
#pragma once

// What nvcc gives a kernel and g++ does not. Included before a .cu file that g++ compiles.

#include "emulation/grid.hpp"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __launch_bounds__(...)

#define threadIdx (::dyncp_emulation::thread_index())
#define blockIdx (::dyncp_emulation::block_index())
#define blockDim (::dyncp_emulation::block_dimensions())
#define gridDim (::dyncp_emulation::grid_dimensions())

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::dyncp_emulation::current_runner()->sync_block(file, line);
}

inline void __syncwarp(unsigned lanes = 0xffffffffU) {
  ::dyncp_emulation::current_runner()->sync_lanes(lanes);
}

namespace dyncp_emulation {

/// What a lane brings to a shuffle.
struct shuffle {
  std::uint64_t bits = 0;
  std::uint32_t source = 0;
  std::uint64_t got = 0;
};

inline void exchange_lanes(void* const* lanes) {
  for (int lane = 0; lane < 32; ++lane) {
    auto* const mine = static_cast<shuffle*>(lanes[lane]);
    mine->got = static_cast<const shuffle*>(lanes[mine->source & 31])->bits;
  }
}

template <class T>
T shuffle_from(T value, std::uint32_t source) {
  static_assert(sizeof(T) <= 8);
  shuffle mine;
  std::memcpy(&mine.bits, &value, sizeof value);
  mine.source = source;
  current_runner()->meet(&mine, &exchange_lanes);
  std::memcpy(&value, &mine.got, sizeof value);
  return value;
}

[[nodiscard]] inline std::uint32_t lane_index() {
  const dim3& b = block_dimensions();
  const uint3& t = thread_index();
  return (t.x + b.x * (t.y + b.y * t.z)) & 31;
}

}  // namespace dyncp_emulation

template <class T>
T __shfl_sync(unsigned, T value, int source) {
  return ::dyncp_emulation::shuffle_from(value, static_cast<std::uint32_t>(source));
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return ::dyncp_emulation::shuffle_from(
      value, ::dyncp_emulation::lane_index() ^ static_cast<std::uint32_t>(mask));
}

inline int atomicAdd(int* to, int value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
template <class T>
T __ldcg(const T* from) {
  return *from;
}
