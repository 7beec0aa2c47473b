// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests that bring kernels of their own: include it first, then the headers of the kernels.

#include "emulation/prelude.hpp"

#include "emulation/sanitizers.hpp"
#include "emulation/world.hpp"

#include <launch.hpp>
#include <ptx.hpp>

#include <cuda_runtime_api.h>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace dyncp_test {

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

/// Launches `kernel` and waits; what CUDA says of it.
template <class Arguments>
cudaError_t run_kernel(void (*kernel)(Arguments), std::int64_t blocks, int threads,
                       std::size_t shared_bytes, const Arguments& arguments) {
  cudaStream_t stream = nullptr;
  cudaError_t e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (e != cudaSuccess) return e;
  e = dyncp::cuda::launch(kernel, {.blocks = blocks, .threads = threads,
                                   .shared_bytes = shared_bytes, .stream = stream}, arguments);
  if (e != cudaSuccess) return e;
  e = cudaStreamSynchronize(stream);
  static_cast<void>(cudaStreamDestroy(stream));
  return e;
}

}  // namespace dyncp_test
