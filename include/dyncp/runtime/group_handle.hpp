// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/rank_range.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// A CP group of one `group_pool`, as one of its members sees it. A value to hand around: it
/// travels in packed_seq_params, and saved contexts keep it for their backward pass.
///
/// The pool that made it is named by `generation`; another pool refuses the handle.
struct group_handle {
  std::uint64_t generation = 0;
  rank_range ranks;                ///< of the DPxCP domain
  std::int32_t index = 0;          ///< this rank's place in the group, 0..size-1
  std::int32_t communicator = -1;  ///< of the pool: -1 none (one rank), 0 the parent, else a split

  [[nodiscard]] constexpr std::int32_t size() const noexcept { return ranks.size; }
  friend constexpr bool operator==(const group_handle&, const group_handle&) = default;
};

}  // namespace v0
}  // namespace dyncp
