// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace dyncp_emulation {

/// A stack of its own to run on. Fibers of one OS thread hand control to each other; nothing runs
/// beside them.
///
/// For the thread sanitizer a fiber is a thread of its own, or, made `within` another, the same.
/// A fiber that is thrown away in the middle of its work leaves its locals undestroyed.
class fiber {
 public:
  /// The stack that the program began on.
  fiber();
  explicit fiber(std::size_t stack_bytes, const fiber* within = nullptr);
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;
  ~fiber();

  /// The next switch to this fiber calls entry(argument), which never returns.
  void prepare(void (*entry)(void*), void* argument);
  /// Leaves the running fiber `from`, which must be the one that runs, for this one.
  void resume_from(fiber& from);

  /// Whether `address` lies in the unmapped page under the stack.
  [[nodiscard]] bool is_overflow(const void* address) const noexcept;
  /// One past the stack.
  [[nodiscard]] void* top() const noexcept { return memory_ + memory_bytes_; }

 private:
  static void begin(fiber* self);
  static void leave(fiber* self);
  void prepare(void (*entry)(void*), void* argument, void* first);
  void retire();

  void* stack_pointer_ = nullptr;
  char* memory_ = nullptr;  // guard page first; null for the first stack
  std::size_t memory_bytes_ = 0;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* fake_stack_ = nullptr;        // of the address sanitizer
  const void* stack_bottom_ = nullptr;
  [[maybe_unused]] std::size_t stack_bytes_ = 0;
  [[maybe_unused]] void* identity_ = nullptr;  // of the thread sanitizer
  [[maybe_unused]] bool owns_identity_ = false;
};

}  // namespace dyncp_emulation
