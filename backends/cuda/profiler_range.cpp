// SPDX-License-Identifier: Apache-2.0
#include "build_config.hpp"

#include <dyncp/cuda/profiler_range.hpp>

#if DYNCP_CUDA_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace abi {

#if DYNCP_CUDA_NVTX
void begin_range(const char* name) noexcept { nvtxRangePushA(name); }
void end_range() noexcept { nvtxRangePop(); }
#else
void begin_range(const char*) noexcept {}
void end_range() noexcept {}
#endif

}  // namespace abi
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
