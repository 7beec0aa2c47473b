// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace dyncp_emulation {

/// Bytes of a GPU that libraries took for themselves: NCCL's, which cudaMemGetInfo lacks then.
[[nodiscard]] std::size_t& library_bytes(std::int32_t device);

}  // namespace dyncp_emulation
