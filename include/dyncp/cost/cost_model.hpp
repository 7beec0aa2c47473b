// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cost/load.hpp>

#include <concepts>
#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// Prices a pack. Stages of equal cost share a class, so that a plan is priced once per class
/// and not once per stage: `stage_class(s)` for s in 0 .. pp*vpp-1, `stage_classes()` of them.
///
/// Requirements: a pure function of its arguments and the model's parameters (every rank must get
/// the same ticks); forward and backward > 0 for a load with tokens; safe to call concurrently.
///
/// | model            | when to use                                                              |
/// | ---------------- | ------------------------------------------------------------------------ |
/// | `analytic_cost`  | model and cluster are known by their data sheets; the judge's form       |
template <class Cost>
concept cost_model =
    std::copyable<Cost> && requires(const Cost& cost, const load& l, std::int32_t n, link k) {
      { cost.stage_classes() } -> std::same_as<std::int32_t>;
      { cost.stage_class(n) } -> std::same_as<std::int32_t>;
      { cost.cost(l, n, k, n) } -> std::same_as<op_cost>;  // load, c, link, stage class
      { cost.bottleneck_class() } -> std::same_as<std::int32_t>;
    };

}  // namespace v0
}  // namespace dyncp
