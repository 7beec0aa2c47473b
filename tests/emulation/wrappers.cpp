// SPDX-License-Identifier: Apache-2.0
// Each function of ptx.hpp alone, against what the PTX ISA says of its instruction; the matrix
// instructions are in fragments.cpp. The same file runs in the emulator and on a GPU.
#include "emulation/kernel_runner.hpp"

#include "support/random.hpp"

#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// --- cp.async

struct copy_arguments {
  const unsigned char* from;  // (2, 32, Bytes)
  unsigned char* to;          // (2, 32, Bytes): lane l gets what lane 31 - l fetched
};

/// Two groups. Lanes that are a multiple of 3 fetch nothing, from nowhere.
template <int Bytes>
__global__ void copy_kernel(copy_arguments p) {
  const std::uint32_t lane = threadIdx.x;
  constexpr std::uint32_t group = 32 * Bytes;
  for (std::uint32_t g = 0; g < 2; ++g) {
    const bool valid = lane % 3 != 0;
    cuda::ptx::copy_async<Bytes>(cuda::shared_base() + g * group + lane * Bytes,
                                 valid ? p.from + g * group + lane * Bytes : nullptr, valid);
    cuda::ptx::commit_copies();
  }
  for (std::uint32_t g = 0; g < 2; ++g) {
    if (g == 0) {
      cuda::ptx::wait_copies<1>();
    } else {
      cuda::ptx::wait_copies<0>();
    }
    __syncthreads();
    for (std::uint32_t i = 0; i < Bytes; ++i) {
      p.to[g * group + lane * Bytes + i] =
          cuda::shared<unsigned char>(g * group + (31 - lane) * Bytes + i);
    }
  }
}

template <int Bytes>
std::int64_t wrong_copies(std::uint64_t seed) {
  const machine m({.seed = seed});
  device_vector<unsigned char> from(64 * Bytes);
  device_vector<unsigned char> to(64 * Bytes, 0xee);
  for (std::size_t i = 0; i < 64 * Bytes; ++i) from[i] = static_cast<unsigned char>(i % 251 + 1);
  REQUIRE(run_kernel(copy_kernel<Bytes>, 1, 32, 64 * Bytes,
                     copy_arguments{from.data(), to.data()}) == cudaSuccess);
  std::int64_t wrong = 0;
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t lane = 0; lane < 32; ++lane) {
      for (std::size_t i = 0; i < Bytes; ++i) {
        const std::size_t at = (g * 32 + 31 - lane) * Bytes + i;
        const int expected = (31 - lane) % 3 == 0 ? 0 : from[at];
        if (to[(g * 32 + lane) * Bytes + i] != expected) ++wrong;
      }
    }
  }
  return wrong;
}

// --- conversions

struct pack_arguments {
  const float* from;  // (count)
  std::uint32_t* to;  // (count / 2)
  std::int32_t count;
};
template <class T>
__global__ void pack_kernel(pack_arguments p) {
  const auto i = static_cast<std::int32_t>(blockIdx.x * 32 + threadIdx.x);
  if (2 * i + 1 < p.count) p.to[i] = cuda::ptx::pack(p.from[2 * i], p.from[2 * i + 1], T{});
}

/// The value of a 2-byte number with `exponent_bits`, from its definition.
double value_of(std::uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                               : std::ldexp(fraction + (1 << fraction_bits),
                                            exponent - bias - fraction_bits));
}

/// Rounding to nearest, ties to even, by looking at the neighbours among all numbers.
class nearest {
 public:
  explicit nearest(int exponent_bits) {
    const auto infinite =
        static_cast<std::uint32_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
    for (std::uint32_t bits = 0; bits < infinite; ++bits) {
      values_.push_back(value_of(static_cast<std::uint16_t>(bits), exponent_bits));
    }
    // Infinity is where the next number would be.
    values_.push_back(2 * values_.back() - values_[values_.size() - 2]);
  }
  /// Of a number that is not NaN.
  [[nodiscard]] std::uint16_t operator()(float x) const {
    const double size = std::fabs(static_cast<double>(x));
    const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const auto above = std::lower_bound(values_.begin(), values_.end(), size);
    auto bits = static_cast<std::uint32_t>(above - values_.begin());
    if (above == values_.end()) {
      bits = static_cast<std::uint32_t>(values_.size() - 1);
    } else if (bits > 0) {
      const double up = *above - size;
      const double down = size - *(above - 1);
      if (down < up || (down == up && bits % 2 != 0)) --bits;
    }
    return static_cast<std::uint16_t>(sign | bits);
  }

 private:
  std::vector<double> values_;  // ascending, by bits
};

float float_of(std::uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// Numbers of all sizes, ties of both types, and what is no number.
std::vector<float> many_floats() {
  std::vector<float> list = {0.0F,     -0.0F,    infinity, -infinity, NAN,    1.0F,
                             65504.0F, 65519.9F, 65520.0F, -65520.0F, 1e-45F, -1e-45F,
                             5.9e-8F,  2.9e-8F,  2.98023224e-8F,      3.4e38F, 6.1e-5F};
  dyncp_test::random rng(21);
  for (int i = 0; i < 2000; ++i) {
    const auto bits = static_cast<std::uint32_t>(rng.next());
    list.push_back(float_of(bits));
    list.push_back(float_of((bits & 0xffff0000U) | 0x8000U));                  // ties of bfloat16
    list.push_back(std::ldexp(float_of((bits & 0x007fe000U) | 0x3f801000U),    // and of float16
                              static_cast<int>(bits >> 24) % 32 - 15));
    list.push_back(static_cast<float>(2 * rng.unit() - 1));
  }
  if (list.size() % 2 != 0) list.push_back(0);
  return list;
}

template <class T>
void check_pack(int exponent_bits) {
  const machine m;
  const std::vector<float> list = many_floats();
  device_vector<float> from(list.size());
  device_vector<std::uint32_t> to(list.size() / 2);
  for (std::size_t i = 0; i < list.size(); ++i) from[i] = list[i];
  REQUIRE(run_kernel(pack_kernel<T>, static_cast<std::int64_t>(list.size() / 64 + 1), 32, 0,
                     pack_arguments{from.data(), to.data(),
                                    static_cast<std::int32_t>(list.size())}) == cudaSuccess);
  const nearest round(exponent_bits);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto got = static_cast<std::uint16_t>(to[i / 2] >> (16 * (i % 2)));
    if (std::isnan(list[i]) ? !std::isnan(value_of(got, exponent_bits)) : got != round(list[i])) {
      ++wrong;
    }
  }
  CHECK(wrong == 0);
}

struct widen_arguments {
  float* to;  // (65536)
};
__global__ void widen_kernel(widen_arguments p) {
  const std::uint32_t i = blockIdx.x * 256 + threadIdx.x;
  float16 x;
  x.bits = static_cast<std::uint16_t>(i);
  p.to[i] = cuda::ptx::widen(x);
}

struct exp2_arguments {
  const float* from;
  float* to;
  std::int32_t count;
};
__global__ void exp2_kernel(exp2_arguments p) {
  const auto i = static_cast<std::int32_t>(blockIdx.x * 256 + threadIdx.x);
  if (i < p.count) p.to[i] = cuda::ptx::exp2(p.from[i]);
}

// --- memory between blocks

struct relay_arguments {
  std::int32_t* flag;
  std::int32_t* data;  // (64): written by the block whose turn it is, each round
  std::int32_t* wrong;
  std::int32_t rounds;
};
/// Two blocks take turns; each checks what the other wrote and writes all anew.
__global__ void relay_kernel(relay_arguments p) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto me = static_cast<std::int32_t>(blockIdx.x);
  for (std::int32_t turn = me; turn < p.rounds; turn += 2) {
    if (thread == 0) {
      while (cuda::ptx::load_acquire(p.flag) < turn) {
      }
    }
    __syncthreads();
    if (p.data[thread] != turn * 64 + thread) p.wrong[thread] += 1;
    __syncthreads();
    p.data[63 - thread] = (turn + 1) * 64 + 63 - thread;
    __syncthreads();
    if (thread == 0) cuda::ptx::store_release(p.flag, turn + 1);
  }
}

struct sum_arguments {
  float* to;  // (24)
};
__global__ void sum_kernel(sum_arguments p) {
  const auto x = static_cast<float>(threadIdx.x);
  cuda::ptx::add_atomically(p.to + 4 + threadIdx.x % 4 * 4, float4{x, 1, -x, 0.5F});
}

struct forget_arguments {
  std::uint32_t* to;  // (32)
};
__global__ void forget_kernel(forget_arguments p) {
  std::uint32_t x = threadIdx.x * 3;
  cuda::ptx::forget(x);
  p.to[threadIdx.x] = x;
}

}  // namespace

TEST_CASE("cp.async of 4, 8 and 16 bytes, with zeros from nowhere; groups in order") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CHECK(wrong_copies<4>(seed) == 0);
    CHECK(wrong_copies<8>(seed) == 0);
    CHECK(wrong_copies<16>(seed) == 0);
  }
}

TEST_CASE("cvt.rn.bf16x2 and cvt.rn.f16x2 round to the nearest number, ties to even") {
  check_pack<bfloat16>(8);
  check_pack<float16>(5);
}

TEST_CASE("cvt.f32.f16 is exact for all 65536 numbers") {
  const machine m;
  device_vector<float> to(65536);
  REQUIRE(run_kernel(widen_kernel, 256, 256, 0, widen_arguments{to.data()}) == cudaSuccess);
  std::int64_t wrong = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const double expected = value_of(static_cast<std::uint16_t>(i), 5);
    const auto got = static_cast<double>(to[i]);
    const bool same = std::isnan(expected)
                          ? std::isnan(got)
                          : got == expected && std::signbit(got) == std::signbit(expected);
    if (!same) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("ex2.approx.ftz: to 2^-22, 0 for -inf and below the normal numbers, inf from 128 on") {
  const machine m;
  std::vector<float> list = {0.0F, 1.0F, -1.0F, 127.0F, -126.0F, -127.0F, -149.0F, -150.0F, -1e4F,
                             128.0F, 1e4F, infinity, -infinity, NAN};
  dyncp_test::random rng(22);
  for (int i = 0; i < 5000; ++i) list.push_back(static_cast<float>(260 * rng.unit() - 130));
  for (int i = 0; i < 5000; ++i) list.push_back(static_cast<float>(-2 * rng.unit()));
  device_vector<float> from(list.size());
  device_vector<float> to(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) from[i] = list[i];
  REQUIRE(run_kernel(exp2_kernel, static_cast<std::int64_t>(list.size() / 256 + 1), 256, 0,
                     exp2_arguments{from.data(), to.data(),
                                    static_cast<std::int32_t>(list.size())}) == cudaSuccess);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const float x = list[i];
    const float y = to[i];
    const double expected = std::exp2(static_cast<double>(x));
    bool right = false;
    if (std::isnan(x)) {
      right = std::isnan(y);
    } else if (x < -126.0F) {
      right = y == 0.0F;
    } else if (x >= 128.0F) {
      right = y == infinity;
    } else {
      right = std::fabs(static_cast<double>(y) - expected) <= 0x1p-22 * expected;
    }
    if (!right) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("ld.acquire and st.release hand memory from block to block") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const machine m({.seed = seed});
    device_vector<std::int32_t> flag(1);
    device_vector<std::int32_t> data(64);
    device_vector<std::int32_t> wrong(64);
    for (std::size_t i = 0; i < 64; ++i) data[i] = static_cast<std::int32_t>(i);
    constexpr std::int32_t rounds = on_gpu ? 20'000 : 100;
    REQUIRE(run_kernel(relay_kernel, 2, 64, 0,
                       relay_arguments{flag.data(), data.data(), wrong.data(), rounds}) ==
            cudaSuccess);
    CHECK(flag[0] == rounds);
    CHECK(wrong.values() == std::vector<std::int32_t>(64, 0));
    for (std::size_t i = 0; i < 64; ++i) {
      CHECK(data[i] == rounds * 64 + static_cast<std::int32_t>(i));
    }
  }
}

TEST_CASE("red.add: four sums each, nothing beside them") {
  const machine m;
  device_vector<float> to(24, 2.0F);
  REQUIRE(run_kernel(sum_kernel, 50, 64, 0, sum_arguments{to.data()}) == cudaSuccess);
  for (std::size_t i = 0; i < 24; ++i) {
    float expected = 2;
    if (i >= 4 && i < 20) {
      const std::size_t place = i / 4 - 1;  // of threads place, place + 4, ..., place + 60
      const float x = 50.0F * (16.0F * static_cast<float>(place) + 4.0F * 120.0F);
      const float each[] = {x, 800, -x, 400};
      expected += each[i % 4];
    }
    CHECK(to[i] == expected);
  }
}

TEST_CASE("forget changes nothing") {
  const machine m;
  device_vector<std::uint32_t> to(32);
  REQUIRE(run_kernel(forget_kernel, 1, 32, 0, forget_arguments{to.data()}) == cudaSuccess);
  for (std::uint32_t i = 0; i < 32; ++i) CHECK(to[i] == 3 * i);
}
