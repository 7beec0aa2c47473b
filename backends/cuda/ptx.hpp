// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a kernel says to the GPU and C++ has no word for: one function per instruction, with what
// it does on the host beside it, and the one way to shared memory. Needs sm_80.
//
// Registers of m16n8k16 in lane l, with g = l / 4 and t = l % 4 (PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type"); element pairs with the lower column in the lower half:
//   A (16 x 16, row-major)  a0: (g, 2t..)  a1: (g+8, 2t..)  a2: (g, 2t+8..)  a3: (g+8, 2t+8..)
//   B (16 x 8, by columns)  b0: (2t.., g)  b1: (2t+8.., g)
//   C (16 x 8, float)       c0: (g, 2t)    c1: (g, 2t+1)    c2: (g+8, 2t)    c3: (g+8, 2t+1)

#include "emulation_hooks.hpp"

#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#if !defined(__CUDACC__)
#include <atomic>
#include <cmath>
#endif

#define DYNCP_DEVICE __device__ __forceinline__

namespace dyncp {
inline namespace v0 {
namespace cuda {

#if defined(__CUDACC__)
namespace detail {
extern __shared__ __align__(128) unsigned char block_memory[];
}
#endif

/// The object of type V at `offset` bytes into the block's dynamic shared memory.
template <class V>
DYNCP_DEVICE V& shared(std::uint32_t offset) {
#if defined(__CUDACC__)
  return *reinterpret_cast<V*>(detail::block_memory + offset);
#else
  return *static_cast<V*>(emulation::shared_at(offset, sizeof(V), alignof(V)));
#endif
}

/// Where the block's dynamic shared memory begins, as an address for the functions below.
DYNCP_DEVICE std::uint32_t shared_base() {
#if defined(__CUDACC__)
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(detail::block_memory));
#else
  return 0;
#endif
}

namespace ptx {

/// cp.async: Bytes (4, 8 or 16) from global memory to shared memory at `to`, both aligned to as
/// many; zeros if !valid, without reading `from`.
template <int Bytes>
DYNCP_DEVICE void copy_async(std::uint32_t to, const void* from, bool valid) {
#if defined(__CUDACC__)
  const std::uint32_t read = valid ? Bytes : 0;
  if constexpr (Bytes == 16) {  // past L1: each byte is used by one block, from shared memory
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes),
                 "r"(read)
                 : "memory");
  }
#else
  emulation::copy_async(to, from, Bytes, valid);
#endif
}

/// cp.async.commit_group: the thread's copies since the last call become a group.
DYNCP_DEVICE void commit_copies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulation::commit_copies();
#endif
}

/// cp.async.wait_group: until at most the thread's last Pending groups are not done.
template <int Pending>
DYNCP_DEVICE void wait_copies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#else
  emulation::wait_copies(Pending);
#endif
}

#if !defined(__CUDACC__)
namespace detail {
/// What a lane brings to a ldmatrix: its row, and where its registers go.
struct matrix_row {
  std::uint16_t row[8];
  std::uint32_t* registers;
};
template <bool Transposed>
void spread_matrices(void* const* lanes) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      std::uint32_t pair = 0;
      for (int i = 0; i < 2; ++i) {
        const int row = Transposed ? 2 * (lane % 4) + i : lane / 4;
        const int column = Transposed ? lane / 4 : 2 * (lane % 4) + i;
        const auto* const from = static_cast<const matrix_row*>(lanes[8 * m + row]);
        pair |= std::uint32_t{from->row[column]} << (16 * i);
      }
      static_cast<const matrix_row*>(lanes[lane])->registers[m] = pair;
    }
  }
}
template <bool Transposed>
void load_matrices(std::uint32_t (&to)[4], std::uint32_t address) {
  matrix_row mine;
  const auto* const from = static_cast<const std::uint16_t*>(emulation::shared_at(address, 16, 16));
  for (int c = 0; c < 8; ++c) mine.row[c] = from[c];
  mine.registers = to;
  emulation::meet(&mine, &spread_matrices<Transposed>);
}
}  // namespace detail
#endif

/// ldmatrix.x4: four 8 x 8 matrices of 2-byte elements; lane l gives the address of row l % 8 of
/// matrix l / 8, and gets of each matrix the elements (l / 4, 2 * (l % 4)) and the next one.
DYNCP_DEVICE void load_matrices(std::uint32_t (&to)[4], std::uint32_t address) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
#else
  detail::load_matrices<false>(to, address);
#endif
}

/// ldmatrix.x4.trans: the same, but lane l gets the elements (2 * (l % 4), l / 4) and the one
/// below.
DYNCP_DEVICE void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t address) {
#if defined(__CUDACC__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
#else
  detail::load_matrices<true>(to, address);
#endif
}

#if !defined(__CUDACC__)
namespace detail {
/// What a lane brings to a mma.
struct fragments {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
};
template <class T>
void multiply_add(void* const* lanes) {
  const auto element = [](std::uint32_t pair, int i) {
    T x;
    x.bits = static_cast<std::uint16_t>(pair >> (16 * i));
    return static_cast<float>(x);
  };
  float a[16][16];  // (row, k)
  float b[16][8];   // (k, column)
  for (int lane = 0; lane < 32; ++lane) {
    const auto* const f = static_cast<const fragments*>(lanes[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < 4; ++r) {
        a[g + 8 * (r % 2)][2 * t + i + 8 * (r / 2)] = element(f->a[r], i);
      }
      for (int r = 0; r < 2; ++r) b[2 * t + i + 8 * r][g] = element(f->b[r], i);
    }
  }
  float c[16][8];
  for (int row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) sums[n] += a[row][k] * b[k][n];
    }
    for (int n = 0; n < 8; ++n) c[row][n] = sums[n];
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto* const f = static_cast<const fragments*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) f->c[i] += c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
  }
}
}  // namespace detail
#endif

/// mma.m16n8k16: c += a * b in bfloat16, with float sums. Registers as above.
DYNCP_DEVICE void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                               std::uint32_t b1, bfloat16) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  detail::fragments mine{c, a, {b0, b1}};
  emulation::meet(&mine, &detail::multiply_add<bfloat16>);
#endif
}

/// mma.m16n8k16: c += a * b in float16, with float sums.
DYNCP_DEVICE void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                               std::uint32_t b1, float16) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  detail::fragments mine{c, a, {b0, b1}};
  emulation::meet(&mine, &detail::multiply_add<float16>);
#endif
}

#if !defined(__CUDACC__)
namespace detail {
template <class T>
std::uint32_t pack(float low, float high) {
  return std::uint32_t{T(low).bits} | std::uint32_t{T(high).bits} << 16;
}
}  // namespace detail
#endif

/// cvt.rn.bf16x2: two floats, rounded to nearest, `low` in the lower half.
DYNCP_DEVICE std::uint32_t pack(float low, float high, bfloat16) {
#if defined(__CUDACC__)
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return detail::pack<bfloat16>(low, high);
#endif
}

/// cvt.rn.f16x2: the same to float16.
DYNCP_DEVICE std::uint32_t pack(float low, float high, float16) {
#if defined(__CUDACC__)
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return detail::pack<float16>(low, high);
#endif
}

/// cvt.f32.f16: exact.
DYNCP_DEVICE float widen(float16 x) {
#if defined(__CUDACC__)
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return static_cast<float>(x);
#endif
}

/// ex2.approx.ftz: 2^x to 2 ulp; exactly 0 for -inf, and below 2^-126.
DYNCP_DEVICE float exp2(float x) {
#if defined(__CUDACC__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = std::exp2(x);
  return y < 0x1.0p-126F ? 0.0F : y;
#endif
}

/// ld.acquire.gpu: what the writer of the value did before, is done for this thread after.
DYNCP_DEVICE std::int32_t load_acquire(const std::int32_t* from) {
#if defined(__CUDACC__)
  std::int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#else
  emulation::spin();
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}

/// st.release.gpu: what this thread did before, is done for who acquires the value.
DYNCP_DEVICE void store_release(std::int32_t* to, std::int32_t value) {
#if defined(__CUDACC__)
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}

/// No instruction, but the compiler takes it for one that changes x: what follows from x is
/// computed after this place, not kept in registers from before a loop.
DYNCP_DEVICE void forget(std::uint32_t& x) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(x));
#else
  static_cast<void>(x);
#endif
}

/// red.add: adds four floats to 16 aligned bytes of global memory, each atomically, in no order.
DYNCP_DEVICE void add_atomically(float* to, const float4& x) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x),
               "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
#else
  asm volatile(
      "red.relaxed.gpu.global.add.f32 [%0], %1;\n\t"
      "red.relaxed.gpu.global.add.f32 [%0 + 4], %2;\n\t"
      "red.relaxed.gpu.global.add.f32 [%0 + 8], %3;\n\t"
      "red.relaxed.gpu.global.add.f32 [%0 + 12], %4;" ::"l"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
      : "memory");
#endif
#else
  emulation::check_aligned(to, 16);
  const float values[] = {x.x, x.y, x.z, x.w};
  for (int i = 0; i < 4; ++i) {
    std::atomic_ref<float>(to[i]).fetch_add(values[i], std::memory_order_relaxed);
  }
#endif
}

}  // namespace ptx
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
