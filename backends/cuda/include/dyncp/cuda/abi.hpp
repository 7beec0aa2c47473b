// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/device.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/ring_steps.hpp>

#include <cstddef>
#include <cstdint>

// The wall between the headers and the compiled CUDA library. Plain data, pointers and opaque
// handles cross it; no standard type does, so that neither compilers nor flags have to match.
// Users include dyncp/cuda/device.hpp and dyncp/cuda/attention.hpp, which turn it into results.

#if defined(__GNUC__)
#define DYNCP_CUDA_API __attribute__((visibility("default")))
#else
#define DYNCP_CUDA_API
#endif

struct CUstream_st;
struct CUevent_st;

extern "C" {
/// Properties of the compiled library by number, see `dyncp::cuda::abi::property`; -1 if unknown.
/// The one function that keeps its form for ever: headers ask it before they call another.
DYNCP_CUDA_API std::int64_t dyncp_cuda_property(std::int32_t property, std::int32_t index);
}

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// cudaStream_t, without the headers of CUDA.
using stream = CUstream_st*;

/// Element types of the kernels.
enum class element : std::int32_t { bfloat16, float16, float32 };

namespace abi {

/// Raised by one whenever a type or function of this file changes.
inline constexpr std::int64_t interface_version = 1;

enum class property : std::int32_t {
  interface_version = 0,
  version_major = 1,
  version_minor = 2,
  version_patch = 3,
  cuda_version = 4,   ///< of the toolkit it was compiled with: 13000 for 13.0
  nccl_version = 5,   ///< 22809 for 2.28.9; 0 without the NCCL fabric
  architecture = 6,   ///< index 0, 1, ...: 900 for 90, 901 for 90a; 0 behind the last
  head_dim = 7,       ///< index 0, 1, ...; 0 behind the last
};

/// Success, or an error as the library tells it.
struct status {
  std::int32_t failed = 0;
  errc code = errc::backend_failure;
  std::int32_t native = 0;  ///< cudaError_t or ncclResult_t, 0 if it is neither's
  std::int64_t value = 0;
  std::int64_t limit = 0;
  char what[384];  // zero-terminated, set if failed
  char hint[128];

  status() noexcept {
    what[0] = '\0';
    hint[0] = '\0';
  }
};

[[nodiscard]] inline error to_error(const status& s) {
  return error{s.code, s.what, s.value, s.limit, s.hint};
}
[[nodiscard]] inline result<void> to_result(const status& s) {
  if (s.failed != 0) return to_error(s);
  return {};
}

/// One GPU as one rank uses it: its communication stream, a stream that orders allocations, and
/// what it can do. Made by `open_device`; belongs to the thread of its rank.
struct device_state;

struct device_request {
  std::int32_t ordinal = 0;  ///< of CUDA
  std::int32_t rank = 0;     ///< named in errors
  std::int32_t own_memory = 1;  ///< 0: the caller brings an allocator
};
struct device_facts {
  std::int32_t ordinal = 0;
  std::int32_t rank = 0;
  std::int32_t capability = 0;  ///< 90 for sm_90
  std::int32_t processors = 0;  ///< streaming multiprocessors
  std::int64_t shared_bytes = 0;  ///< of shared memory that a block may ask for
  stream comm_stream = nullptr;
  char name[64];
};

// Every function returns with its work queued, sets the device of `d` for its own duration only,
// and names the rank in its errors.

DYNCP_CUDA_API status open_device(const device_request& request, device_state** d);
DYNCP_CUDA_API void close_device(device_state* d) noexcept;
DYNCP_CUDA_API void describe_device(const device_state* d, device_facts* facts) noexcept;

DYNCP_CUDA_API status allocate(device_state* d, std::int64_t bytes, void** memory);
DYNCP_CUDA_API void release(device_state* d, void* memory) noexcept;
DYNCP_CUDA_API status allocate_staging(device_state* d, std::int64_t bytes, void** memory);
DYNCP_CUDA_API void release_staging(device_state* d, void* memory) noexcept;

DYNCP_CUDA_API status make_stream(device_state* d, stream* s);
DYNCP_CUDA_API void close_stream(device_state* d, stream s) noexcept;
/// done: all work queued on `s` so far is; an error of that work is returned. Never waits.
DYNCP_CUDA_API status poll(device_state* d, stream s, bool* done);

DYNCP_CUDA_API status make_event(device_state* d, CUevent_st** event);
DYNCP_CUDA_API void close_event(device_state* d, CUevent_st* event) noexcept;
DYNCP_CUDA_API status record(device_state* d, CUevent_st* event, stream s);
DYNCP_CUDA_API status wait(device_state* d, stream s, CUevent_st* event);
DYNCP_CUDA_API status poll_event(device_state* d, CUevent_st* event, bool* done);

DYNCP_CUDA_API status fill_zero(device_state* d, void* to, std::int64_t bytes, stream s);
DYNCP_CUDA_API status copy(device_state* d, void* to, const void* from, std::int64_t bytes,
                           stream s);
DYNCP_CUDA_API status copy_strided(device_state* d, void* to, std::int64_t to_stride,
                                   const void* from, std::int64_t from_stride,
                                   std::int64_t row_bytes, std::int64_t rows, stream s);
DYNCP_CUDA_API status upload(device_state* d, void* to, const void* from, std::int64_t bytes,
                             stream s);
DYNCP_CUDA_API status download(device_state* d, void* to, const void* from, std::int64_t bytes,
                               stream s);
DYNCP_CUDA_API status copy_rows(device_state* d, void* to, const void* from, const row_copy* table,
                                std::int64_t entries, std::int64_t rows, std::int64_t row_bytes,
                                stream s);

}  // namespace abi
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
