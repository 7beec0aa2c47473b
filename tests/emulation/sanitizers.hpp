// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the sanitizers have to be told about code that runs on many stacks of one OS thread.

#include <cstddef>
#include <cstdint>

// The emulator itself is compiled without instrumentation and told by the build.
#if defined(DYNCP_TSAN)
#elif defined(__SANITIZE_THREAD__)
#define DYNCP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DYNCP_TSAN 1
#endif
#endif
#if !defined(DYNCP_TSAN)
#define DYNCP_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define DYNCP_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DYNCP_ASAN 1
#endif
#endif
#if !defined(DYNCP_ASAN)
#define DYNCP_ASAN 0
#endif

#if DYNCP_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif
#if DYNCP_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace dyncp_emulation {

inline constexpr bool thread_sanitizer = DYNCP_TSAN != 0;
inline constexpr bool address_sanitizer = DYNCP_ASAN != 0;

/// Reports of the thread sanitizer so far; 0 without it.
[[nodiscard]] std::int64_t race_reports();

/// While one lives, accesses of the running fiber are the emulator's own and not checked.
class unchecked {
 public:
  unchecked() {
#if DYNCP_TSAN
    __tsan_ignore_thread_begin();
#endif
  }
  unchecked(const unchecked&) = delete;
  unchecked& operator=(const unchecked&) = delete;
  ~unchecked() {
#if DYNCP_TSAN
    __tsan_ignore_thread_end();
#endif
  }
};

/// The opposite, inside the scope of one `unchecked`.
class checked {
 public:
  checked() {
#if DYNCP_TSAN
    __tsan_ignore_thread_end();
#endif
  }
  checked(const checked&) = delete;
  checked& operator=(const checked&) = delete;
  ~checked() {
#if DYNCP_TSAN
    __tsan_ignore_thread_begin();
#endif
  }
};

/// What was done before `release(p)` is done for whoever calls `acquire(p)` after.
inline void release([[maybe_unused]] void* p) {
#if DYNCP_TSAN
  __tsan_release(p);
#endif
}
inline void acquire([[maybe_unused]] void* p) {
#if DYNCP_TSAN
  __tsan_acquire(p);
#endif
}

/// The running fiber reads or writes memory by ways that the compiler does not see. Called inside
/// the scope of one `unchecked`.
inline void reads([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if DYNCP_TSAN
  const checked scope;
  __tsan_read_range(const_cast<void*>(p), bytes);
#endif
}
inline void writes([[maybe_unused]] void* p, [[maybe_unused]] std::size_t bytes) {
#if DYNCP_TSAN
  const checked scope;
  __tsan_write_range(p, bytes);
#endif
}

}  // namespace dyncp_emulation
