// SPDX-License-Identifier: Apache-2.0
// What the thread sanitizer makes of CUDA threads and streams: races are reported, whatever order
// the seed gave, and nothing else is. Without it the program is skipped. meson.build sets the
// options with which the program goes on after a report, and gets all of them.
#include "emulation/kernel_runner.hpp"

#include <fragments.hpp>
#include <vector.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;
using dyncp_emulation::thread_sanitizer;
using dyncp_emulation::world;

namespace {

/// Without reports every kernel would look like one without races.
void need_thread_sanitizer() {
  constexpr int skipped = 77;
  if (thread_sanitizer) return;
  std::puts("skipped: compiled without the thread sanitizer");
  std::exit(skipped);
}

/// Races that `f` has, on threads that are told apart.
template <class F>
std::int64_t races(F f) {
  const std::int64_t before = dyncp_emulation::race_reports();
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    world w({.seed = seed, .grid = {.thread_identities = true}});
    f();
    CHECK_MESSAGE(w.first_fault().text.empty(), w.first_fault().text);
  }
  return dyncp_emulation::race_reports() - before;
}

enum class bug : std::int32_t {
  none,
  no_barrier,            // between writing and reading shared memory
  no_barrier_before,     // between reading and writing it again
  early_copy,            // cp.async into a place that is being read
  no_wait,               // reading what a cp.async of another thread brings, without its wait
  blocks,                // two blocks write one place
  no_release,            // a flag that is written without releasing
};

struct arguments {
  float* data;         // (256)
  std::int32_t* flag;  // (2)
  bug with;
};

__global__ void race_kernel(arguments p) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::uint32_t mine = static_cast<std::uint32_t>(thread) * 4;
  const std::uint32_t other = static_cast<std::uint32_t>(63 - thread) * 4;
  // Through shared memory, twice.
  cuda::shared<float>(mine) = 1;
  if (p.with != bug::no_barrier) __syncthreads();
  float x = cuda::shared<float>(other);
  if (p.with != bug::no_barrier_before) __syncthreads();
  cuda::shared<float>(mine) = 2;
  __syncthreads();
  x += cuda::shared<float>(other);
  // By cp.async.
  if (p.with != bug::early_copy) __syncthreads();
  if (thread < 16) {
    cuda::ptx::copy_async<16>(cuda::shared_base() + static_cast<std::uint32_t>(thread) * 16,
                              p.data + 64 + thread * 4, true);
  }
  cuda::ptx::commit_copies();
  if (p.with != bug::no_wait) cuda::ptx::wait_copies<0>();
  __syncthreads();
  x += cuda::shared<float>(other);
  cuda::ptx::wait_copies<0>();
  // In global memory.
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  if (thread == 0) p.data[p.with == bug::blocks ? 0 : block] = x;
  // From one block to the other.
  if (block == 0 && thread == 1) {
    p.data[200] = x;
    if (p.with == bug::no_release) {
      *static_cast<volatile std::int32_t*>(p.flag) = 1;
    } else {
      cuda::ptx::store_release(p.flag, 1);
    }
  }
  if (block == 1 && thread == 2) {
    while (cuda::ptx::load_acquire(p.flag) == 0) {
    }
    p.data[201] = p.data[200];
  }
}

std::int64_t races_with(bug with) {
  return races([with] {
    device_vector<float> data(256, 0.0F);
    device_vector<std::int32_t> flag(2, 0);
    REQUIRE(run_kernel(race_kernel, 2, 64, 256, arguments{data.data(), flag.data(), with}) ==
            cudaSuccess);
  });
}

struct stream_case {
  bool wait_before_read = true;
  bool wait_before_write = true;
};

/// One stream fills a buffer, another copies it away, then the first fills it again.
std::int64_t stream_races(const stream_case& c) {
  const std::int64_t before = dyncp_emulation::race_reports();
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
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
    if (c.wait_before_read) REQUIRE(cudaStreamWaitEvent(b, filled, 0) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(to.data(), data.data(), 64, cudaMemcpyDeviceToDevice, b) ==
            cudaSuccess);
    REQUIRE(cudaEventRecord(taken, b) == cudaSuccess);
    if (c.wait_before_write) REQUIRE(cudaStreamWaitEvent(a, taken, 0) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(data.data(), 2, 64, a) == cudaSuccess);
    REQUIRE(finish(a) == cudaSuccess);
    REQUIRE(finish(b) == cudaSuccess);
    REQUIRE(cudaEventDestroy(filled) == cudaSuccess);
    REQUIRE(cudaEventDestroy(taken) == cudaSuccess);
  }
  return dyncp_emulation::race_reports() - before;
}

}  // namespace

TEST_CASE("CUDA threads: a kernel without races has no report, each planted one has") {
  need_thread_sanitizer();
  CHECK(races_with(bug::none) == 0);
  for (const bug with : {bug::no_barrier, bug::no_barrier_before, bug::early_copy, bug::no_wait,
                         bug::blocks, bug::no_release}) {
    CAPTURE(static_cast<std::int32_t>(with));
    CHECK(races_with(with) > 0);
  }
}

TEST_CASE("streams: joined by events there is no report, without one there is") {
  need_thread_sanitizer();
  CHECK(stream_races({}) == 0);
  CHECK(stream_races({.wait_before_read = false}) > 0);
  CHECK(stream_races({.wait_before_write = false}) > 0);
}
