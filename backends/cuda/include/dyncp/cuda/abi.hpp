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
inline constexpr std::int64_t interface_version = 2;

enum class property : std::int32_t {
  interface_version = 0,
  version_major = 1,
  version_minor = 2,
  version_patch = 3,
  cuda_version = 4,   ///< of the toolkit it was compiled with: 13000 for 13.0
  nccl_version = 5,   ///< 22809 for 2.28.9; 0 without the NCCL fabric
  /// index 0, 1, ...: 900 for 90, 901 for 90a, 1002 for 100f; 0 behind the last
  architecture = 6,
  head_dim = 7,       ///< index 0, 1, ...; 0 behind the last
};

/// Success, or an error as the library tells it.
struct status {
  std::int32_t failed = 0;
  errc code = errc::backend_failure;
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

// Every function returns with its work queued, sets the device of `d` for its own duration (but see
// dyncp/cuda/device.hpp), and names the rank in its errors.

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

/// Rows of (heads, dim), elements of a row dense; strides in elements. Device memory.
struct rows_in {
  const void* data = nullptr;
  std::int64_t row_stride = 0;
};
struct rows_out {
  void* data = nullptr;
  std::int64_t row_stride = 0;
};

/// The pairs of rows that a step computes; `segments` in device memory.
struct step_call {
  element type = element::bfloat16;
  attention_shape shape;
  attention_mask mask = attention_mask::full;
  const attention_segment* segments = nullptr;
  std::int32_t count = 0;
  std::int32_t q_rows = 0;
  std::int32_t kv_rows = 0;
};
struct forward_call {
  step_call step;
  rows_in q, k, v;
  rows_out out, lse;  // float
};
struct backward_call {
  step_call step;
  rows_in q, k, v, dout;
  rows_in lse, delta;    // float
  rows_out dq, dk, dv;   // float
  void* workspace = nullptr;  ///< backward_workspace_bytes; null: additions to dq in any order
};
struct merge_call {
  step_call step;
  rows_in part_out, part_lse;
  rows_out out, lse;
};
struct delta_call {
  step_call step;
  rows_in out, dout;
  rows_out delta;
};
struct clear_call {
  rows_out out, lse;
  std::int32_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t dim = 0;
};
struct convert_call {
  element from_type = element::float32;
  element to_type = element::bfloat16;
  rows_in from;
  rows_out to;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

/// Success, or unsupported with what is missing. `shared_bytes`: device_facts.
DYNCP_CUDA_API status supports(const attention_shape& shape, element type,
                               std::int64_t shared_bytes);
/// Bytes that a backward call in fixed order needs; 0 for float32.
DYNCP_CUDA_API std::int64_t backward_workspace_bytes(const step_call& step);
DYNCP_CUDA_API status attention_forward(device_state* d, const forward_call& c, stream s);
DYNCP_CUDA_API status attention_backward(device_state* d, const backward_call& c, stream s);
DYNCP_CUDA_API status merge(device_state* d, const merge_call& c, stream s);
DYNCP_CUDA_API status delta(device_state* d, const delta_call& c, stream s);
DYNCP_CUDA_API status clear(device_state* d, const clear_call& c, stream s);
DYNCP_CUDA_API status add(device_state* d, float* to, const float* from, std::int64_t n, stream s);
DYNCP_CUDA_API status convert(device_state* d, const convert_call& c, stream s);

/// What `move_rows` does, between the rows of a whole pack and those of one rank.
enum class row_move_kind : std::int32_t {
  split, merge, take_front, take_back, put_front, put_back
};
struct move_rows_call {
  pack_view pack;  ///< arrays in device memory
  row_move_kind kind = row_move_kind::split;
  std::int32_t rank = 0;
  std::int32_t sequence_rows = 0;  ///< pack.sequence_rows(), known on the host
  std::int32_t zero_padding = 1;
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t row_bytes = 0;
};
DYNCP_CUDA_API status move_rows(device_state* d, const move_rows_call& c, stream s);

}  // namespace abi
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
