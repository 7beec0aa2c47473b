// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/config.hpp"
#include "parallel.hpp"

#include <dyncp/core/result.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/plan_hint.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/problem.hpp>

#include <cstdint>
#include <string_view>

namespace megatron_style {

/// Who plans the micro-batches.
enum class scheduler : std::int32_t {
  packing_only,  ///< next-fit at the static CP size
  static_cp,     ///< the library's search, with the static CP size alone
  dynamic_cp,    ///< the library's search, with all sizes
};

[[nodiscard]] constexpr std::string_view name_of(scheduler s) noexcept {
  switch (s) {
    case scheduler::packing_only: return "packing_only";
    case scheduler::static_cp: return "static";
    case scheduler::dynamic_cp: return "dynamic_cp";
  }
  return "unknown";
}

/// A planner for the library's data iterator, whichever scheduler it stands for.
class batch_scheduler {
 public:
  batch_scheduler(scheduler which, const dyncp::problem& job)
      : which_(which), cost_(job.model, job.cluster, job.parallel) {}

  [[nodiscard]] dyncp::result<dyncp::planned> plan(const dyncp::problem& problem,
                                                   const dyncp::plan_hint& hint) const;
  [[nodiscard]] const dyncp::analytic_cost& cost() const noexcept { return cost_; }

 private:
  scheduler which_;
  dyncp::analytic_cost cost_;
};

/// The template of all batches: model, parallel sizes and limits. `element_bytes` of activations.
[[nodiscard]] dyncp::problem make_problem(const model_config& model, const world_shape& world,
                                          std::int32_t static_cp, std::int64_t max_tokens_per_rank,
                                          std::int32_t element_bytes,
                                          const dyncp::cluster_spec& cluster);

/// What one core does here, roughly: rates of the example's kernels, one thread a rank.
[[nodiscard]] dyncp::cluster_spec one_core();

}  // namespace megatron_style
