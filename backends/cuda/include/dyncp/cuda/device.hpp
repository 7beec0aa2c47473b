// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cuda/abi.hpp>
#include <dyncp/cuda/library.hpp>
#include <dyncp/runtime/device.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// Device memory from the caller, such as a trainer's caching allocator. Both are called on the
/// thread of the rank; memory handed out is used on any stream right away. Null or an exception is
/// reported as an error.
struct memory_source {
  std::function<void*(std::int64_t bytes)> allocate;  ///< aligned to device_alignment_bytes
  std::function<void(void* memory, std::int64_t bytes)> release;
};

struct device_options {
  std::int32_t ordinal = 0;  ///< of CUDA, among the visible GPUs
  std::int32_t rank = 0;     ///< named in errors
  memory_source memory = {};  ///< empty: a stream-ordered pool, which keeps what is given back
  std::int64_t memory_limit_bytes = 0;  ///< more in use is out_of_memory; 0: no limit
};

/// A GPU as one rank uses it. Models `dyncp::device`.
///
/// Streams are the caller's (`cudaStream_t`); the device owns one for communication, and one that
/// carries nothing but allocations, so that memory is ready before `allocate` returns. No call uses
/// the default stream, waits for the GPU or changes the thread's current device for longer than it
/// runs. (A thread whose current device the process does not use, such as GPU 0 before anybody
/// chose one, keeps this device: to choose the other again would make a context there.) Host memory
/// for uploads is pinned. Kernels are loaded by `open`, since to load one later may wait for the
/// GPU.
///
/// An error of queued work is found by a later call, as CUDA reports it; it names this rank, not
/// the call at fault. Thread safety: an object belongs to the thread of its rank. Buffers and
/// events keep what they need of it alive.
///
/// Example:
///   auto gpu = dyncp::cuda::device::open({.ordinal = 0, .rank = rank});
///   if (!gpu) return gpu.error();  // no GPU or driver: errc::unsupported
class device {
  /// Outlives the device while buffers or events do.
  struct shared {
    abi::device_state* handle = nullptr;
    memory_source memory;
    std::int64_t limit_bytes = 0;
    std::int64_t in_use_bytes = 0;

    shared() = default;
    shared(const shared&) = delete;
    shared& operator=(const shared&) = delete;
    ~shared() {
      if (handle != nullptr) abi::close_device(handle);
    }
  };
  using shared_ptr = std::shared_ptr<shared>;
  struct release_buffer {
    void operator()(shared& s, void* memory, std::int64_t bytes) const noexcept {
      free(s, memory, bytes);
    }
  };
  struct release_staging {
    void operator()(shared& s, void* memory, std::int64_t) const noexcept {
      abi::release_staging(s.handle, memory);
    }
  };

 public:
  using stream = cuda::stream;

  class event {
   public:
    event(event&& other) noexcept
        : owner_(std::move(other.owner_)), handle_(std::exchange(other.handle_, nullptr)) {}
    event& operator=(event&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(handle_, other.handle_);
      return *this;
    }
    ~event() {
      if (handle_ != nullptr) abi::close_event(owner_->handle, handle_);
    }
    /// cudaEvent_t
    [[nodiscard]] CUevent_st* native() const noexcept { return handle_; }

   private:
    friend class device;
    event(shared_ptr owner, CUevent_st* handle) : owner_(std::move(owner)), handle_(handle) {}
    shared_ptr owner_;
    CUevent_st* handle_ = nullptr;
  };

  /// Memory that goes back where it came from when its owner goes.
  template <class Release>
  class block {
   public:
    block() = default;
    block(block&& other) noexcept { swap(other); }
    block& operator=(block&& other) noexcept {
      block moved(std::move(other));
      swap(moved);
      return *this;
    }
    ~block() {
      if (data_ != nullptr) Release{}(*owner_, data_, bytes_);
    }
    [[nodiscard]] void* data() noexcept { return data_; }
    [[nodiscard]] const void* data() const noexcept { return data_; }
    [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

   private:
    friend class device;
    void swap(block& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
    }
    shared_ptr owner_;
    void* data_ = nullptr;
    std::int64_t bytes_ = 0;
  };

  /// Device memory; its owner has waited for its last user.
  using buffer = block<release_buffer>;
  /// Pinned host memory.
  using staging = block<release_staging>;

  /// A caller's stream for programs that have none, such as tests; closed with its owner.
  class owned_stream {
   public:
    owned_stream(owned_stream&& other) noexcept
        : owner_(std::move(other.owner_)), handle_(std::exchange(other.handle_, nullptr)) {}
    owned_stream& operator=(owned_stream&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(handle_, other.handle_);
      return *this;
    }
    ~owned_stream() {
      if (handle_ != nullptr) abi::close_stream(owner_->handle, handle_);
    }
    [[nodiscard]] cuda::stream get() const noexcept { return handle_; }

   private:
    friend class device;
    owned_stream(shared_ptr owner, cuda::stream handle)
        : owner_(std::move(owner)), handle_(handle) {}
    shared_ptr owner_;
    cuda::stream handle_ = nullptr;
  };

  /// Errors: mismatch for another version of the compiled library; unsupported without a GPU, a
  /// driver, stream-ordered allocation (unless options.memory is given) or code for this GPU.
  [[nodiscard]] static result<device> open(const device_options& options) {
    DYNCP_TRY(check_library());
    if (static_cast<bool>(options.memory.allocate) != static_cast<bool>(options.memory.release)) {
      return make_error(errc::invalid_argument, "a memory_source with one function of two",
                        "give both allocate and release, or neither");
    }
    auto owner = std::make_shared<shared>();
    const abi::device_request request{options.ordinal, options.rank,
                                      options.memory.allocate ? 0 : 1};
    DYNCP_TRY(abi::to_result(abi::open_device(request, &owner->handle)));
    owner->memory = options.memory;
    owner->limit_bytes = options.memory_limit_bytes;
    return device(std::move(owner));
  }

  [[nodiscard]] std::int32_t ordinal() const noexcept { return facts_.ordinal; }
  [[nodiscard]] std::int32_t rank() const noexcept { return facts_.rank; }
  [[nodiscard]] std::string name() const { return facts_.name; }
  /// 90 for compute capability 9.0.
  [[nodiscard]] std::int32_t capability() const noexcept { return facts_.capability; }
  [[nodiscard]] std::int32_t processors() const noexcept { return facts_.processors; }
  /// Shared memory that a block of a kernel may ask for.
  [[nodiscard]] std::int64_t shared_bytes() const noexcept { return facts_.shared_bytes; }
  /// What the functions of dyncp::cuda::abi take.
  [[nodiscard]] abi::device_state* handle() const noexcept { return shared_->handle; }

  /// Errors: out_of_memory; callback_failed for an exception of the caller's allocator; timeout for
  /// a GPU that gives no memory within a minute.
  [[nodiscard]] result<buffer> allocate(std::int64_t bytes) {
    buffer out;
    if (bytes < 0) return negative(bytes);
    if (bytes == 0) return out;
    shared& s = *shared_;
    if (s.limit_bytes > 0 && bytes > s.limit_bytes - s.in_use_bytes) {
      return error{errc::out_of_memory, "rank " + std::to_string(rank()) + ": " +
                   std::to_string(bytes) + " bytes beside the " + std::to_string(s.in_use_bytes) +
                   " in use exceed the limit of " + std::to_string(s.limit_bytes), bytes,
                   s.limit_bytes - s.in_use_bytes,
                   "lower the tokens per rank or the size of the largest group"};
    }
    if (s.memory.allocate) {
      auto memory = from_caller(bytes);
      if (!memory) return std::move(memory).error();
      out.data_ = *memory;
    } else {
      DYNCP_TRY(abi::to_result(abi::allocate(s.handle, bytes, &out.data_)));
    }
    out.owner_ = shared_;
    out.bytes_ = bytes;
    s.in_use_bytes += bytes;
    return out;
  }
  [[nodiscard]] result<staging> allocate_staging(std::int64_t bytes) {
    staging out;
    if (bytes < 0) return negative(bytes);
    if (bytes == 0) return out;
    DYNCP_TRY(abi::to_result(abi::allocate_staging(shared_->handle, bytes, &out.data_)));
    out.owner_ = shared_;
    out.bytes_ = bytes;
    return out;
  }
  /// Bytes of device memory in buffers that live.
  [[nodiscard]] std::int64_t memory_in_use() const noexcept { return shared_->in_use_bytes; }

  [[nodiscard]] stream comm_stream() const noexcept { return facts_.comm_stream; }
  [[nodiscard]] result<owned_stream> make_stream() {
    stream s = nullptr;
    DYNCP_TRY(abi::to_result(abi::make_stream(shared_->handle, &s)));
    return owned_stream(shared_, s);
  }
  /// True if all work queued on `s` so far is done. Never waits; a fabric's `synchronize` does.
  [[nodiscard]] result<bool> poll(stream s) {
    bool done = false;
    DYNCP_TRY(abi::to_result(abi::poll(shared_->handle, s, &done)));
    return done;
  }

  [[nodiscard]] result<event> make_event() {
    CUevent_st* handle = nullptr;
    DYNCP_TRY(abi::to_result(abi::make_event(shared_->handle, &handle)));
    return event(shared_, handle);
  }
  [[nodiscard]] result<void> record(event& e, stream s) {
    return abi::to_result(abi::record(shared_->handle, e.handle_, s));
  }
  [[nodiscard]] result<void> wait(stream s, const event& e) {
    return abi::to_result(abi::wait(shared_->handle, s, e.handle_));
  }

  [[nodiscard]] result<void> fill_zero(void* to, std::int64_t bytes, stream s) {
    return abi::to_result(abi::fill_zero(shared_->handle, to, bytes, s));
  }
  [[nodiscard]] result<void> copy(void* to, const void* from, std::int64_t bytes, stream s) {
    return abi::to_result(abi::copy(shared_->handle, to, from, bytes, s));
  }
  [[nodiscard]] result<void> copy_strided(void* to, std::int64_t to_stride, const void* from,
                                          std::int64_t from_stride, std::int64_t row_bytes,
                                          std::int64_t rows, stream s) {
    return abi::to_result(abi::copy_strided(shared_->handle, to, to_stride, from, from_stride,
                                            row_bytes, rows, s));
  }
  /// `from` is staging memory; pageable host memory would make the call wait.
  [[nodiscard]] result<void> upload(void* to, const void* from, std::int64_t bytes, stream s) {
    return abi::to_result(abi::upload(shared_->handle, to, from, bytes, s));
  }
  [[nodiscard]] result<void> download(void* to, const void* from, std::int64_t bytes, stream s) {
    return abi::to_result(abi::download(shared_->handle, to, from, bytes, s));
  }
  [[nodiscard]] result<void> copy_rows(void* to, const void* from, std::span<const row_copy> table,
                                       std::int64_t rows, std::int64_t row_bytes, stream s) {
    return abi::to_result(abi::copy_rows(shared_->handle, to, from, table.data(),
                                         static_cast<std::int64_t>(table.size()), rows, row_bytes,
                                         s));
  }

 private:
  explicit device(shared_ptr owner) : shared_(std::move(owner)) {
    abi::describe_device(shared_->handle, &facts_);
  }

  [[nodiscard]] static error negative(std::int64_t bytes) {
    return error{errc::invalid_argument, "an allocation of " + std::to_string(bytes) + " bytes",
                 bytes, 0, "ask for 0 bytes or more"};
  }

  [[nodiscard]] result<void*> from_caller(std::int64_t bytes) const {
    const auto failed = [&](errc code, const char* how) {
      return error{code, "rank " + std::to_string(rank()) + ": the caller's allocator " + how +
                   " for " + std::to_string(bytes) + " bytes", bytes, 0, {}};
    };
    void* memory = nullptr;
#if defined(__cpp_exceptions)
    try {
      memory = shared_->memory.allocate(bytes);
    } catch (...) {
      return failed(errc::callback_failed, "threw");
    }
#else
    memory = shared_->memory.allocate(bytes);
#endif
    if (memory == nullptr) return failed(errc::out_of_memory, "returned null");
    if (reinterpret_cast<std::uintptr_t>(memory) % device_alignment_bytes != 0) {
      return failed(errc::invalid_argument, "returned unaligned memory");
    }
    return memory;
  }

  static void free(shared& s, void* memory, std::int64_t bytes) noexcept {
    s.in_use_bytes -= bytes;
    if (!s.memory.release) {
      abi::release(s.handle, memory);
      return;
    }
#if defined(__cpp_exceptions)
    try {
      s.memory.release(memory, bytes);
    } catch (...) {  // nobody is left to tell
    }
#else
    s.memory.release(memory, bytes);
#endif
  }

  shared_ptr shared_;
  abi::device_facts facts_;
};

static_assert(dyncp::device<device>);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
