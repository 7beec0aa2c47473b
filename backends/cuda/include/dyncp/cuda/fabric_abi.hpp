// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cuda/abi.hpp>

#include <cstdint>

// The part of the wall that fabrics use: NCCL, the clock of waits, free memory. See abi.hpp.

struct ncclComm;

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// ncclComm_t, without the header of NCCL.
using nccl_handle = ncclComm*;

namespace abi {

/// Microseconds of a clock that never goes back.
DYNCP_CUDA_API std::int64_t clock_us() noexcept;
/// Gives others a chance; `rounds` counts the pauses of one wait.
DYNCP_CUDA_API void pause(std::int64_t rounds) noexcept;
/// Bytes of the GPU that nobody has.
DYNCP_CUDA_API status free_memory(device_state* d, std::int64_t* bytes);

/// Of the NCCL that the program runs with: 22809 for 2.28.9; 0 without the NCCL fabric.
DYNCP_CUDA_API std::int64_t nccl_runtime_version() noexcept;

inline constexpr std::int32_t nccl_id_bytes = 128;

struct nccl_request {
  std::int32_t share_resources = 0;  ///< a split shares buffers with its parent
  std::int32_t max_ctas = 0;         ///< blocks of a kernel of NCCL; 0: its own choice
};
struct nccl_message {
  std::int32_t peer = 0;
  std::int32_t out = 0;  ///< 1: leaves this rank
  void* data = nullptr;  ///< device memory, not written to when out
  std::int64_t bytes = 0;
};

// Communicators are nonblocking. A call that begins something returns at once; before the next call
// on that communicator (for a split: on the parent), and before anything is queued behind an
// exchange, `nccl_poll` has said done.

/// A fresh id for nccl_begin on all ranks, nccl_id_bytes long.
DYNCP_CUDA_API status nccl_make_id(device_state* d, char* id);
DYNCP_CUDA_API status nccl_begin(device_state* d, const char* id, std::int32_t ranks,
                                 std::int32_t rank, const nccl_request& request,
                                 nccl_handle* comm);
/// `child` is written when the poll of `parent` says done, not before: it stays where it is.
DYNCP_CUDA_API status nccl_begin_split(device_state* d, nccl_handle parent, std::int32_t color,
                                       std::int32_t key, const nccl_request& request,
                                       nccl_handle* child);
/// done: nothing that was begun is on its way. An error of the communicator, whenever it came.
DYNCP_CUDA_API status nccl_poll(device_state* d, nccl_handle comm, bool* done);
DYNCP_CUDA_API status nccl_describe(device_state* d, nccl_handle comm, std::int32_t* rank,
                                    std::int32_t* ranks, std::int32_t* ordinal);
/// One grouped operation of all messages on `s`.
DYNCP_CUDA_API status nccl_exchange(device_state* d, nccl_handle comm,
                                    const nccl_message* messages, std::int32_t count, stream s);
/// Begins to end it in order; nccl_free once the poll says done.
DYNCP_CUDA_API status nccl_begin_close(device_state* d, nccl_handle comm);
DYNCP_CUDA_API void nccl_free(device_state* d, nccl_handle comm) noexcept;
/// Ends what the communicators do, wherever they stand, and frees them. To free one may wait for
/// the whole GPU: each is told to stop before the first is freed, and all that may hang are given.
DYNCP_CUDA_API void nccl_abort(device_state* d, const nccl_handle* comms,
                               std::int32_t count) noexcept;

}  // namespace abi

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
