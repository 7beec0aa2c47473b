// SPDX-License-Identifier: Apache-2.0
// The registers of a warp against the tables of the PTX ISA, and products made of them.
#include "emulation/kernel_runner.hpp"

#include "support/random.hpp"

#include <fragments.hpp>

#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": where element i of a
// lane's registers lies, elements counted from the lower half of the first register.
struct place {
  int row = 0;
  int column = 0;
};
place a_place(int lane, int i) {
  const int group = lane >> 2;
  const int thread_in_group = lane % 4;
  return {(i < 2 || (i >= 4 && i < 6)) ? group : group + 8,
          thread_in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
place b_place(int lane, int i) {
  const int group = lane >> 2;
  const int thread_in_group = lane % 4;
  return {thread_in_group * 2 + (i & 1) + (i < 2 ? 0 : 8), group};
}
place c_place(int lane, int i) {
  const int group = lane >> 2;
  const int thread_in_group = lane % 4;
  return {i < 2 ? group : group + 8, thread_in_group * 2 + (i & 1)};
}

template <class T>
struct mma_arguments {
  const T* a;  // (32, 8) elements of each lane, in the order of its registers
  const T* b;  // (32, 4)
  float* c;    // (32, 4)
};

template <class T>
DYNCP_DEVICE std::uint32_t word(const T* elements) {
  return std::uint32_t{elements[0].bits} | std::uint32_t{elements[1].bits} << 16;
}

template <class T>
__global__ void mma_kernel(mma_arguments<T> p) {
  const std::uint32_t lane = threadIdx.x;
  std::uint32_t a[4];
  for (int r = 0; r < 4; ++r) a[r] = word(p.a + lane * 8 + 2 * r);
  float c[4];
  for (int i = 0; i < 4; ++i) c[i] = p.c[lane * 4 + i];
  cuda::ptx::multiply_add(c, a, word(p.b + lane * 4), word(p.b + lane * 4 + 2), T{});
  for (int i = 0; i < 4; ++i) p.c[lane * 4 + i] = c[i];
}

template <class T>
T number(float x) {
  return T(x);
}

template <class T>
void check_mma() {
  const machine m;
  device_vector<T> a(32 * 8);
  device_vector<T> b(32 * 4);
  device_vector<float> c(32 * 4);
  // One element of A against columns that are told apart: it shows the row and k of A's element,
  // k of B's elements, and the row and column of C's.
  std::int64_t wrong = 0;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) {
      for (int l = 0; l < 32; ++l) {
        for (int j = 0; j < 8; ++j) a[static_cast<std::size_t>(l * 8 + j)] = number<T>(0);
        for (int j = 0; j < 4; ++j) {
          const place at = b_place(l, j);
          b[static_cast<std::size_t>(l * 4 + j)] =
              number<T>(static_cast<float>(at.row * 8 + at.column + 1));
          c[static_cast<std::size_t>(l * 4 + j)] = 0.5F;
        }
      }
      a[static_cast<std::size_t>(lane * 8 + i)] = number<T>(1);
      REQUIRE(run_kernel(mma_kernel<T>, 1, 32, 0, {a.data(), b.data(), c.data()}) == cudaSuccess);
      const place one = a_place(lane, i);
      for (int l = 0; l < 32; ++l) {
        for (int j = 0; j < 4; ++j) {
          const place at = c_place(l, j);
          const float expected =
              at.row == one.row ? static_cast<float>(one.column * 8 + at.column + 1) : 0.0F;
          if (c[static_cast<std::size_t>(l * 4 + j)] != expected + 0.5F) ++wrong;
        }
      }
    }
  }
  CHECK(wrong == 0);

  dyncp_test::random rng(9);
  float whole_a[16][16];
  float whole_b[16][8];
  for (int round = 0; round < 20; ++round) {
    for (int l = 0; l < 32; ++l) {
      for (int i = 0; i < 8; ++i) {
        const T x = number<T>(static_cast<float>(2 * rng.unit() - 1));
        a[static_cast<std::size_t>(l * 8 + i)] = x;
        whole_a[a_place(l, i).row][a_place(l, i).column] = static_cast<float>(x);
      }
      for (int i = 0; i < 4; ++i) {
        const T x = number<T>(static_cast<float>(2 * rng.unit() - 1));
        b[static_cast<std::size_t>(l * 4 + i)] = x;
        whole_b[b_place(l, i).row][b_place(l, i).column] = static_cast<float>(x);
        c[static_cast<std::size_t>(l * 4 + i)] = static_cast<float>(i);
      }
    }
    REQUIRE(run_kernel(mma_kernel<T>, 1, 32, 0, {a.data(), b.data(), c.data()}) == cudaSuccess);
    double worst = 0;
    for (int l = 0; l < 32; ++l) {
      for (int i = 0; i < 4; ++i) {
        const place at = c_place(l, i);
        double sum = i;
        for (int k = 0; k < 16; ++k) {
          sum +=
              static_cast<double>(whole_a[at.row][k]) * static_cast<double>(whole_b[k][at.column]);
        }
        worst = std::fmax(worst, std::fabs(sum - static_cast<double>(
                                               c[static_cast<std::size_t>(l * 4 + i)])));
      }
    }
    CHECK(worst <= 1e-5);
  }
}

struct matrices_arguments {
  const std::uint16_t* rows;  // (32, 8)
  std::uint16_t* direct;      // (32, 4, 2)
  std::uint16_t* transposed;
};

__global__ void matrices_kernel(matrices_arguments p) {
  const std::uint32_t lane = threadIdx.x;
  // Row l of the four matrices lies at an odd place, to show that addresses count.
  const std::uint32_t at = (lane * 7 % 32) * 16;
  for (int i = 0; i < 8; ++i) {
    cuda::shared<std::uint16_t>(at + static_cast<std::uint32_t>(i) * 2) =
        p.rows[lane * 8 + static_cast<std::uint32_t>(i)];
  }
  __syncthreads();
  std::uint32_t x[4];
  std::uint32_t y[4];
  cuda::ptx::load_matrices(x, cuda::shared_base() + at);
  cuda::ptx::load_matrices_transposed(y, cuda::shared_base() + at);
  for (std::uint32_t m = 0; m < 4; ++m) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      p.direct[lane * 8 + m * 2 + i] = static_cast<std::uint16_t>(x[m] >> (16 * i));
      p.transposed[lane * 8 + m * 2 + i] = static_cast<std::uint16_t>(y[m] >> (16 * i));
    }
  }
}

/// A (Rows x K) times B (K x Columns), each operand out of shared memory in both of its ways.
constexpr int product_rows = 32;
constexpr int product_k = 64;
constexpr int product_columns = 64;
struct product_arguments {
  const bfloat16* a;   // (rows, k)
  const bfloat16* at;  // (k, rows)
  const bfloat16* b;   // (k, columns)
  const bfloat16* bt;  // (columns, k)
  float* c;            // (4, rows, columns): for a or at, with b or bt
};

__global__ void product_kernel(product_arguments p) {
  using namespace cuda;
  constexpr std::uint32_t tile = 64 * 64 * 2;
  const std::uint32_t base = shared_base();
  load_tile_async<32, 64, 64>(base, p.a, product_k, 32);
  // Only 32 columns wide in truth: rows of 64 with garbage-free padding.
  load_tile_async<64, 64, 64>(base + tile, p.at, 64, 64);
  load_tile_async<64, 64, 64>(base + 2 * tile, p.b, product_columns, 64);
  load_tile_async<64, 64, 64>(base + 3 * tile, p.bt, product_k, 64);
  ptx::commit_copies();
  ptx::wait_copies<0>();
  __syncthreads();
  const thread_place place = thread_place::here();
  const std::int32_t row = place.warp() * 16;
  const auto down = lane_address<64>::down(place.lane());
  const auto across = lane_address<64>::across(place.lane());
  for (int way = 0; way < 4; ++way) {
    float c[8][4] = {};
    for (int k = 0; k < product_k; k += 16) {
      std::uint32_t left[4];
      if (way / 2 == 0) {
        ptx::load_matrices(left, down(base, row, k / 8));
      } else {
        ptx::load_matrices_transposed(left, across(base + tile, k, row / 8));
      }
      for (int n = 0; n < 8; n += 2) {
        std::uint32_t right[4];
        if (way % 2 == 0) {
          ptx::load_matrices_transposed(right, down(base + 2 * tile, k, n));
        } else {
          ptx::load_matrices(right, across(base + 3 * tile, 8 * n, k / 8));
        }
        ptx::multiply_add(c[n], left, right[0], right[1], bfloat16{});
        ptx::multiply_add(c[n + 1], left, right[2], right[3], bfloat16{});
      }
    }
    float* const to = p.c + way * product_rows * product_columns;
    for (int n = 0; n < 8; n += 2) {
      for (int i = 0; i < 4; i += 2) {
        const float4 four = four_columns(float2{c[n][i], c[n][i + 1]},
                                         float2{c[n + 1][i], c[n + 1][i + 1]}, place.lane());
        const std::int32_t column = 8 * n + four_columns_at(place.lane());
        const float values[] = {four.x, four.y, four.z, four.w};
        for (int j = 0; j < 4; ++j) {
          to[(row + place.row(i)) * product_columns + column + j] = values[j];
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("m16n8k16 has its elements where the PTX ISA says, and multiplies") {
  check_mma<bfloat16>();
  check_mma<float16>();
}

TEST_CASE(
    "ldmatrix gives lane l row l / 4, columns 2 * (l % 4) and the next; .trans the transpose") {
  const machine m;
  device_vector<std::uint16_t> rows(32 * 8);
  device_vector<std::uint16_t> direct(32 * 8);
  device_vector<std::uint16_t> transposed(32 * 8);
  for (std::size_t i = 0; i < 256; ++i) rows[i] = static_cast<std::uint16_t>(i);
  REQUIRE(run_kernel(matrices_kernel, 1, 32, 512,
                     matrices_arguments{rows.data(), direct.data(), transposed.data()}) ==
          cudaSuccess);
  std::int64_t wrong = 0;
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t m = 0; m < 4; ++m) {
      for (std::size_t i = 0; i < 2; ++i) {
        const std::size_t row = lane / 4;
        const std::size_t column = 2 * (lane % 4) + i;
        if (direct[lane * 8 + m * 2 + i] != (8 * m + row) * 8 + column) ++wrong;
        if (transposed[lane * 8 + m * 2 + i] != (8 * m + column) * 8 + row) ++wrong;
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE(
    "a product through tiles in shared memory equals the plain one, for each way of loading") {
  dyncp_test::random rng(4);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const machine m({.seed = seed});
    device_vector<bfloat16> a(32 * 64);
    device_vector<bfloat16> at(64 * 64);
    device_vector<bfloat16> b(64 * 64);
    device_vector<bfloat16> bt(64 * 64);
    device_vector<float> c(4 * 32 * 64);
    for (std::size_t k = 0; k < 64; ++k) {
      for (std::size_t r = 0; r < 32; ++r) {
        a[r * 64 + k] = at[k * 64 + r] = bfloat16(static_cast<float>(2 * rng.unit() - 1));
      }
      for (std::size_t n = 0; n < 64; ++n) {
        b[k * 64 + n] = bt[n * 64 + k] = bfloat16(static_cast<float>(2 * rng.unit() - 1));
      }
    }
    REQUIRE(run_kernel(product_kernel, 1, 64, 4 * 8192,
                       product_arguments{a.data(), at.data(), b.data(), bt.data(), c.data()}) ==
            cudaSuccess);
    double worst = 0;
    for (std::size_t way = 0; way < 4; ++way) {
      for (std::size_t r = 0; r < 32; ++r) {
        for (std::size_t n = 0; n < 64; ++n) {
          double sum = 0;
          for (std::size_t k = 0; k < 64; ++k) {
            sum += static_cast<double>(static_cast<float>(a[r * 64 + k])) *
                   static_cast<double>(static_cast<float>(b[k * 64 + n]));
          }
          worst =
              std::fmax(worst, std::fabs(sum - static_cast<double>(c[(way * 32 + r) * 64 + n])));
        }
      }
    }
    CHECK(worst <= 1e-5);
  }
}

#if !defined(__CUDACC__)  // host code calls device functions
TEST_CASE("a swizzled tile holds each element once, and eight rows of a chunk in all banks") {
  std::vector<int> seen(128 * 16, 0);
  for (std::int32_t row = 0; row < 128; ++row) {
    for (std::int32_t chunk = 0; chunk < 16; ++chunk) {
      ++seen[cuda::shared_tile<128>::offset(row, chunk) / 16];
    }
  }
  for (const int times : seen) CHECK(times == 1);
  for (std::int32_t row = 0; row < 64; row += 8) {
    for (std::int32_t chunk = 0; chunk < 8; ++chunk) {
      std::uint32_t banks = 0;
      for (std::int32_t r = 0; r < 8; ++r) {
        banks |= 1U << (cuda::shared_tile<64>::offset(row + r, chunk) / 16 % 8);
      }
      CHECK(banks == 0xff);
    }
  }
}
#endif
