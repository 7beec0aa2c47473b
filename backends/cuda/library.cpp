// SPDX-License-Identifier: Apache-2.0
#include "build_config.hpp"

#include <dyncp/core/version.hpp>
#include <dyncp/cuda/abi.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace {

template <std::size_t N>
std::int64_t entry(const std::int32_t (&list)[N], std::int32_t index) {
  return index >= 0 && static_cast<std::size_t>(index) < N ? list[index] : 0;
}

// Lists end with 0, which makes them legal when nothing is chosen.
constexpr std::int32_t architectures[] = {DYNCP_CUDA_ARCHITECTURES 0};
constexpr std::int32_t head_dims[] = {DYNCP_CUDA_HEAD_DIMS 0};

}  // namespace

std::int64_t dyncp_cuda_property(std::int32_t which, std::int32_t index) {
  using dyncp::cuda::abi::property;
  switch (static_cast<property>(which)) {
    case property::interface_version: return dyncp::cuda::abi::interface_version;
    case property::version_major: return DYNCP_VERSION_MAJOR;
    case property::version_minor: return DYNCP_VERSION_MINOR;
    case property::version_patch: return DYNCP_VERSION_PATCH;
    case property::cuda_version: return CUDART_VERSION;
    case property::nccl_version: return DYNCP_CUDA_NCCL_VERSION;
    case property::architecture: return entry(architectures, index);
    case property::head_dim: return entry(head_dims, index);
  }
  return -1;
}
