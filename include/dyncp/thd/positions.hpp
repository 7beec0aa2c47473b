// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The position in its own sequence of each local row of `rank`, (local_rows): the RoPE index.
///
/// Positions restart with every sequence and jump between the two chunks of a zigzag slot; a
/// counter over the local rows is wrong from the second run on (Megatron-LM#5243). Padding
/// continues its sequence, the tail has 0: never more than the longest padded length.
/// Complexity: linear.
[[nodiscard]] inline std::vector<std::int32_t> positions(const pack_view& pack, std::int32_t rank) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(pack.local_rows()), 0);
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const slot rows = slot_of(pack, s, rank);
    for (const row_run& run : {rows.front, rows.back}) {
      for (std::int32_t i = 0; i < run.rows; ++i) {
        out[static_cast<std::size_t>(run.row + i)] = run.position + i;
      }
    }
  }
  return out;
}

}  // namespace v0
}  // namespace dyncp
