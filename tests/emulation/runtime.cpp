// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime as far as the library uses it, on the GPUs of the emulated world. Stricter than
// the real one: host memory of asynchronous copies must be pinned, every byte of a copy must belong
// to one live block, the default stream is an error, and a kernel must be loaded before its first
// launch.
#include "emulation/sanitizers.hpp"
#include "emulation/world.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <emulation_hooks.hpp>
#include <launch.hpp>

namespace {

using dyncp_emulation::emulated_stream;
using dyncp_emulation::fault_kind;
using dyncp_emulation::memory_kind;
using dyncp_emulation::unchecked;
using dyncp_emulation::world;

struct emulated_event {
  std::uint64_t recorded = 0;
  std::uint64_t reached = 0;
  char passed = 0;  // for the thread sanitizer
};

/// Stream-ordered memory. What is not in use goes back to the device when somebody asks for the
/// state of a stream, down to the threshold.
struct emulated_pool {
  std::int32_t device = 0;
  std::uint64_t kept_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t reserved_bytes = 0;
  std::map<void*, std::size_t> blocks;
};
std::vector<std::weak_ptr<emulated_pool>> pools;
using pool_handle = std::shared_ptr<emulated_pool>;
pool_handle* as_pool(cudaMemPool_t pool) { return reinterpret_cast<pool_handle*>(pool); }

void trim_pools() {
  std::erase_if(pools, [](const auto& p) { return p.expired(); });
  for (const auto& weak : pools) {
    const pool_handle p = weak.lock();
    p->reserved_bytes = std::max(p->used_bytes, std::min(p->reserved_bytes, p->kept_bytes));
  }
}

/// To use a device makes a context on it.
void use(std::int32_t device) { world::current()->use_of(device).context = true; }

cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t code) {
  last_error = code;
  return code;
}

/// What the first fault makes of every later call.
cudaError_t state() {
  if (world::current() == nullptr) return fail(cudaErrorNoDevice);
  switch (world::current()->first_fault().kind) {
    case fault_kind::none: return cudaSuccess;
    case fault_kind::out_of_bounds: return fail(cudaErrorIllegalAddress);
    case fault_kind::misaligned: return fail(cudaErrorMisalignedAddress);
    case fault_kind::invalid_copy: return fail(cudaErrorInvalidValue);
    case fault_kind::invalid_launch: return fail(cudaErrorInvalidConfiguration);
    case fault_kind::deadlock: return fail(cudaErrorUnknown);
    default: return fail(cudaErrorLaunchFailure);
  }
}

#define DYNCP_REQUIRE_STATE() \
  if (const cudaError_t now = state(); now != cudaSuccess) return now

emulated_stream* as_stream(cudaStream_t s) { return reinterpret_cast<emulated_stream*>(s); }
/// What waits for an event may outlive its handle.
using event_handle = std::shared_ptr<emulated_event>;
event_handle* as_handle(cudaEvent_t e) { return reinterpret_cast<event_handle*>(e); }
const event_handle& as_event(cudaEvent_t e) { return *as_handle(e); }

/// A stream that somebody made: the default stream is not.
bool is_stream(cudaStream_t s) { return world::current()->is_stream(as_stream(s)); }

bool is_memory(const void* p, std::size_t bytes, memory_kind kind) {
  const auto* const block = world::current()->memory().find(p, bytes);
  return block != nullptr && block->kind == kind;
}

cudaError_t report(fault_kind kind, const std::string& text) {
  world::current()->report(kind, text);
  return state();
}

cudaError_t copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                 std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  const unchecked scope;
  DYNCP_REQUIRE_STATE();
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  if (width > to_pitch || width > from_pitch) return fail(cudaErrorInvalidPitchValue);
  if (width == 0 || height == 0) return cudaSuccess;
  const std::size_t to_bytes = to_pitch * (height - 1) + width;
  const std::size_t from_bytes = from_pitch * (height - 1) + width;
  const memory_kind source =
      kind == cudaMemcpyHostToDevice ? memory_kind::pinned : memory_kind::device;
  const memory_kind target =
      kind == cudaMemcpyDeviceToHost ? memory_kind::pinned : memory_kind::device;
  if (!is_memory(to, to_bytes, target)) {
    return report(fault_kind::invalid_copy, "a copy of " + std::to_string(to_bytes) +
                                                " bytes to memory that is not there");
  }
  if (!is_memory(from, from_bytes, source)) {
    return report(fault_kind::invalid_copy, "a copy of " + std::to_string(from_bytes) +
                                                " bytes from memory that is not there");
  }
  world::current()->enqueue(as_stream(stream), [=] {
    const unchecked inner;
    // Freed meanwhile, perhaps.
    if (!is_memory(to, to_bytes, target) || !is_memory(from, from_bytes, source)) {
      world::current()->report(fault_kind::invalid_copy, "a copy of memory that was freed before");
      return;
    }
    for (std::size_t row = 0; row < height; ++row) {
      auto* const t = static_cast<char*>(to) + row * to_pitch;
      const auto* const f = static_cast<const char*>(from) + row * from_pitch;
      dyncp_emulation::reads(f, width);
      dyncp_emulation::writes(t, width);
      std::memcpy(t, f, width);
    }
  });
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}

const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorMisalignedAddress: return "cudaErrorMisalignedAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t e) {
  if (world::current() != nullptr && !world::current()->first_fault().text.empty()) {
    return world::current()->first_fault().text.c_str();
  }
  return cudaGetErrorName(e);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  DYNCP_REQUIRE_STATE();
  *count = world::current()->options().devices;
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  DYNCP_REQUIRE_STATE();
  *device = world::current()->current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  DYNCP_REQUIRE_STATE();
  if (device < 0 || device >= world::current()->options().devices) {
    return fail(cudaErrorInvalidDevice);
  }
  world::current()->current_device() = device;
  use(device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  DYNCP_REQUIRE_STATE();
  const auto& options = world::current()->options();
  if (device < 0 || device >= options.devices) return fail(cudaErrorInvalidDevice);
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor: *value = options.capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = options.capability % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(options.grid.shared_limit_bytes);
      break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return fail(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  DYNCP_REQUIRE_STATE();
  if (flags != cudaStreamNonBlocking) return fail(cudaErrorInvalidValue);
  use(world::current()->current_device());
  *stream = reinterpret_cast<cudaStream_t>(
      world::current()->open_stream(world::current()->current_device()));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (world::current() == nullptr) return cudaErrorNoDevice;
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  world::current()->close_stream(as_stream(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  DYNCP_REQUIRE_STATE();
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  world::current()->yield();
  DYNCP_REQUIRE_STATE();
  if (!as_stream(stream)->idle()) return fail(cudaErrorNotReady);
  static_cast<void>(world::current()->wait_idle(as_stream(stream)));
  trim_pools();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  DYNCP_REQUIRE_STATE();
  if (flags != cudaEventDisableTiming) return fail(cudaErrorInvalidValue);
  *event = reinterpret_cast<cudaEvent_t>(new event_handle(std::make_shared<emulated_event>()));
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (world::current() == nullptr) {
    delete as_handle(event);
    return cudaErrorNoDevice;
  }
  // The work of an event may be queued still: it goes when that has passed.
  const unchecked scope;
  const event_handle e = as_event(event);
  static_cast<void>(world::current()->wait_until([&e] {
    return e->reached >= e->recorded || world::current()->first_fault().kind != fault_kind::none;
  }));
  delete as_handle(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const unchecked scope;
  DYNCP_REQUIRE_STATE();
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  const event_handle e = as_event(event);
  const std::uint64_t ticket = ++e->recorded;
  world::current()->enqueue(as_stream(stream), [e, ticket] {
    const unchecked inner;
    if (e->reached < ticket) e->reached = ticket;
    dyncp_emulation::release(&e->passed);
  });
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const unchecked scope;
  DYNCP_REQUIRE_STATE();
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  const event_handle e = as_event(event);
  const std::uint64_t ticket = e->recorded;
  if (ticket == 0) return cudaSuccess;
  world::current()->enqueue(as_stream(stream), [e, ticket] {
    const unchecked inner;
    if (!world::current()->wait_until([&e, ticket] { return e->reached >= ticket; })) return;
    dyncp_emulation::acquire(&e->passed);
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const unchecked scope;
  DYNCP_REQUIRE_STATE();
  world::current()->yield();
  DYNCP_REQUIRE_STATE();
  const event_handle e = as_event(event);
  if (e->reached < e->recorded) return fail(cudaErrorNotReady);
  dyncp_emulation::acquire(&as_event(event)->passed);
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  DYNCP_REQUIRE_STATE();
  if (properties->allocType != cudaMemAllocationTypePinned ||
      properties->location.type != cudaMemLocationTypeDevice) {
    return fail(cudaErrorInvalidValue);
  }
  use(properties->location.id);
  auto made = std::make_shared<emulated_pool>();
  made->device = properties->location.id;
  pools.push_back(made);
  *pool = reinterpret_cast<cudaMemPool_t>(new pool_handle(std::move(made)));
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  DYNCP_REQUIRE_STATE();
  if (which != cudaMemPoolAttrReleaseThreshold) return fail(cudaErrorInvalidValue);
  (*as_pool(pool))->kept_bytes = *static_cast<const std::uint64_t*>(value);
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  delete as_pool(pool);
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  const unchecked scope;
  DYNCP_REQUIRE_STATE();
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  world& w = *world::current();
  emulated_pool& p = **as_pool(pool);
  const std::size_t limit = w.options().memory_limit_bytes;
  if (limit > 0 && bytes > limit) return fail(cudaErrorMemoryAllocation);
  *memory = w.memory().allocate(memory_kind::device, as_stream(stream)->device(), bytes);
  if (*memory == nullptr) return fail(cudaErrorMemoryAllocation);
  p.blocks[*memory] = bytes;
  p.used_bytes += bytes;
  if (p.used_bytes > p.reserved_bytes) {
    p.reserved_bytes = p.used_bytes;
    ++w.use_of(p.device).growths;
  }
  // It is there when the stream has come so far.
  w.enqueue(as_stream(stream), [] {});
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  const unchecked scope;
  if (world::current() == nullptr) return cudaErrorNoDevice;
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  for (const auto& weak : pools) {
    const pool_handle p = weak.lock();
    if (p == nullptr || !p->blocks.contains(memory)) continue;
    p->used_bytes -= p->blocks[memory];
    p->blocks.erase(memory);
  }
  world::current()->enqueue(as_stream(stream), [memory] {
    const unchecked inner;
    bool damaged = false;
    if (!world::current()->memory().free(memory_kind::device, memory, damaged)) {
      world::current()->report(fault_kind::invalid_copy, "memory freed that is not there");
    } else if (damaged) {
      world::current()->report(fault_kind::out_of_bounds, "bytes behind a block were written");
    }
  });
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  DYNCP_REQUIRE_STATE();
  const std::int32_t device = world::current()->current_device();
  use(device);
  *attributes = {};
  world::current()->use_of(device).kernels.try_emplace(
      function, dyncp::cuda::plain_shared_bytes);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  DYNCP_REQUIRE_STATE();
  world& w = *world::current();
  if (which != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<std::uint32_t>(value) > w.options().grid.shared_limit_bytes) {
    return fail(cudaErrorInvalidValue);
  }
  w.use_of(w.current_device()).kernels[function] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

namespace {
CUresult context_state(CUdevice device, unsigned int* flags, int* active) {
  if (world::current() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  *flags = 0;
  *active = world::current()->use_of(device).context ? 1 : 0;
  return CUDA_SUCCESS;
}
}  // namespace

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* outcome) {
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* outcome) {
#endif
  const bool known = std::string(symbol) == "cuDevicePrimaryCtxGetState";
  *function = known ? reinterpret_cast<void*>(&context_state) : nullptr;
  *outcome = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned int) {
  const unchecked scope;
  DYNCP_REQUIRE_STATE();
  *memory = world::current()->memory().allocate(memory_kind::pinned, 0, bytes);
  return *memory != nullptr ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* memory) {
  const unchecked scope;
  if (world::current() == nullptr) return cudaErrorNoDevice;
  bool damaged = false;
  if (!world::current()->memory().free(memory_kind::pinned, memory, damaged)) {
    return fail(cudaErrorInvalidValue);
  }
  return damaged ? report(fault_kind::out_of_bounds, "bytes behind pinned memory were written")
                 : cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, to_pitch, from, from_pitch, width, height, kind, stream);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const unchecked scope;
  DYNCP_REQUIRE_STATE();
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  if (!is_memory(to, bytes, memory_kind::device)) {
    return report(fault_kind::invalid_copy, "memory set that is not there");
  }
  world::current()->enqueue(as_stream(stream), [=] {
    const unchecked inner;
    if (!is_memory(to, bytes, memory_kind::device)) {
      world::current()->report(fault_kind::invalid_copy, "memory set that was freed before");
      return;
    }
    dyncp_emulation::writes(to, bytes);
    std::memset(to, value, bytes);
  });
  return cudaSuccess;
}

}  // extern "C"

namespace dyncp {
inline namespace v0 {
namespace cuda {

// The clock of the library.
std::int64_t clock_us() noexcept {
  return world::current() == nullptr ? 0 : world::current()->now_us();
}
void pause(std::int64_t) noexcept {
  if (world::current() != nullptr) world::current()->pause();
}

namespace emulation {

namespace {
dyncp_emulation::grid_runner& runner() { return *dyncp_emulation::current_runner(); }
}  // namespace

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, std::function<void()> body) {
  const unchecked scope;
  DYNCP_REQUIRE_STATE();
  if (!is_stream(stream)) return fail(cudaErrorInvalidResourceHandle);
  const auto& kernels = world::current()->use_of(as_stream(stream)->device()).kernels;
  const auto loaded = kernels.find(kernel);
  if (loaded == kernels.end()) {
    return report(fault_kind::invalid_launch, "a kernel that was not loaded on this device");
  }
  if (shared_bytes > loaded->second) {
    return report(fault_kind::invalid_launch,
                  std::to_string(shared_bytes) + " bytes of shared memory for a block that may "
                  "have " + std::to_string(loaded->second));
  }
  dyncp_emulation::grid_request request{grid, block, shared_bytes, std::move(body)};
  const std::string refused =
      dyncp_emulation::launch_error(request, world::current()->options().grid);
  if (!refused.empty()) return report(fault_kind::invalid_launch, refused);
  world::current()->enqueue_kernel(as_stream(stream), std::move(request));
  return cudaSuccess;
}

void* shared_memory() { return runner().shared_memory(); }
void* shared_at(std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment) {
  return runner().shared_at(address, bytes, alignment);
}
void meet(void* mine, warp_action act) { runner().meet(mine, act); }
void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes, bool valid) {
  runner().copy_async(to, from, bytes, valid);
}
void commit_copies() { runner().commit_copies(); }
void wait_copies(std::uint32_t pending) { runner().wait_copies(pending); }
void spin() { runner().spin(); }
void check_aligned(const void* p, std::uint32_t alignment) {
  runner().check_aligned(p, alignment);
}

}  // namespace emulation
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
