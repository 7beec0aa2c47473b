// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels as the host code of the library sees them: arguments, and functions that launch.
// Compiled by nvcc and by the host compiler; pointers are to device memory.

#include <dyncp/runtime/device.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// Copies `rows` rows of `row_bytes`, described by the `entries` of `table`.
struct copy_rows_arguments {
  void* to;
  const void* from;
  const row_copy* table;
  std::int64_t entries;
  std::int64_t rows;
  std::int64_t row_bytes;
};
[[nodiscard]] cudaError_t launch_copy_rows(const copy_rows_arguments& a, cudaStream_t stream);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
