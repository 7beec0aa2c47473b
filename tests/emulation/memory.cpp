// SPDX-License-Identifier: Apache-2.0
#include "emulation/memory.hpp"

#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace dyncp_emulation {
namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t alignment = 256;
constexpr int slack_byte = 0xa5;

std::size_t round_up(std::size_t n, std::size_t m) { return (n + m - 1) / m * m; }

}  // namespace

void* memory_map::allocate(memory_kind kind, std::int32_t device, std::size_t bytes) {
  const std::size_t placed = round_up(bytes == 0 ? 1 : bytes, alignment);
  const std::size_t pages = round_up(placed, page_bytes);
  const std::size_t mapping_bytes = pages + 2 * page_bytes;
  void* const mapped = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const mapping = static_cast<char*>(mapped);
  mprotect(mapping, page_bytes, PROT_NONE);
  mprotect(mapping + page_bytes + pages, page_bytes, PROT_NONE);
  // The end of the block touches the page behind it, as far as alignment allows.
  char* const first = mapping + page_bytes + pages - placed;
  std::memset(first, nan_byte, bytes);
  std::memset(first + bytes, slack_byte, placed - bytes);
  block b;
  b.kind = kind;
  b.device = device;
  b.bytes = bytes;
  b.mapping = mapping;
  b.mapping_bytes = mapping_bytes;
  b.slack_bytes = placed - bytes;
  blocks_.emplace(reinterpret_cast<std::uintptr_t>(first), b);
  ++live_;
  ++allocations_;
  return first;
}

bool memory_map::free(memory_kind kind, void* p, bool& damaged) {
  damaged = false;
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(p));
  if (found == blocks_.end() || found->second.freed || found->second.kind != kind) return false;
  block& b = found->second;
  const char* const slack = static_cast<const char*>(p) + b.bytes;
  for (std::size_t i = 0; i < b.slack_bytes; ++i) {
    damaged = damaged || static_cast<unsigned char>(slack[i]) != slack_byte;
  }
  b.freed = true;
  --live_;
  mprotect(b.mapping, b.mapping_bytes, PROT_NONE);
  return true;
}

const memory_map::block* memory_map::find(const void* p, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return nullptr;
  --next;
  const std::size_t offset = address - next->first;
  const block& b = next->second;
  if (b.freed || offset > b.bytes || bytes > b.bytes - offset) return nullptr;
  return &b;
}

std::string memory_map::describe(const void* address) const {
  const auto* const p = static_cast<const char*>(address);
  for (const auto& [begin, b] : blocks_) {
    if (p < b.mapping || p >= b.mapping + b.mapping_bytes) continue;
    const auto* const first = reinterpret_cast<const char*>(begin);
    const char* const what = b.kind == memory_kind::device ? " bytes of device memory"
                                                           : " bytes of pinned memory";
    const std::string which = std::to_string(b.bytes) + what;
    if (b.freed) return which + " that were freed";
    if (p < first) return std::to_string(first - p) + " bytes before " + which;
    return std::to_string(p - first - static_cast<std::ptrdiff_t>(b.bytes)) + " bytes behind " +
           which;
  }
  return {};
}

void memory_map::clear() {
  for (const auto& [begin, b] : blocks_) munmap(b.mapping, b.mapping_bytes);
  blocks_.clear();
  live_ = 0;
}

}  // namespace dyncp_emulation
