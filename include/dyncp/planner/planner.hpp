// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/simulator.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// A plan and the numbers that justify it.
struct planned {
  dyncp::plan plan;
  plan_statistics statistics;
};

namespace detail {

template <class T>
concept packer_policy = requires { T::name; };

template <class T>
concept simulator_policy = simulator<T>;

template <class T>
concept cost_policy = cost_model<T>;

}  // namespace detail

/// Prices, simulates and validates what a packer proposes.
///
///   auto best = dyncp::planner{dyncp::analytic_cost(model, cluster, parallel)}.plan(problem);
///
/// Policies: a cost model, optionally a packer (default `dynamic_cp`) and a simulator (default
/// `event_simulator`), in any order. A plan that breaks a promise is never returned: it is a bug
/// of the packer and comes back as `invalid_plan`.
///
/// Deterministic: the result depends on the problem and the policies' parameters alone.
/// Thread safety: const members may be called concurrently.
template <cost_model Cost, class Packer = dynamic_cp, simulator Simulator = event_simulator>
  requires packer<Packer, Cost>
class planner {
 public:
  explicit planner(Cost cost, Packer packer = {}, Simulator simulator = {})
      : cost_(std::move(cost)), packer_(std::move(packer)), simulator_(std::move(simulator)) {}

  /// Necessary conditions only: the problem is well-formed, and every sequence fits some group.
  /// Errors: those of `check(problem)`; sequence_too_long; overflow for a pack over 2^31-1 tokens.
  [[nodiscard]] result<void> can_plan(const problem& prob) const {
    if (auto ok = check(prob); !ok) return ok;
    const std::int32_t widest = allowed_cp_sizes(prob.parallel).back();
    for (std::size_t i = 0; i < prob.sequences.size(); ++i) {
      if (auto ok = fits_somewhere(prob, i, widest); !ok) return ok;
    }
    return {};
  }

  /// The packer's plan, validated, with its statistics.
  [[nodiscard]] result<planned> plan(const problem& prob) const {
    if (auto ok = can_plan(prob); !ok) return ok.error();
    auto packed = packer_.pack(prob, cost_);
    if (!packed) return packed.error();
    return evaluate(prob, std::move(*packed));
  }

  /// Validates and simulates a plan from elsewhere.
  [[nodiscard]] result<planned> evaluate(const problem& prob, dyncp::plan p) const {
    if (auto ok = check(p, prob); !ok) return ok.error();
    const priced_plan priced = price_plan(p, prob, cost_);
    const pipeline pipe{prob.parallel.pp, prob.parallel.vpp};
    const ticks makespan = simulator_.makespan(priced, pipe);
    planned out;
    out.statistics = statistics_of(p, prob, cost_, priced, makespan);
    out.plan = std::move(p);
    return out;
  }

  [[nodiscard]] const Cost& cost() const noexcept { return cost_; }

 private:
  static result<void> fits_somewhere(const problem& prob, std::size_t i, std::int32_t widest) {
    for (std::int32_t c : allowed_cp_sizes(prob.parallel)) {
      const std::int64_t padded =
          padded_length(prob.sequences[i].length, alignment(prob.padding, c));
      if (padded_pack_tokens(prob.padding, c, padded) <= pack_capacity(prob, c)) return {};
    }
    error e = too_long_error(prob, static_cast<std::int64_t>(i), widest);
    if (prob.sequences[i].length > max_pack_tokens) {
      e.code = errc::overflow;
      e.limit = max_pack_tokens;
      e.hint = "a pack holds at most 2^31-1 padded tokens (cu_seqlens are int32)";
    }
    return e;
  }

  Cost cost_;
  Packer packer_;
  Simulator simulator_;
};

}  // namespace v0
}  // namespace dyncp
