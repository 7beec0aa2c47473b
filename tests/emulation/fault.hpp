// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace dyncp_emulation {

enum class fault_kind : std::int32_t {
  none,
  out_of_bounds,      ///< of global, shared or pinned memory, or memory that was freed
  misaligned,         ///< a vector access
  divergent_barrier,  ///< not all threads of a block came to one __syncthreads
  divergent_warp,     ///< not all lanes of a warp came to one shuffle, ldmatrix or mma
  livelock,           ///< threads poll for something that no thread will do
  invalid_launch,     ///< more threads, shared memory or blocks than a GPU has
  invalid_copy,       ///< a copy of unknown, freed or too little memory
  deadlock,           ///< every rank and stream waits
};

/// The first thing that went wrong; the GPU is unusable after it, as a real one.
struct fault {
  fault_kind kind = fault_kind::none;
  std::string text;
};

}  // namespace dyncp_emulation
