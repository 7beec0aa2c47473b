// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/packers/plan_hint.hpp>
#include <dyncp/plan/lower_bounds.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/planner/policies.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/problem/spec_check.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/simulator.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A plan, the numbers that justify it, and what the next batch may start from.
struct planned {
  dyncp::plan plan;
  plan_statistics statistics;
  dyncp::certificate certificate;  ///< lower bounds on the makespan of any plan of this batch
  plan_hint hint;                  ///< empty for packers that do not learn
};

/// Prices, simulates and validates what a packer proposes.
///
///   const dyncp::planner planner{dyncp::analytic_cost(model, cluster, parallel)};
///   if (auto best = planner.plan(problem)) use(best->plan);
///
/// Policies: a cost model, and optionally a packer (default `dynamic_cp`) and a simulator (default
/// `event_simulator`), in any order; each is found by its role. A plan that breaks a promise is
/// never returned: it would be a bug of the packer and comes back as `invalid_plan`.
///
/// Deterministic: the result depends on the arguments and the policies' parameters alone, never on
/// time, threads or addresses. Thread safety: const members may be called concurrently.
template <cost_model Cost, class Packer = dynamic_cp, simulator Simulator = event_simulator>
  requires packer<Packer, Cost>
class planner {
 public:
  template <class... Policies>
    requires(!(std::same_as<Policies, planner> || ...)) &&  // what copies is not asked its role
            (detail::count_of<detail::policy_role::cost, Policies...> == 1 &&
             detail::count_of<detail::policy_role::none, Policies...> == 0)
  explicit planner(const Policies&... policies)
      : cost_(detail::argument_or_default<Cost>(policies...)),
        packer_(detail::argument_or_default<Packer>(policies...)),
        simulator_(detail::argument_or_default<Simulator>(policies...)) {}

  /// Necessary conditions only: the problem is well-formed, and every sequence fits some group.
  /// Errors: those of `check(problem)`; sequence_too_long; overflow for a pack over 2^31-1 tokens
  /// or an operation over `max_operation_s`. Complexity: O(n + sizes).
  [[nodiscard]] result<void> can_plan(const problem& prob) const {
    if (auto ok = check(prob); !ok) return ok;
    if (auto ok = check(prob.model); !ok) return ok;
    if (auto ok = check(prob.cluster); !ok) return ok;
    const std::vector<std::int32_t> sizes = allowed_cp_sizes(prob.parallel);
    // Where the longest sequence fits, each does; and what it asks for is enough for all.
    const auto longest = std::max_element(
        prob.sequences.begin(), prob.sequences.end(),
        [](const sequence& a, const sequence& b) { return a.length < b.length; });
    const std::ptrdiff_t index = longest - prob.sequences.begin();
    if (auto ok = fits_somewhere(prob, index, sizes); !ok) return ok;
    return check_ticks(prob, sizes);
  }

  /// The packer's plan, validated, with its statistics; `hint` is that of the last batch's plan.
  [[nodiscard]] result<planned> plan(const problem& prob, const plan_hint& hint = {}) const {
    if (auto ok = can_plan(prob); !ok) return ok.error();
    if constexpr (learns) {
      auto made = packer_.pack_from(prob, cost_, hint, detail::no_observer{});
      if (!made) return made.error();
      return finish(prob, std::move(made->plan), std::move(made->hint));
    } else {
      auto made = packer_.pack(prob, cost_);
      if (!made) return made.error();
      return finish(prob, std::move(*made), {});
    }
  }

  /// Anytime: `on_better(const planned&) -> bool` gets a valid plan at once, better ones while the
  /// packer's search steps last, and in between the best so far again and again. It ends the search
  /// by returning false (at a deadline, say): no further step is taken.
  /// With steps alone the result is deterministic; one that a clock cut short is to be sent to the
  /// other ranks, not recomputed by them.
  template <class OnBetter>
    requires requires(const Packer& p, const problem& prob, const Cost& c) {
      p.pack_from(prob, c, plan_hint{}, detail::no_observer{});
    }
  [[nodiscard]] result<planned> plan_anytime(const problem& prob, OnBetter on_better,
                                             const plan_hint& hint = {}) const {
    if (auto ok = can_plan(prob); !ok) return ok.error();
    std::optional<planned> so_far;
    ticks last = std::numeric_limits<ticks>::max();
    auto observer = [&](const dyncp::plan& p, ticks makespan) {
      if (makespan < last) {
        auto better = evaluate(prob, p);
        if (!better) return true;
        so_far = std::move(*better);
        last = makespan;
      }
      return !so_far || static_cast<bool>(on_better(*so_far));
    };
    auto made = packer_.pack_from(prob, cost_, hint, observer);
    if (!made) return made.error();
    return finish(prob, std::move(made->plan), std::move(made->hint));
  }

  /// Validates and simulates a plan from elsewhere.
  [[nodiscard]] result<planned> evaluate(const problem& prob, dyncp::plan p) const {
    return finish(prob, std::move(p), {});
  }

  [[nodiscard]] const Cost& cost() const noexcept { return cost_; }

 private:
  static constexpr bool learns =
      requires(const Packer& p, const problem& prob, const Cost& c) {
        p.pack_from(prob, c, plan_hint{}, detail::no_observer{});
      };

  [[nodiscard]] result<planned> finish(const problem& prob, dyncp::plan p, plan_hint hint) const {
    if (auto ok = check(p, prob); !ok) return ok.error();
    const priced_plan priced = price_plan(p, prob, cost_);
    const pipeline pipe{prob.parallel.pp, prob.parallel.vpp};
    const ticks makespan = simulator_.makespan(priced, pipe);
    planned out;
    out.statistics = statistics_of(p, prob, cost_, priced, makespan);
    out.certificate = lower_bounds(prob, cost_);
    out.plan = std::move(p);
    out.hint = std::move(hint);
    return out;
  }

  static result<void> fits_somewhere(const problem& prob, std::ptrdiff_t i,
                                     const std::vector<std::int32_t>& sizes) {
    const std::int64_t length = prob.sequences[static_cast<std::size_t>(i)].length;
    for (const std::int32_t c : sizes) {
      const std::int64_t padded = padded_length(length, alignment(prob.padding, c));
      if (padded_pack_tokens(prob.padding, c, padded) <= pack_capacity(prob, c)) return {};
    }
    error e = too_long_error(prob, i, sizes.back());
    if (length > max_pack_tokens) {
      e.code = errc::overflow;
      e.limit = max_pack_tokens;
      e.hint = "a pack holds at most 2^31-1 padded tokens (cu_seqlens are int32)";
    }
    return e;
  }

  // The fullest pack on each group size must have a price, and all packs a sum: the parts of a
  // pack's time that grow with it add up to at most total/fullest fullest packs, the others to one
  // tiny pack a sequence.
  result<void> check_ticks(const problem& prob, const std::vector<std::int32_t>& sizes) const {
    const length_sums sums = sum_lengths(prob.sequences);
    const double fill = prob.parallel.pp * prob.parallel.vpp;
    for (const std::int32_t c : sizes) {
      const int128 total = sums.tokens + int128{sums.count} * alignment(prob.padding, c);
      const auto tokens =
          static_cast<std::int64_t>(std::min<int128>(total, pack_capacity(prob, c)));
      const std::int32_t stage = cost_.bottleneck_class();
      const op_cost full = cost_.cost({tokens, tokens * tokens, 1}, c, link::network, stage);
      const op_cost tiny = cost_.cost({1, 1, 1}, c, link::network, stage);
      const double one = to_seconds(full.forward) + to_seconds(full.backward);
      const double packs = static_cast<double>(total) / static_cast<double>(tokens);
      const double all = one * (packs + fill) + to_seconds(tiny.total()) *
                                                    static_cast<double>(sums.count);
      if (to_seconds(std::max(full.forward, full.backward)) < max_operation_s &&
          all * prob.parallel.vpp <= 4.0 * max_operation_s) {
        continue;
      }
      return error{errc::overflow,
                   "the simulated time exceeds what ticks of 2^-40 s can count",
                   static_cast<std::int64_t>(std::min(1e18, all * prob.parallel.vpp)),
                   static_cast<std::int64_t>(max_operation_s),
                   "check the units of the model and cluster, or split the batch"};
    }
    return {};
  }

  Cost cost_;
  Packer packer_;
  Simulator simulator_;
};

template <class... Policies>
planner(Policies...)
    -> planner<typename detail::pick<detail::policy_role::cost, void, Policies...>::type,
               typename detail::pick<detail::policy_role::packer, dynamic_cp, Policies...>::type,
               typename detail::pick<detail::policy_role::simulator, event_simulator,
                                     Policies...>::type>;

}  // namespace v0
}  // namespace dyncp
