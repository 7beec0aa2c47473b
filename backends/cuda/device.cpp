// SPDX-License-Identifier: Apache-2.0
#include "clock.hpp"
#include "device_state.hpp"
#include "kernels.hpp"
#include "status.hpp"

#include <dyncp/cuda/abi.hpp>
#include <dyncp/cuda/library.hpp>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <new>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace {

using context_query = CUresult(CUDAAPI*)(CUdevice, unsigned int*, int*);

context_query find_context_query() noexcept {
  constexpr const char* name = "cuDevicePrimaryCtxGetState";
  void* found = nullptr;
  cudaDriverEntryPointQueryResult outcome = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t done =
      cudaGetDriverEntryPointByVersion(name, &found, 7000, cudaEnableDefault, &outcome);
#else
  const cudaError_t done = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &outcome);
#endif
  const bool good = done == cudaSuccess && outcome == cudaDriverEntryPointSuccess;
  return good ? reinterpret_cast<context_query>(found) : nullptr;
}

}  // namespace

bool has_context(int ordinal) noexcept {
  static const context_query query = find_context_query();
  unsigned int flags = 0;
  int active = 1;
  // The numbers of devices are the same for driver and runtime.
  if (query == nullptr || query(ordinal, &flags, &active) != CUDA_SUCCESS) return true;
  return active != 0;
}

namespace abi {
namespace {

constexpr std::int64_t allocation_limit_us = 60'000'000;

status attribute(int* value, cudaDeviceAttr which, const device_facts& facts) {
  DYNCP_CUDA_CALL(facts.rank, cudaDeviceGetAttribute, value, which, facts.ordinal);
  return {};
}

status check_architecture(const device_facts& facts) {
  char built[128] = "";
  std::size_t used = 0;
  for (std::int32_t i = 0;; ++i) {
    const auto which = static_cast<std::int32_t>(property::architecture);
    const auto architecture = static_cast<std::int32_t>(dyncp_cuda_property(which, i));
    if (architecture <= 0) break;
    if (runs_on(architecture, facts.capability)) return {};
    if (used < sizeof built) {
      constexpr const char* suffixes[] = {"", "a", "f"};
      used += static_cast<std::size_t>(std::snprintf(built + used, sizeof built - used, " %d%s",
                                                     static_cast<int>(architecture / 10),
                                                     suffixes[architecture % 10 % 3]));
    }
  }
  return failure(errc::unsupported, "add the architecture of this GPU to -Dgpu_arch, build again",
                 "rank %d: the GPU has compute capability %d.%d, the library code for:%s",
                 static_cast<int>(facts.rank), static_cast<int>(facts.capability / 10),
                 static_cast<int>(facts.capability % 10), used == 0 ? " none" : built);
}

/// Streams that never wait for the default stream.
status make_private_stream(const device_facts& facts, stream* s) {
  DYNCP_CUDA_CALL(facts.rank, cudaStreamCreateWithFlags, s, cudaStreamNonBlocking);
  return {};
}

/// Memory that was given back stays in the pool: CUDA's own pool returns it to the GPU whenever a
/// stream is waited for, and mapping it again takes longer than the kernels that use it.
status make_pool(device_state& d) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = d.facts.ordinal;
  DYNCP_CUDA_CALL(d.facts.rank, cudaMemPoolCreate, &d.pool, &properties);
  std::uint64_t kept_bytes = std::numeric_limits<std::uint64_t>::max();
  DYNCP_CUDA_CALL(d.facts.rank, cudaMemPoolSetAttribute, d.pool, cudaMemPoolAttrReleaseThreshold,
                  &kept_bytes);
  return {};
}

status fill(device_state& d, bool own_memory) {
  device_facts& facts = d.facts;
  int count = 0;
  DYNCP_CUDA_CALL(facts.rank, cudaGetDeviceCount, &count);
  if (facts.ordinal < 0 || facts.ordinal >= count) {
    status s = failure(errc::invalid_argument, "choose one of the visible GPUs",
                       "rank %d: there is no GPU %d among %d", static_cast<int>(facts.rank),
                       static_cast<int>(facts.ordinal), count);
    s.value = facts.ordinal;
    s.limit = count;
    return s;
  }
  DYNCP_ON_DEVICE(d);
  int major = 0;
  int minor = 0;
  int processors = 0;
  int shared_bytes = 0;
  int pools = 0;
  DYNCP_CUDA_TRY(attribute(&major, cudaDevAttrComputeCapabilityMajor, facts));
  DYNCP_CUDA_TRY(attribute(&minor, cudaDevAttrComputeCapabilityMinor, facts));
  DYNCP_CUDA_TRY(attribute(&processors, cudaDevAttrMultiProcessorCount, facts));
  DYNCP_CUDA_TRY(attribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, facts));
  DYNCP_CUDA_TRY(attribute(&pools, cudaDevAttrMemoryPoolsSupported, facts));
  facts.capability = 10 * major + minor;
  facts.processors = processors;
  facts.shared_bytes = shared_bytes;
  std::snprintf(facts.name, sizeof facts.name, "GPU %d, sm_%d", static_cast<int>(facts.ordinal),
                static_cast<int>(facts.capability));
  DYNCP_CUDA_TRY(check_architecture(facts));
  if (own_memory) {
    if (pools == 0) {
      return failure(errc::unsupported, "give device_options::memory",
                     "rank %d: the GPU has no stream-ordered allocation",
                     static_cast<int>(facts.rank));
    }
    DYNCP_CUDA_TRY(make_pool(d));
  }
  DYNCP_CUDA_CALL(facts.rank, prepare_kernels, facts.shared_bytes);
  DYNCP_CUDA_TRY(make_private_stream(facts, &facts.comm_stream));
  return make_private_stream(facts, &d.memory_stream);
}

}  // namespace

status open_device(const device_request& request, device_state** d) {
  *d = nullptr;
  std::unique_ptr<device_state> made(new (std::nothrow) device_state);
  if (made == nullptr) return failure(errc::out_of_memory, "", "the host has no memory left");
  made->facts.ordinal = request.ordinal;
  made->facts.rank = request.rank;
  if (const status s = fill(*made, request.own_memory != 0); s.failed != 0) {
    close_device(made.release());
    return s;
  }
  *d = made.release();
  return {};
}

void close_device(device_state* d) noexcept {
  if (d == nullptr) return;
  {
    const device_scope scope(*d);
    for (const stream s : {d->facts.comm_stream, d->memory_stream}) {
      if (s != nullptr) static_cast<void>(cudaStreamDestroy(s));
    }
    if (d->pool != nullptr) static_cast<void>(cudaMemPoolDestroy(d->pool));
  }
  delete d;
}

void describe_device(const device_state* d, device_facts* facts) noexcept { *facts = d->facts; }

status allocate(device_state* d, std::int64_t bytes, void** memory) {
  DYNCP_ON_DEVICE(*d);
  const std::int32_t rank = d->facts.rank;
  DYNCP_CUDA_CALL(rank, cudaMallocFromPoolAsync, memory, static_cast<std::size_t>(bytes), d->pool,
                  d->memory_stream);
  // Nothing else runs on this stream: soon the memory is there, for every stream.
  const std::int64_t begin = clock_us();
  for (std::int64_t round = 0;; ++round) {
    bool there = false;
    status asked = poll(d, d->memory_stream, &there);
    if (asked.failed == 0 && there) return {};
    if (asked.failed == 0 && clock_us() - begin >= allocation_limit_us) {
      asked = failure(errc::timeout, "see what occupies the GPU",
                      "rank %d waited %lld us for an allocation of %lld bytes",
                      static_cast<int>(rank), static_cast<long long>(allocation_limit_us),
                      static_cast<long long>(bytes));
      asked.value = allocation_limit_us;
      asked.limit = allocation_limit_us;
    }
    if (asked.failed != 0) {
      release(d, *memory);
      *memory = nullptr;
      return asked;
    }
    pause(round);
  }
}

void release(device_state* d, void* memory) noexcept {
  const device_scope scope(*d);
  static_cast<void>(cudaFreeAsync(memory, d->memory_stream));
}

status allocate_staging(device_state* d, std::int64_t bytes, void** memory) {
  DYNCP_ON_DEVICE(*d);
  DYNCP_CUDA_CALL(d->facts.rank, cudaHostAlloc, memory, static_cast<std::size_t>(bytes),
                  cudaHostAllocDefault);
  return {};
}

void release_staging(device_state* d, void* memory) noexcept {
  const device_scope scope(*d);
  static_cast<void>(cudaFreeHost(memory));
}

status make_stream(device_state* d, stream* s) {
  DYNCP_ON_DEVICE(*d);
  return make_private_stream(d->facts, s);
}

void close_stream(device_state* d, stream s) noexcept {
  const device_scope scope(*d);
  static_cast<void>(cudaStreamDestroy(s));
}

namespace {

status answer(cudaError_t state, const char* call, const device_state& d, bool* done) {
  *done = state == cudaSuccess;
  if (state != cudaErrorNotReady) return cuda_status(state, call, d.facts.rank);
  // CUDA keeps it as the thread's last error, which the next check of a launch by somebody else
  // would take for its own.
  static_cast<void>(cudaGetLastError());
  return {};
}

}  // namespace

status poll(device_state* d, stream s, bool* done) {
  DYNCP_ON_DEVICE(*d);
  return answer(cudaStreamQuery(s), "cudaStreamQuery", *d, done);
}

status make_event(device_state* d, CUevent_st** event) {
  DYNCP_ON_DEVICE(*d);
  DYNCP_CUDA_CALL(d->facts.rank, cudaEventCreateWithFlags, event, cudaEventDisableTiming);
  return {};
}

void close_event(device_state* d, CUevent_st* event) noexcept {
  const device_scope scope(*d);
  static_cast<void>(cudaEventDestroy(event));
}

status record(device_state* d, CUevent_st* event, stream s) {
  DYNCP_ON_DEVICE(*d);
  DYNCP_CUDA_CALL(d->facts.rank, cudaEventRecord, event, s);
  return {};
}

status wait(device_state* d, stream s, CUevent_st* event) {
  DYNCP_ON_DEVICE(*d);
  DYNCP_CUDA_CALL(d->facts.rank, cudaStreamWaitEvent, s, event, 0);
  return {};
}

status poll_event(device_state* d, CUevent_st* event, bool* done) {
  DYNCP_ON_DEVICE(*d);
  return answer(cudaEventQuery(event), "cudaEventQuery", *d, done);
}

status fill_zero(device_state* d, void* to, std::int64_t bytes, stream s) {
  if (bytes == 0) return {};
  DYNCP_ON_DEVICE(*d);
  DYNCP_CUDA_CALL(d->facts.rank, cudaMemsetAsync, to, 0, static_cast<std::size_t>(bytes), s);
  return {};
}

namespace {

status copy_bytes(device_state* d, void* to, const void* from, std::int64_t bytes,
                  cudaMemcpyKind kind, stream s) {
  if (bytes == 0) return {};
  DYNCP_ON_DEVICE(*d);
  DYNCP_CUDA_CALL(d->facts.rank, cudaMemcpyAsync, to, from, static_cast<std::size_t>(bytes), kind,
                  s);
  return {};
}

}  // namespace

status copy(device_state* d, void* to, const void* from, std::int64_t bytes, stream s) {
  return copy_bytes(d, to, from, bytes, cudaMemcpyDeviceToDevice, s);
}

status upload(device_state* d, void* to, const void* from, std::int64_t bytes, stream s) {
  return copy_bytes(d, to, from, bytes, cudaMemcpyHostToDevice, s);
}

status download(device_state* d, void* to, const void* from, std::int64_t bytes, stream s) {
  return copy_bytes(d, to, from, bytes, cudaMemcpyDeviceToHost, s);
}

status copy_strided(device_state* d, void* to, std::int64_t to_stride, const void* from,
                    std::int64_t from_stride, std::int64_t row_bytes, std::int64_t rows,
                    stream s) {
  if (row_bytes == 0 || rows == 0) return {};
  if (to_stride == row_bytes && from_stride == row_bytes) {
    return copy(d, to, from, row_bytes * rows, s);
  }
  DYNCP_ON_DEVICE(*d);
  DYNCP_CUDA_CALL(d->facts.rank, cudaMemcpy2DAsync, to, static_cast<std::size_t>(to_stride), from,
                  static_cast<std::size_t>(from_stride), static_cast<std::size_t>(row_bytes),
                  static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, s);
  return {};
}

status copy_rows(device_state* d, void* to, const void* from, const row_copy* table,
                 std::int64_t entries, std::int64_t rows, std::int64_t row_bytes, stream s) {
  DYNCP_ON_DEVICE(*d);
  return cuda_status(launch_copy_rows({to, from, table, entries, rows, row_bytes}, s), "copy_rows",
                     d->facts.rank);
}

}  // namespace abi
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
