// SPDX-License-Identifier: Apache-2.0
// Apart from its callers: g++ 12 warns of a mismatch where it inlines one side of a pair alone.
#include "backends/counting_new.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace dyncp_test {
std::atomic<std::int64_t> allocations{0};
}  // namespace dyncp_test

namespace {

void* counted(std::size_t bytes, std::size_t alignment) {
  ++dyncp_test::allocations;
  const std::size_t unit = alignment < sizeof(void*) ? sizeof(void*) : alignment;
  return std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit + (bytes == 0 ? unit : 0));
}
void* counted_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const p = counted(bytes, alignment)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t n) {
  return counted_or_throw(n, 16);
}
void* operator new[](std::size_t n) {
  return counted_or_throw(n, 16);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return counted_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return counted(n, 16);
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(p);
}
