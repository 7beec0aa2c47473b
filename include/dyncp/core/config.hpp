// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>

// Marks functions of the core tier that CUDA kernels may call; empty for a host compiler.
#if defined(__CUDACC__)
#define DYNCP_HOST_DEVICE __host__ __device__
#else
#define DYNCP_HOST_DEVICE
#endif

// For bugs of the library, never for bad input, which gets a typed error. Follows NDEBUG.
#define DYNCP_ASSERT(condition) assert(condition)
