// SPDX-License-Identifier: Apache-2.0
#pragma once

// What kernels need from the host emulation when a host compiler compiles them. The definitions
// are in tests/emulation; the library itself never calls or contains any of this.

#if !defined(__CUDACC__)

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace emulation {

/// Queues `body`, to be run once by each thread of the grid, on the stream: what `kernel` does.
cudaError_t launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, std::function<void()> body);

/// The dynamic shared memory of the calling thread's block.
void* shared_memory();
/// `bytes` of it from `address` on, checked for bounds and alignment.
void* shared_at(std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment);

/// Meets the other lanes of the warp: when the last has come, it runs act(mine of lanes 0..31).
using warp_action = void (*)(void* const* lanes);
void meet(void* mine, warp_action act);

/// 4, 8 or 16 bytes to shared memory at `to`; zeros if !valid, without reading `from`. They land
/// when the thread waits for their group; until then the place holds garbage.
void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes, bool valid);
void commit_copies();
/// Lands all groups but the last `pending`.
void wait_copies(std::uint32_t pending);

/// A thread that polls memory lets others go on.
void spin();

/// Reports an access that is not aligned.
void check_aligned(const void* p, std::uint32_t alignment);

}  // namespace emulation
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp

#endif
