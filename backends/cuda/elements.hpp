// SPDX-License-Identifier: Apache-2.0
#pragma once

// Elements of the caller's types as floats, one or several at a time.

#include "ptx.hpp"
#include "vector.hpp"

#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

DYNCP_DEVICE float to_float(float x) { return x; }
DYNCP_DEVICE float to_float(bfloat16 x) { return static_cast<float>(x); }
DYNCP_DEVICE float to_float(float16 x) { return ptx::widen(x); }

DYNCP_DEVICE void from_float(float x, float& to) { to = x; }
template <class T>
DYNCP_DEVICE void from_float(float x, T& to) {
  to.bits = static_cast<std::uint16_t>(ptx::pack(x, 0.0F, T{}));
}

/// N consecutive elements, moved in accesses of up to 16 bytes, to which they are aligned.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) element_pack {
  T x[N];
};

template <int N, class T>
DYNCP_DEVICE void load_floats(const T* from, float (&to)[N]) {
  constexpr int each = sizeof(T) * N <= 16 ? N : static_cast<int>(16 / sizeof(T));
#pragma unroll
  for (int i = 0; i < N; i += each) {
    const auto pack = load<element_pack<T, each>>(from + i);
#pragma unroll
    for (int j = 0; j < each; ++j) to[i + j] = to_float(pack.x[j]);
  }
}

template <int N, class T>
DYNCP_DEVICE void store_floats(T* to, const float (&from)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    constexpr int words = N / 2 <= 4 ? N / 2 : 4;
#pragma unroll
    for (int i = 0; i < N; i += 2 * words) {
      element_pack<std::uint32_t, words> pack;
#pragma unroll
      for (int j = 0; j < words; ++j) {
        pack.x[j] = ptx::pack(from[i + 2 * j], from[i + 2 * j + 1], T{});
      }
      store(to + i, pack);
    }
  } else {
    constexpr int each = sizeof(T) * N <= 16 ? N : static_cast<int>(16 / sizeof(T));
#pragma unroll
    for (int i = 0; i < N; i += each) {
      element_pack<T, each> pack;
#pragma unroll
      for (int j = 0; j < each; ++j) from_float(from[i + j], pack.x[j]);
      store(to + i, pack);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
