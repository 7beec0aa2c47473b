// SPDX-License-Identifier: Apache-2.0
#include "emulation/free_memory.hpp"

#include "emulation/sanitizers.hpp"
#include "emulation/world.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace {
constexpr std::size_t gpu_bytes = std::size_t{16} << 30;
}

namespace dyncp_emulation {

std::size_t& library_bytes(std::int32_t device) {
  static std::map<std::int32_t, std::size_t> bytes;
  return bytes[device];
}

}  // namespace dyncp_emulation

extern "C" cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  using dyncp_emulation::world;
  const dyncp_emulation::unchecked scope;
  if (world::current() == nullptr ||
      world::current()->first_fault().kind != dyncp_emulation::fault_kind::none) {
    return cudaErrorUnknown;
  }
  *total = gpu_bytes;
  *free = gpu_bytes - dyncp_emulation::library_bytes(world::current()->current_device());
  return cudaSuccess;
}
