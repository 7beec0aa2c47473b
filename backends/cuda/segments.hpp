// SPDX-License-Identifier: Apache-2.0
#pragma once

// From rows and tiles of rows to the segments of a step. Segments ascend in their rows and share
// none, so that no table besides them is needed.

#include "ptx.hpp"

#include <dyncp/thd/ring_steps.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// Which rows of a segment are meant.
enum class segment_side : std::int32_t { queries, keys };

template <segment_side Side>
DYNCP_DEVICE std::int32_t first_row(const attention_segment& s) {
  return Side == segment_side::queries ? s.q_row : s.kv_row;
}
template <segment_side Side>
DYNCP_DEVICE std::int32_t row_count(const attention_segment& s) {
  return Side == segment_side::queries ? s.q_rows : s.kv_rows;
}

/// The last segment that begins at or before row `row`, or -1: the only one that can hold it. Empty
/// ones may begin at the same row as the one behind them.
template <segment_side Side>
DYNCP_DEVICE std::int32_t segment_at(const attention_segment* segments, std::int32_t count,
                                     std::int32_t row) {
  std::int32_t low = -1;
  std::int32_t high = count;
  while (high - low > 1) {
    const std::int32_t middle = (low + high) / 2;
    if (first_row<Side>(segments[middle]) <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// A tile of up to Rows rows of one segment.
struct segment_tile {
  attention_segment segment;
  std::int32_t index = 0;  ///< of the segment
  std::int32_t tile = 0;   ///< number in the segment
  bool exists = false;
};

/// Slots that a grid needs for the tiles of segments within `rows` rows.
///
/// Segment s, which begins at row b and has n rows, takes the slots from b / Rows + s on. As
/// b / Rows + s + ceil(n / Rows) <= (b + n) / Rows + s + 1, the next one begins behind them.
template <int Rows>
constexpr std::int64_t tile_slots(std::int32_t rows, std::int32_t segments) {
  return std::int64_t{rows} / Rows + segments;
}

template <segment_side Side, int Rows>
DYNCP_DEVICE segment_tile tile_at(const attention_segment* segments, std::int32_t count,
                                  std::int32_t slot) {
  std::int32_t low = 0;
  std::int32_t high = count;
  while (high - low > 1) {
    const std::int32_t middle = (low + high) / 2;
    if (first_row<Side>(segments[middle]) / Rows + middle <= slot) {
      low = middle;
    } else {
      high = middle;
    }
  }
  segment_tile t;
  t.segment = segments[low];
  t.index = low;
  t.tile = slot - (first_row<Side>(t.segment) / Rows + low);
  t.exists = t.tile >= 0 && t.tile * Rows < row_count<Side>(t.segment);
  return t;
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
