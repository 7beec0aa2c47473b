// SPDX-License-Identifier: Apache-2.0
#include "emulation/fiber.hpp"

#include "emulation/sanitizers.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

// void dyncp_switch_stack(void** save, void* load): keeps what a callee has to keep, nothing else.
extern "C" void dyncp_switch_stack(void** save, void* load);
extern "C" void dyncp_begin_stack();

#if defined(__x86_64__)
__asm__(R"(
.text
.globl dyncp_switch_stack
.hidden dyncp_switch_stack
.type dyncp_switch_stack, @function
dyncp_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size dyncp_switch_stack, .-dyncp_switch_stack
.globl dyncp_begin_stack
.hidden dyncp_begin_stack
.type dyncp_begin_stack, @function
dyncp_begin_stack:
  movq %r12, %rdi
  callq *%r13
  ud2
.size dyncp_begin_stack, .-dyncp_begin_stack
.section .note.GNU-stack,"",@progbits
.text
)");
#elif defined(__aarch64__)
__asm__(R"(
.text
.globl dyncp_switch_stack
.hidden dyncp_switch_stack
.type dyncp_switch_stack, %function
dyncp_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size dyncp_switch_stack, .-dyncp_switch_stack
.globl dyncp_begin_stack
.hidden dyncp_begin_stack
.type dyncp_begin_stack, %function
dyncp_begin_stack:
  mov x0, x19
  blr x20
  brk #0
.size dyncp_begin_stack, .-dyncp_begin_stack
.section .note.GNU-stack,"",%progbits
.text
)");
#else
#error "fibers need a context switch for this processor"
#endif

#if DYNCP_ASAN
// The leak checker looks for pointers on the stack that runs, not on those of other fibers, and a
// kernel that is broken off never returns. The environment still decides.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
extern "C" void __asan_handle_no_return();
extern "C" void __asan_unpoison_memory_region(const volatile void* address, std::size_t bytes);
#endif

namespace dyncp_emulation {
namespace {
constexpr std::size_t page_bytes = 4096;
}

fiber::fiber() {
#if DYNCP_ASAN
  pthread_attr_t attributes;
  void* bottom = nullptr;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &bottom, &stack_bytes_);
    pthread_attr_destroy(&attributes);
  }
  stack_bottom_ = bottom;
#endif
#if DYNCP_TSAN
  identity_ = __tsan_get_current_fiber();
#endif
}

fiber::fiber(std::size_t stack_bytes, const fiber* within)
    : memory_bytes_(stack_bytes + page_bytes), stack_bytes_(stack_bytes) {
  void* const memory = mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  mprotect(memory_, page_bytes, PROT_NONE);
  stack_bottom_ = memory_ + page_bytes;
#if DYNCP_TSAN
  owns_identity_ = within == nullptr;
  identity_ = within == nullptr ? __tsan_create_fiber(0) : within->identity_;
#else
  static_cast<void>(within);
#endif
}

fiber::~fiber() {
  retire();
#if DYNCP_TSAN
  if (owns_identity_) __tsan_destroy_fiber(identity_);
#endif
  if (memory_ == nullptr) return;
#if DYNCP_ASAN
  __asan_unpoison_memory_region(memory_, memory_bytes_);  // for who gets the addresses next
#endif
  munmap(memory_, memory_bytes_);
}

void fiber::prepare(void (*entry)(void*), void* argument) {
  prepare(entry, argument, reinterpret_cast<void*>(&begin));
}

void fiber::prepare(void (*entry)(void*), void* argument, void* first) {
  entry_ = entry;
  argument_ = argument;
  auto** top = reinterpret_cast<void**>(memory_ + memory_bytes_);
#if defined(__x86_64__)
  top -= 2;  // the call in dyncp_begin_stack finds the stack aligned
  *--top = reinterpret_cast<void*>(&dyncp_begin_stack);
  *--top = nullptr;                            // rbp
  *--top = nullptr;                            // rbx
  *--top = this;                               // r12
  *--top = first;                              // r13
  *--top = nullptr;                            // r14
  *--top = nullptr;                            // r15
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[0] = this;                                           // x19
  top[1] = first;                                          // x20
  top[11] = reinterpret_cast<void*>(&dyncp_begin_stack);   // x30
#endif
  stack_pointer_ = top;
}

void fiber::begin(fiber* self) {
#if DYNCP_ASAN
  __sanitizer_finish_switch_fiber(self->fake_stack_, nullptr, nullptr);
  __asan_handle_no_return();  // nothing is left of the frames of an earlier entry
#endif
  self->entry_(self->argument_);
  std::abort();
}

#if DYNCP_ASAN
namespace {
/// Where `retire` waits for the fiber to come back.
void* retiring_from = nullptr;
}  // namespace

__attribute__((no_sanitize("address"))) void fiber::leave(fiber* self) {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(self->fake_stack_, &bottom, &bytes);
  __sanitizer_start_switch_fiber(nullptr, bottom, bytes);  // null: the fake stack goes
  dyncp_switch_stack(&self->stack_pointer_, retiring_from);
}
#endif

/// Only on a fiber itself can the address sanitizer be told that its fake stack is not needed more.
void fiber::retire() {
#if DYNCP_ASAN
  if (memory_ == nullptr || fake_stack_ == nullptr) return;
  prepare(nullptr, nullptr, reinterpret_cast<void*>(&leave));
  void* mine = nullptr;
  __sanitizer_start_switch_fiber(&mine, stack_bottom_, stack_bytes_);
  dyncp_switch_stack(&retiring_from, stack_pointer_);
  __sanitizer_finish_switch_fiber(mine, nullptr, nullptr);
#endif
}

void fiber::resume_from(fiber& from) {
#if DYNCP_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack_, stack_bottom_, stack_bytes_);
#endif
#if DYNCP_TSAN
  if (identity_ != from.identity_) {
    __tsan_switch_to_fiber(identity_, __tsan_switch_to_fiber_no_sync);
  }
#endif
  dyncp_switch_stack(&from.stack_pointer_, stack_pointer_);
#if DYNCP_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
#endif
}

bool fiber::is_overflow(const void* address) const noexcept {
  const auto* const p = static_cast<const char*>(address);
  return memory_ != nullptr && p >= memory_ && p < memory_ + page_bytes;
}

}  // namespace dyncp_emulation
