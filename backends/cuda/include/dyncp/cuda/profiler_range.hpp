// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cuda/abi.hpp>

namespace dyncp {
inline namespace v0 {
namespace cuda {

namespace abi {
/// Both do nothing unless the library was built with -Dnvtx=true.
DYNCP_CUDA_API void begin_range(const char* name) noexcept;
DYNCP_CUDA_API void end_range() noexcept;
}  // namespace abi

/// Marks host time for NVIDIA's profilers, from here to the end of the scope. The work that is
/// begun meanwhile runs later, on its stream.
class profiler_range {
 public:
  explicit profiler_range(const char* name) noexcept { abi::begin_range(name); }
  profiler_range(const profiler_range&) = delete;
  profiler_range& operator=(const profiler_range&) = delete;
  ~profiler_range() { abi::end_range(); }
};

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
