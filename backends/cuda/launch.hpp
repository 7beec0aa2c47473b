// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "emulation_hooks.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace dyncp {
inline namespace v0 {
namespace cuda {

struct launch_config {
  std::int64_t blocks = 0;  // x
  std::int64_t rows = 1;    // y of the grid, at most 65535
  int threads = 0;          // of a block
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

/// Shared memory that a launch may ask for without a word before.
inline constexpr std::size_t plain_shared_bytes = 48 * 1024;

/// Loads a kernel on the current device and lets its blocks have `shared_bytes`. CUDA would load it
/// at its first launch, and may wait for the whole GPU then: for ever, if what runs there is an
/// exchange whose other end waits for this rank.
template <class Arguments>
cudaError_t prepare(void (*kernel)(Arguments), std::size_t shared_bytes = 0) {
  const void* const function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes loaded;
  const cudaError_t done = cudaFuncGetAttributes(&loaded, function);
  if (done != cudaSuccess || shared_bytes <= plain_shared_bytes) return done;
  return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes));
}

/// The first error of several.
template <class... Kernels>
cudaError_t prepare_all(Kernels... kernels) {
  cudaError_t done = cudaSuccess;
  static_cast<void>((((done = prepare(kernels)) == cudaSuccess) && ...));
  return done;
}

/// Launches a kernel that was prepared; the only place that does. A grid without blocks is a no-op.
template <class Arguments>
cudaError_t launch(void (*kernel)(Arguments), const launch_config& config,
                   const Arguments& arguments) {
  if (config.blocks == 0 || config.rows == 0) return cudaSuccess;
  if (config.blocks < 0 || config.blocks > std::numeric_limits<std::int32_t>::max() ||
      config.rows < 0 || config.rows > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  const dim3 grid(static_cast<unsigned>(config.blocks), static_cast<unsigned>(config.rows));
  const dim3 block(static_cast<unsigned>(config.threads));
  const void* const function = reinterpret_cast<const void*>(kernel);
#if defined(__CUDACC__)
  void* pointers[] = {const_cast<Arguments*>(&arguments)};
  return cudaLaunchKernel(function, grid, block, pointers, config.shared_bytes, config.stream);
#else
  return emulation::launch(function, grid, block, config.shared_bytes, config.stream,
                           [kernel, arguments] { kernel(arguments); });
#endif
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
