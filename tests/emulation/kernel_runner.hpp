// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests that bring kernels of their own: include it first, then the headers of the kernels.
// Compiled by nvcc, with DYNCP_TEST_ON_GPU, they run on the GPU.

#if !defined(DYNCP_TEST_ON_GPU)
#include "emulation/prelude.hpp"

#include "emulation/sanitizers.hpp"
#include "emulation/world.hpp"
#endif

#include "emulation/machine.hpp"

#include <launch.hpp>
#include <ptx.hpp>

#include <cuda_runtime_api.h>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace dyncp_test {

#if defined(DYNCP_TEST_ON_GPU)

/// The memory of all device vectors goes to the GPU before a kernel and comes back after it, on the
/// kernel's stream.
class mirrored {
 public:
  explicit mirrored(std::size_t bytes) : bytes_(bytes) {
    REQUIRE(cudaMalloc(&device_, bytes) == cudaSuccess);
    all().push_back(this);
  }
  mirrored(const mirrored&) = delete;
  mirrored& operator=(const mirrored&) = delete;
  virtual ~mirrored() {
    std::erase(all(), this);
    static_cast<void>(cudaFree(device_));
  }
  [[nodiscard]] static std::vector<mirrored*>& all() {
    static std::vector<mirrored*> list;
    return list;
  }
  [[nodiscard]] cudaError_t copy(cudaMemcpyKind kind, cudaStream_t stream) {
    const bool up = kind == cudaMemcpyHostToDevice;
    return cudaMemcpyAsync(up ? device_ : host(), up ? host() : device_, bytes_, kind, stream);
  }

 protected:
  [[nodiscard]] virtual void* host() = 0;
  void* device_ = nullptr;

 private:
  std::size_t bytes_;
};

/// Device memory, and what the host sees of it while no kernel runs.
template <class T>
class device_vector final : mirrored {
 public:
  explicit device_vector(std::size_t size, T fill = {})
      : mirrored(size * sizeof(T)), values_(size, fill) {}
  /// For kernels.
  [[nodiscard]] T* data() { return static_cast<T*>(device_); }
  [[nodiscard]] T& operator[](std::size_t i) { return values_[i]; }
  [[nodiscard]] std::vector<T> values() const { return values_; }

 private:
  [[nodiscard]] void* host() override { return values_.data(); }
  std::vector<T> values_;
};

#else

/// Device memory that the host may look at while no kernel runs.
template <class T>
class device_vector {
 public:
  explicit device_vector(std::size_t size, T fill = {}) : size_(size) {
    data_ = static_cast<T*>(dyncp_emulation::world::current()->memory().allocate(
        dyncp_emulation::memory_kind::device, 0, size * sizeof(T)));
    for (std::size_t i = 0; i < size; ++i) data_[i] = fill;
  }
  device_vector(const device_vector&) = delete;
  device_vector& operator=(const device_vector&) = delete;
  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] T& operator[](std::size_t i) { return data_[i]; }
  [[nodiscard]] std::vector<T> values() const { return std::vector<T>(data_, data_ + size_); }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

#endif

/// Waits as the library does, by asking; what CUDA says of the work of the stream.
inline cudaError_t finish(cudaStream_t stream) {
  cudaError_t e = cudaErrorNotReady;
  while (e == cudaErrorNotReady) e = cudaStreamQuery(stream);
  return e;
}

/// Launches `kernel` and waits; what CUDA says of it.
template <class Arguments>
cudaError_t run_kernel(void (*kernel)(Arguments), std::int64_t blocks, int threads,
                       std::size_t shared_bytes, const Arguments& arguments) {
  cudaStream_t stream = nullptr;
  cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (e != cudaSuccess) return e;
#if defined(DYNCP_TEST_ON_GPU)
  for (mirrored* const v : mirrored::all()) {
    if (e = v->copy(cudaMemcpyHostToDevice, stream); e != cudaSuccess) return e;
  }
#endif
  if (e = dyncp::cuda::prepare(kernel, shared_bytes); e != cudaSuccess) return e;
  e = dyncp::cuda::launch(kernel, {.blocks = blocks, .threads = threads,
                                   .shared_bytes = shared_bytes, .stream = stream}, arguments);
  if (e != cudaSuccess) return e;
#if defined(DYNCP_TEST_ON_GPU)
  for (mirrored* const v : mirrored::all()) {
    if (e = v->copy(cudaMemcpyDeviceToHost, stream); e != cudaSuccess) return e;
  }
#endif
  e = finish(stream);
  static_cast<void>(cudaStreamDestroy(stream));
  return e;
}

}  // namespace dyncp_test
