// SPDX-License-Identifier: Apache-2.0
// What both fabrics need of the library.
#include "clock.hpp"
#include "device_state.hpp"
#include "status.hpp"

#include <dyncp/cuda/fabric_abi.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace abi {

std::int64_t clock_us() noexcept { return cuda::clock_us(); }
void pause(std::int64_t rounds) noexcept { cuda::pause(rounds); }

status free_memory(device_state* d, std::int64_t* bytes) {
  DYNCP_ON_DEVICE(*d);
  std::size_t left = 0;
  std::size_t total = 0;
  DYNCP_CUDA_CALL(d->facts.rank, cudaMemGetInfo, &left, &total);
  *bytes = static_cast<std::int64_t>(left);
  return {};
}

}  // namespace abi
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
