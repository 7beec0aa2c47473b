// SPDX-License-Identifier: Apache-2.0
#pragma once

// Access to global memory in units of up to 16 bytes.

#include "emulation_hooks.hpp"
#include "ptx.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// The V at `from`, which is aligned to sizeof(V).
template <class V>
DYNCP_DEVICE V load(const void* from) {
#if !defined(__CUDACC__)
  emulation::check_aligned(from, sizeof(V));
#endif
  return *static_cast<const V*>(from);
}

template <class V>
DYNCP_DEVICE void store(void* to, const V& value) {
#if !defined(__CUDACC__)
  emulation::check_aligned(to, sizeof(V));
#endif
  *static_cast<V*>(to) = value;
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
