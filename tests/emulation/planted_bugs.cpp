// SPDX-License-Identifier: Apache-2.0
// Each kind of mistake that the emulator is there for is made on purpose, and found; the same
// kernel without it is right for every seed.
#include "emulation/kernel_runner.hpp"

#include <fragments.hpp>
#include <vector.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;
using dyncp_emulation::fault_kind;
using dyncp_emulation::world;

namespace {

constexpr std::uint64_t seeds = 20;

/// In how many of `seeds` runs f(seed) is false.
std::uint64_t failures(const std::function<bool(std::uint64_t)>& f) {
  std::uint64_t bad = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) bad += f(seed) ? 0 : 1;
  return bad;
}

// --- streams: one fills a buffer, another takes it away, then the first fills it again

enum class stream_bug : std::int32_t { none, no_wait_before_read, no_wait_before_write };

bool streams_right(stream_bug bug, std::uint64_t seed) {
  world w({.seed = seed});
  cudaStream_t a = nullptr;
  cudaStream_t b = nullptr;
  cudaEvent_t filled = nullptr;
  cudaEvent_t taken = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&taken, cudaEventDisableTiming) == cudaSuccess);
  device_vector<char> data(64);
  device_vector<char> to(64);
  REQUIRE(cudaMemsetAsync(data.data(), 1, 64, a) == cudaSuccess);
  REQUIRE(cudaEventRecord(filled, a) == cudaSuccess);
  if (bug != stream_bug::no_wait_before_read) {
    REQUIRE(cudaStreamWaitEvent(b, filled, 0) == cudaSuccess);
  }
  REQUIRE(cudaMemcpyAsync(to.data(), data.data(), 64, cudaMemcpyDeviceToDevice, b) == cudaSuccess);
  REQUIRE(cudaEventRecord(taken, b) == cudaSuccess);
  if (bug != stream_bug::no_wait_before_write) {
    REQUIRE(cudaStreamWaitEvent(a, taken, 0) == cudaSuccess);
  }
  REQUIRE(cudaMemsetAsync(data.data(), 2, 64, a) == cudaSuccess);
  REQUIRE(finish(a) == cudaSuccess);
  REQUIRE(finish(b) == cudaSuccess);
  REQUIRE(cudaEventDestroy(filled) == cudaSuccess);
  REQUIRE(cudaEventDestroy(taken) == cudaSuccess);
  return to[0] == 1 && to[63] == 1;
}

/// The fault that `f` leaves behind.
template <class F>
dyncp_emulation::fault fault_of(F f, const dyncp_emulation::world_options& options = {}) {
  world w(options);
  f();
  return w.first_fault();
}

// --- cp.async: a ring of two places, each reversed by the block, through shared memory

enum class copy_bug : std::int32_t { none, no_wait, no_barrier_before_reuse };
struct copies_arguments {
  const float* from;  // (rounds, 64)
  float* to;          // (rounds, 64), each round reversed
  std::int32_t rounds;
  copy_bug bug;
};

__global__ void copies_kernel(copies_arguments p) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto fetch = [&](std::int32_t round) {
    if (round < p.rounds && thread < 16) {
      cuda::ptx::copy_async<16>(
          cuda::shared_base() + static_cast<std::uint32_t>(round % 2 * 256 + thread * 16),
          p.from + round * 64 + thread * 4, true);
    }
    cuda::ptx::commit_copies();
  };
  fetch(0);
  for (std::int32_t round = 0; round < p.rounds; ++round) {
    if (p.bug == copy_bug::no_barrier_before_reuse) {
      fetch(round + 1);  // into the place that others may still read
      cuda::ptx::wait_copies<1>();
      __syncthreads();
    } else {
      if (p.bug != copy_bug::no_wait) cuda::ptx::wait_copies<0>();
      __syncthreads();
      fetch(round + 1);
    }
    p.to[round * 64 + thread] = cuda::shared<float>(
        static_cast<std::uint32_t>(round % 2 * 256 + (63 - thread) * 4));
  }
  cuda::ptx::wait_copies<0>();
}

bool copies_right(copy_bug bug, std::uint64_t seed) {
  world w({.seed = seed});
  constexpr std::int32_t rounds = 6;
  device_vector<float> from(rounds * 64);
  device_vector<float> to(rounds * 64);
  for (std::size_t i = 0; i < rounds * 64; ++i) from[i] = static_cast<float>(i) + 1;
  REQUIRE(run_kernel(copies_kernel, 1, 64, 512,
                     copies_arguments{from.data(), to.data(), rounds, bug}) == cudaSuccess);
  for (std::size_t i = 0; i < rounds * 64; ++i) {
    if (to[i] != from[i / 64 * 64 + 63 - i % 64]) return false;
  }
  return true;
}

// --- shared memory: a block reverses 128 numbers

enum class share_bug : std::int32_t { none, no_barrier, uninitialised };
struct share_arguments {
  const float* from;
  float* to;
  share_bug bug;
};

__global__ void share_kernel(share_arguments p) {
  const std::uint32_t thread = threadIdx.x;
  if (p.bug != share_bug::uninitialised || thread != 5) {
    cuda::shared<float>(thread * 4) = p.from[thread];
  }
  if (p.bug != share_bug::no_barrier) __syncthreads();
  p.to[thread] = cuda::shared<float>((127 - thread) * 4);
}

bool share_right(share_bug bug, std::uint64_t seed) {
  world w({.seed = seed});
  device_vector<float> from(128);
  device_vector<float> to(128);
  for (std::size_t i = 0; i < 128; ++i) from[i] = static_cast<float>(i) + 1;
  REQUIRE(run_kernel(share_kernel, 1, 128, 512, share_arguments{from.data(), to.data(), bug}) ==
          cudaSuccess);
  for (std::size_t i = 0; i < 128; ++i) {
    if (to[i] != from[127 - i]) return false;
  }
  return true;
}

// --- blocks of one kernel: the second half reads what the first half writes

struct blocks_arguments {
  float* data;   // (8)
  float* result;  // (8)
};
__global__ void blocks_kernel(blocks_arguments p) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x < 4) {
    p.data[blockIdx.x] = 1;
  } else {
    p.result[blockIdx.x] = p.data[blockIdx.x - 4];
  }
}

// --- one access or one call that is wrong

enum class act : std::int32_t {
  right,
  global_behind,
  global_before,
  shared_behind,
  copy_behind,
  misaligned_load,
  misaligned_store,
  misaligned_copy,
  misaligned_matrix,
  some_skip_barrier,
  two_barriers,
  some_end_before_barrier,
  lanes_part,
  different_shuffles,
  endless_poll,
  deep_stack,
};
struct act_arguments {
  float* data;  // (64), 256 bytes: the next byte is not mapped
  std::int32_t* flag;
  act what;
};

int deep(int n, volatile int* sum) {
  volatile char room[1024];
  room[0] = static_cast<char>(n);
  if (n > 0) *sum = *sum + deep(n - 1, sum) + room[0];
  return n;
}

__global__ void act_kernel(act_arguments p) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  float x = 0;
  switch (p.what) {
    case act::right: break;
    case act::global_behind: x = p.data[64 + thread]; break;
    case act::global_before: x = p.data[-1 - thread]; break;
    case act::shared_behind:
      x = cuda::shared<float>(static_cast<std::uint32_t>(4 * thread + 4));
      break;
    case act::copy_behind:
      cuda::ptx::copy_async<16>(0, p.data + 4 * thread, true);
      break;
    case act::misaligned_load: x = cuda::load<float4>(p.data + thread).x; break;
    case act::misaligned_store: cuda::store(p.data + thread % 8, float4{}); break;
    case act::misaligned_copy:
      cuda::ptx::copy_async<16>(0, p.data + 2, true);
      break;
    case act::misaligned_matrix: {
      std::uint32_t m[4];
      cuda::ptx::load_matrices(m, cuda::shared_base() + 8);
      break;
    }
    case act::some_skip_barrier:
      if (thread < 20) __syncthreads();
      if (thread >= 20) static_cast<void>(__shfl_xor_sync(0xffffffffU, x, 1));
      break;
    case act::two_barriers:
      if (thread < 32) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      break;
    case act::some_end_before_barrier:
      if (thread < 3) return;
      __syncthreads();
      break;
    case act::lanes_part:
      if (thread % 2 == 0) x = __shfl_xor_sync(0xffffffffU, x, 1);
      break;
    case act::different_shuffles: {
      std::uint32_t m[4];
      if (thread % 2 == 0) {
        x = __shfl_xor_sync(0xffffffffU, x, 1);
      } else {
        cuda::ptx::load_matrices(m, cuda::shared_base());
      }
      break;
    }
    case act::endless_poll:
      while (cuda::ptx::load_acquire(p.flag) == 0) {
      }
      break;
    case act::deep_stack: {
      volatile int sum = 0;
      deep(100'000, &sum);
      break;
    }
  }
  if (thread < 64) p.data[thread] = x;
}

dyncp_emulation::fault act_fault(act what) {
  return fault_of([what] {
    device_vector<float> data(64);
    device_vector<std::int32_t> flag(1);
    const cudaError_t e =
        run_kernel(act_kernel, 1, 64, 256, act_arguments{data.data(), flag.data(), what});
    CHECK((e == cudaSuccess) == (what == act::right));
  });
}

constexpr bool processor_catches =
    !dyncp_emulation::address_sanitizer && !dyncp_emulation::thread_sanitizer;

}  // namespace

TEST_CASE("cp.async: data that nobody waited for, and places that others still read") {
  CHECK(failures([](std::uint64_t s) { return copies_right(copy_bug::none, s); }) == 0);
  CHECK(failures([](std::uint64_t s) { return copies_right(copy_bug::no_wait, s); }) == seeds);
  if (!dyncp_emulation::thread_sanitizer) {
    CHECK(failures([](std::uint64_t s) {
            return copies_right(copy_bug::no_barrier_before_reuse, s);
          }) > 0);
  }
}

TEST_CASE("shared memory: a missing barrier, and memory that nobody wrote") {
  CHECK(failures([](std::uint64_t s) { return share_right(share_bug::none, s); }) == 0);
  CHECK(failures([](std::uint64_t s) { return share_right(share_bug::no_barrier, s); }) > 0);
  CHECK(failures([](std::uint64_t s) { return share_right(share_bug::uninitialised, s); }) ==
        seeds);
}

TEST_CASE("streams: a wait is missing before the read, or before the next write") {
  CHECK(failures([](std::uint64_t s) { return streams_right(stream_bug::none, s); }) == 0);
  if (dyncp_emulation::thread_sanitizer) return;  // which reports them, see races.cpp
  for (const auto bug : {stream_bug::no_wait_before_read, stream_bug::no_wait_before_write}) {
    CHECK(failures([bug](std::uint64_t s) { return streams_right(bug, s); }) > 0);
  }
}

TEST_CASE("blocks that count on the order of blocks") {
  CHECK(failures([](std::uint64_t seed) {
          world w({.seed = seed});
          device_vector<float> data(8, 0.0F);
          device_vector<float> to(8, 0.0F);
          REQUIRE(run_kernel(blocks_kernel, 8, 32, 0, blocks_arguments{data.data(), to.data()}) ==
                  cudaSuccess);
          for (std::size_t i = 4; i < 8; ++i) {
            if (to[i] != 1) return false;
          }
          return true;
        }) > 0);
}

TEST_CASE("out of bounds") {
  CHECK(act_fault(act::right).kind == fault_kind::none);
  const auto shared = act_fault(act::shared_behind);
  CHECK(shared.kind == fault_kind::out_of_bounds);
  CHECK(shared.text.find("thread 63 of block (0, 0) accesses 4 bytes at 256 of 256") !=
        std::string::npos);
  CHECK(act_fault(act::copy_behind).kind == fault_kind::out_of_bounds);
  if (!processor_catches) return;
  const auto behind = act_fault(act::global_behind);
  CHECK(behind.kind == fault_kind::out_of_bounds);
  CHECK(behind.text.find("bytes behind 256 bytes of device memory") != std::string::npos);
  CHECK(act_fault(act::deep_stack).text.find("overflows its stack") != std::string::npos);
  const auto freed = fault_of([] {
    world& w = *world::current();
    float* const p = device_vector<float>(64).data();
    bool damaged = false;
    REQUIRE(w.memory().free(dyncp_emulation::memory_kind::device, p, damaged));
    device_vector<std::int32_t> flag(1);
    CHECK(run_kernel(act_kernel, 1, 64, 256, act_arguments{p, flag.data(), act::right}) ==
          cudaErrorIllegalAddress);
  });
  CHECK(freed.text.find("that were freed") != std::string::npos);
}

TEST_CASE("what is written behind a block, short of the next page, is found when it is freed") {
  const auto f = fault_of([] {
    cudaStream_t s = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    void* const p = world::current()->memory().allocate(dyncp_emulation::memory_kind::device, 0,
                                                        100);
    static_cast<char*>(p)[100] = 0;
    REQUIRE(cudaFreeAsync(p, s) == cudaSuccess);
    CHECK(finish(s) == cudaErrorIllegalAddress);
  });
  CHECK(f.kind == fault_kind::out_of_bounds);
}

TEST_CASE("vector accesses that are not aligned") {
  CHECK(act_fault(act::misaligned_load).kind == fault_kind::misaligned);
  CHECK(act_fault(act::misaligned_store).kind == fault_kind::misaligned);
  CHECK(act_fault(act::misaligned_copy).kind == fault_kind::misaligned);
  CHECK(act_fault(act::misaligned_matrix).kind == fault_kind::misaligned);
}

TEST_CASE("barriers and warps that part") {
  const auto two = act_fault(act::two_barriers);
  CHECK(two.kind == fault_kind::divergent_barrier);
  CHECK(two.text.find("planted_bugs.cpp") != std::string::npos);
  CHECK(act_fault(act::some_end_before_barrier).kind == fault_kind::divergent_barrier);
  const auto skip = act_fault(act::some_skip_barrier).kind;
  CHECK((skip == fault_kind::divergent_barrier || skip == fault_kind::divergent_warp));
  CHECK(act_fault(act::lanes_part).kind == fault_kind::divergent_warp);
  CHECK(act_fault(act::different_shuffles).kind == fault_kind::divergent_warp);
}

TEST_CASE("threads that poll for what never comes") {
  CHECK(act_fault(act::endless_poll).kind == fault_kind::livelock);
}

TEST_CASE("launches that no GPU takes, and the one that does nothing") {
  const auto launch = [](std::int64_t blocks, std::int64_t rows, int threads, std::size_t shared) {
    return fault_of([=] {
      cudaStream_t s = nullptr;
      REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
      static_cast<void>(cuda::prepare(blocks_kernel, shared));
      static_cast<void>(cuda::launch(blocks_kernel,
                                     {.blocks = blocks, .rows = rows, .threads = threads,
                                      .shared_bytes = shared, .stream = s}, blocks_arguments{}));
    }).kind;
  };
  CHECK(launch(1, 1, 1025, 0) == fault_kind::invalid_launch);
  CHECK(launch(1, 1, 0, 0) == fault_kind::invalid_launch);
  CHECK(launch(1, 1, 32, 227 * 1024 + 1) == fault_kind::invalid_launch);
  CHECK(launch(0, 1, 32, 0) == fault_kind::none);
  CHECK(launch(1, 0, 32, 0) == fault_kind::none);
  world w;
  cudaStream_t s = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
  CHECK(cuda::launch(blocks_kernel, {.blocks = 1, .rows = 65536, .threads = 32, .stream = s},
                     blocks_arguments{}) == cudaErrorInvalidConfiguration);
  CHECK(cuda::launch(blocks_kernel, {.blocks = std::int64_t{1} << 31, .threads = 32, .stream = s},
                     blocks_arguments{}) == cudaErrorInvalidConfiguration);
  CHECK(cuda::launch(blocks_kernel, {.blocks = 1, .threads = 32}, blocks_arguments{}) ==
        cudaErrorInvalidResourceHandle);  // the default stream
}

TEST_CASE("a kernel that was not loaded before, or for as much shared memory") {
  for (const bool loaded : {false, true}) {
    const auto f = fault_of([=] {
      cudaStream_t s = nullptr;
      REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
      if (loaded) REQUIRE(cuda::prepare(blocks_kernel, 50'000) == cudaSuccess);
      CHECK(cuda::launch(blocks_kernel, {.blocks = 1, .threads = 32, .shared_bytes = 50'001,
                                         .stream = s}, blocks_arguments{}) ==
            cudaErrorInvalidConfiguration);
    });
    CHECK(f.kind == fault_kind::invalid_launch);
    CHECK(f.text.find(loaded ? "may have 50000" : "not loaded") != std::string::npos);
  }
}

TEST_CASE("a seed repeats a run") {
  const auto order = [](std::uint64_t seed) {
    world w({.seed = seed});
    device_vector<float> data(8, 0.0F);
    device_vector<float> to(8, 0.0F);
    REQUIRE(run_kernel(blocks_kernel, 8, 32, 0, blocks_arguments{data.data(), to.data()}) ==
            cudaSuccess);
    return to.values();
  };
  bool differ = false;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CHECK(order(seed) == order(seed));
    differ = differ || order(seed) != order(seed + 1);
  }
  CHECK(differ);
}

TEST_CASE("copies of memory that is too small, freed or of the wrong kind") {
  const auto copy = [](std::size_t bytes, cudaMemcpyKind kind, bool free_first) {
    return fault_of([=] {
      cudaStream_t s = nullptr;
      REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
      device_vector<char> from(100);
      device_vector<char> to(100);
      if (free_first) {
        bool damaged = false;
        REQUIRE(world::current()->memory().free(dyncp_emulation::memory_kind::device, from.data(),
                                                damaged));
      }
      static_cast<void>(cudaMemcpyAsync(to.data(), from.data(), bytes, kind, s));
      static_cast<void>(finish(s));
    }).kind;
  };
  CHECK(copy(100, cudaMemcpyDeviceToDevice, false) == fault_kind::none);
  CHECK(copy(101, cudaMemcpyDeviceToDevice, false) == fault_kind::invalid_copy);
  CHECK(copy(100, cudaMemcpyHostToDevice, false) == fault_kind::invalid_copy);
  CHECK(copy(100, cudaMemcpyDeviceToDevice, true) == fault_kind::invalid_copy);
}

TEST_CASE("ranks that wait for each other for ever are a fault, not a hang") {
  world w;
  std::int32_t errors = 0;
  w.run_ranks(2, [&](std::int32_t) {
    if (!w.wait_until([] { return false; })) ++errors;
  });
  CHECK(errors == 2);
  CHECK(w.first_fault().kind == fault_kind::deadlock);
}

TEST_CASE("time goes on when everybody waits, and only then") {
  world w;
  std::int64_t done_at = 0;
  w.run_ranks(3, [&](std::int32_t rank) {
    const std::int64_t until = w.now_us() + 1000 * (rank + 1);
    while (w.now_us() < until) w.pause();
    if (rank == 2) done_at = w.now_us();
  });
  CHECK(done_at >= 3000);
  CHECK(done_at < 3200);
}
