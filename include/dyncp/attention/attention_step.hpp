// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/attention_mask.hpp>
#include <dyncp/thd/ring_steps.hpp>

#include <cstdint>
#include <span>

namespace dyncp {
inline namespace v0 {

/// What one step of a ring computes: which rows of q meet which rows of k and v.
///
/// Segments ascend in their query rows and in their key rows, and do not share any. Rows that no
/// segment names are padding: no kernel reads or writes them, whatever they hold.
struct attention_step {
  std::span<const attention_segment> segments;  ///< in device memory
  attention_mask mask = attention_mask::full;   ///< causal: key j of a segment up to query j
  std::int32_t q_rows = 0;   ///< local rows of q, which a grid over queries covers
  std::int32_t kv_rows = 0;  ///< local rows of k and v
};

}  // namespace v0
}  // namespace dyncp
