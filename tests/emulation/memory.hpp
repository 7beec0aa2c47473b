// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dyncp_emulation {

enum class memory_kind : std::int32_t { device, pinned };

/// Memory of the emulated GPUs and of pinned host memory. Each block lies alone, between pages that
/// nobody may touch; what is freed is such a page, too, until the next reset. New blocks hold NaN
/// of every type, or other garbage.
class memory_map {
 public:
  struct block {
    memory_kind kind = memory_kind::device;
    std::int32_t device = 0;
    std::size_t bytes = 0;
    bool freed = false;
    // internal
    char* mapping = nullptr;
    std::size_t mapping_bytes = 0;
    std::size_t slack_bytes = 0;  ///< behind the block, to its last page
  };

  memory_map() = default;
  memory_map(const memory_map&) = delete;
  memory_map& operator=(const memory_map&) = delete;
  ~memory_map() { clear(); }

  /// Aligned to 256 bytes; null if there is no more.
  void* allocate(memory_kind kind, std::int32_t device, std::size_t bytes);
  /// False if `p` is no live block of this kind. `damaged` tells whether something was written
  /// between its end and the next page.
  bool free(memory_kind kind, void* p, bool& damaged);
  /// The block that holds [p, p + bytes), or null.
  [[nodiscard]] const block* find(const void* p, std::size_t bytes) const;
  /// What an access to `address` hit, for people; empty if it is not near a block.
  [[nodiscard]] std::string describe(const void* address) const;
  [[nodiscard]] std::size_t live_blocks() const noexcept { return live_; }
  /// All so far, whether they live or not.
  [[nodiscard]] std::int64_t allocations() const noexcept { return allocations_; }
  void clear();

 private:
  std::map<std::uintptr_t, block> blocks_;  // by first byte
  std::size_t live_ = 0;
  std::int64_t allocations_ = 0;
};

/// All bytes 0xff: NaN in float, bfloat16 and half.
inline constexpr int nan_byte = 0xff;

}  // namespace dyncp_emulation
