// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/plan/plan.hpp>

#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// What one region of a plan taught: a good start for the next batch.
struct region_hint {
  rank_range ranks;
  std::int32_t micro_batches = 0;  ///< slots the builder was given
  std::int64_t correction = 0;     ///< ticks that the estimate of its time missed

  friend bool operator==(const region_hint&, const region_hint&) = default;
};

/// Warm start from the last plan, handed on by the caller: an argument, so that a plan stays a
/// pure function of what it is made from. Ranks that compare digests must share it.
struct plan_hint {
  std::vector<region_hint> regions;

  [[nodiscard]] bool empty() const noexcept { return regions.empty(); }
  friend bool operator==(const plan_hint&, const plan_hint&) = default;
};

/// A packer's plan and what it learned for the next one.
struct packed {
  dyncp::plan plan;
  plan_hint hint;
};

}  // namespace v0
}  // namespace dyncp
