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

/// Launches a kernel; the only place that does. A grid without blocks is a no-op.
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
#if defined(__CUDACC__)
  const void* const function = reinterpret_cast<const void*>(kernel);
  constexpr std::size_t without_asking = 48 * 1024;
  if (config.shared_bytes > without_asking) {
    const cudaError_t allowed =
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(config.shared_bytes));
    if (allowed != cudaSuccess) return allowed;
  }
  void* pointers[] = {const_cast<Arguments*>(&arguments)};
  return cudaLaunchKernel(function, grid, block, pointers, config.shared_bytes, config.stream);
#else
  return emulation::launch(grid, block, config.shared_bytes, config.stream,
                           [kernel, arguments] { kernel(arguments); });
#endif
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
