// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/plan/lower_bounds.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/fluid_pipeline.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// The makespan that a batch of divisible work would have, and what it rests on.
struct fluid_bound {
  double makespan_s = 0;
  std::int32_t cp_size = 0;        ///< of the longest sequence
  double longest_s = 0;            ///< its forward and backward on one stage
  std::int32_t micro_batches = 0;  ///< of the ranks that host it
};

namespace detail {

/// T(work of a rank) of one group of ranks that all run alike, at the best M.
class fluid_ranks {
 public:
  /// `peak_s` 0: no slot is larger than another need be.
  /// M goes from what memory forces, `least_micro_batches`, to 192: more slots are no finer.
  fluid_ranks(pipeline pipe, double peak_s, double fixed_s, double forward_share,
              std::int64_t least_micro_batches)
      : pipe_(pipe),
        peak_s_(peak_s),
        fixed_s_(fixed_s),
        forward_share_(forward_share),
        step_(pipe.chunks > 1 ? pipe.stages : 1),
        least_(static_cast<std::int32_t>(std::min<std::int64_t>(least_micro_batches, most))) {}

  struct value {
    double makespan_s = 0;
    std::int32_t micro_batches = 0;
  };

  // M in steps of a quarter, until more of them no longer help; the least one in any case.
  [[nodiscard]] value at(double work_s) {
    if (work_s <= peak_s_ - fixed_s_) return {peak_s_ * pipe_.stages, 1};
    std::int32_t m = rounded(least_);
    value best{makespan(work_s, m), m};
    for (;;) {
      m = rounded(m + std::max(1, m / 4));
      if (m > most) return best;
      const double makespan_s = makespan(work_s, m);
      if (makespan_s < best.makespan_s) best = {makespan_s, m};
      if (m > 4 * pipe_.stages && makespan_s > best.makespan_s) return best;
    }
  }

 private:
  static constexpr std::int32_t most = 192;

  [[nodiscard]] std::int32_t rounded(std::int32_t m) const {
    return (m + step_ - 1) / step_ * step_;
  }

  [[nodiscard]] double makespan(double work_s, std::int32_t m) {
    const double total = work_s + fixed_s_ * m;
    auto found = pipelines_.find(m);
    if (found == pipelines_.end()) {
      found = pipelines_.emplace(m, fluid_pipeline{pipe_, m}).first;
    }
    if (peak_s_ <= 0) {  // linear in the work: one game for each M
      auto [ramp, fresh] = ramps_.try_emplace(m, 0.0);
      if (fresh) ramp->second = found->second.least_makespan({1.0, 0, 0, 0, forward_share_}).bound;
      return total * ramp->second;
    }
    double best = std::numeric_limits<double>::max();
    for (const std::int32_t slot : {std::min(pipe_.stages, m / 2), m / 3}) {
      best = std::min(
          best, found->second
                    .least_makespan({std::max(total, peak_s_), 0, peak_s_, slot, forward_share_})
                    .bound);
    }
    return best;
  }

  pipeline pipe_;
  double peak_s_;
  double fixed_s_;
  double forward_share_;
  std::int32_t step_;
  std::int32_t least_;
  std::map<std::int32_t, fluid_pipeline> pipelines_;
  std::map<std::int32_t, double> ramps_;
};

}  // namespace detail

/// The makespan of the batch if all of it but its longest sequence could be divided at will.
///
/// c ranks host the longest sequence as one slot of its own size; the other ranks have no long
/// sequence at all; the rest of the work is spread over both at full efficiency with every ring
/// hidden, divided over M slots as suits 1F1B best (`fluid_pipeline`), each slot with its fixed
/// time; the least over c, over M and over the place of the longest. Unlike the certificates of
/// `lower_bounds` it knows that the bubble of a large slot cannot be avoided, and unlike them it is
/// no certificate: it takes the longest's ratio of backward to forward for all work, walks M and
/// two places of the longest instead of all, and stops games at 0.1 %. docs/algorithms.md says
/// which steps are proven.
///
/// Requires a problem that `can_plan`. Some seconds: for reports, not for planning.
template <cost_model Cost>
[[nodiscard]] fluid_bound fluid_makespan_bound(const problem& prob, const Cost& cost) {
  const detail::bound_calculator<Cost> batch(prob, cost);
  const pipeline pipe{prob.parallel.pp, prob.parallel.vpp};
  const double ranks = prob.parallel.ranks;
  double work_s = std::numeric_limits<double>::max();
  for (std::int32_t k = 0; k < cost.stage_classes(); ++k) {
    work_s = std::min(work_s, batch.work_s(k) * pipe.chunks);
  }
  const double fixed_s = batch.fixed_s() * pipe.chunks;
  fluid_bound best{std::numeric_limits<double>::max(), 0, 0, 0};
  for (const std::int32_t c : batch.sizes()) {
    std::optional<op_cost> longest;
    for (std::int32_t k = 0; k < cost.stage_classes(); ++k) {
      const std::optional<op_cost> one = batch.longest_alone(c, k);
      if (one && (!longest || one->total() < longest->total())) longest = one;
    }
    if (!longest) continue;
    const double peak_s = to_seconds(longest->total()) * pipe.chunks;
    if (peak_s * pipe.stages >= best.makespan_s) continue;
    const double forward_share =
        static_cast<double>(longest->forward) / static_cast<double>(longest->total());
    const double hosts = c;
    const auto packs = c == prob.parallel.ranks ? batch.packs_per_rank() : 1;
    detail::fluid_ranks host(pipe, peak_s, fixed_s, forward_share, packs);
    if (c == prob.parallel.ranks) {
      const auto v = host.at(work_s / hosts);
      if (v.makespan_s < best.makespan_s) best = {v.makespan_s, c, peak_s, v.micro_batches};
      continue;
    }
    // More work on the hosts, less on the others, until both take as long.
    detail::fluid_ranks others(pipe, 0, fixed_s, forward_share, 1);
    const auto others_at = [&](double host_work_s) {
      return others.at(std::max(0.0, work_s - hosts * host_work_s) / (ranks - hosts)).makespan_s;
    };
    double low = std::max(0.0, peak_s - fixed_s);
    double high = std::max(low, work_s / hosts);
    auto v = host.at(low);
    double both = v.makespan_s;
    if (both < others_at(low)) {
      double rest = 0;  // of the others at `high`
      while (high - low > 1e-3 * work_s / hosts) {
        const double middle = 0.5 * (low + high);
        const auto hosted = host.at(middle);
        const double others_s = others_at(middle);
        if (hosted.makespan_s < others_s) {
          low = middle;
          v = hosted;
        } else {
          high = middle;
          rest = others_s;
        }
      }
      both = std::max(v.makespan_s, rest);
    }
    if (both < best.makespan_s) best = {both, c, peak_s, v.micro_batches};
  }
  return best;
}

}  // namespace v0
}  // namespace dyncp
