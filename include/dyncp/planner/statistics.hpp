// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/plan/inflight.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Use of one CP size in a plan.
struct cp_usage {
  std::int32_t cp = 0;
  std::int64_t packs = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;  ///< real
};

/// The numbers that justify a plan. Times are simulated, in seconds.
struct plan_statistics {
  std::int32_t micro_batches = 0;
  double makespan_s = 0;
  double all_reduce_s = 0;
  double iteration_s = 0;         ///< makespan + all-reduce
  double ideal_s = 0;             ///< linear and attention time of one stage, shared by all ranks
  double efficiency = 0;          ///< ideal / iteration
  double bubble = 0;              ///< share of rank-stage time without an operation
  double imbalance = 0;           ///< busiest over mean rank of a micro-batch, work-weighted
  double exposed_share = 0;       ///< ring time that attention does not hide, of the busy time
  double peak_tokens_per_rank = 0;
  double inflight_peak_tokens = 0;
  int128 real_tokens = 0;
  int128 real_squares = 0;
  int128 padded_tokens = 0;
  int128 padded_squares = 0;
  std::int64_t sequences = 0;
  std::int64_t idle_slots = 0;    ///< (rank, micro-batch) pairs without a pack
  double model_tflops_per_gpu = 0;///< forward and backward of real tokens, without recomputation
  std::vector<cp_usage> cp_mix;   ///< ascending
};

namespace detail {

inline void count_loads(const plan& p, const problem& prob, plan_statistics& stats) {
  std::map<std::int32_t, cp_usage> mix;
  for (const micro_batch& mb : p.micro_batches) {
    std::int64_t busy = 0;
    for (const pack& pk : mb.packs) {
      const load padded = pack_load(pk, prob.sequences, p.padding);
      const double per_rank = static_cast<double>(padded.tokens) / pk.ranks.size;
      stats.peak_tokens_per_rank = std::max(stats.peak_tokens_per_rank, per_rank);
      stats.padded_tokens += padded.tokens;
      stats.padded_squares += padded.squares;
      stats.sequences += padded.count;
      busy += pk.ranks.size;
      cp_usage& use = mix[pk.ranks.size];
      use.cp = pk.ranks.size;
      use.packs += 1;
      use.sequences += padded.count;
      for (std::int32_t i : pk.sequences) {
        const std::int64_t length = prob.sequences[static_cast<std::size_t>(i)].length;
        use.tokens += length;
        stats.real_tokens += length;
        stats.real_squares += int128{length} * length;
      }
    }
    stats.idle_slots += p.num_ranks - busy;
  }
  for (const auto& [cp, use] : mix) stats.cp_mix.push_back(use);
}

/// Time of all matrix and attention work of the batch's real tokens on one stage, if every rank had
/// an equal share; padding, fixed times, rings and the output head are left out.
inline double ideal_seconds(const problem& prob) {
  const length_sums sums = sum_lengths(prob.sequences);
  const model_spec& m = prob.model;
  const cluster_spec& c = prob.cluster;
  const double layers = static_cast<double>(m.layers) / prob.parallel.pp;
  const double linear = layers * 2.0 * active_parameters_per_layer(m) *
                        static_cast<double>(sums.tokens) / c.linear_flops_per_s;
  const double attention = layers * attention_flops_per_square(m) *
                           static_cast<double>(sums.squares) / c.attention_flops_per_s;
  const double linear_again = m.recompute == recomputation::full ? 1.0 : 0.0;
  const double attention_again = m.recompute == recomputation::none ? 0.0 : 1.0;
  return (linear * (1.0 + c.backward_linear + linear_again) +
          attention * (1.0 + c.backward_attention + attention_again)) /
         (static_cast<double>(prob.parallel.ranks) * prob.parallel.tp);
}

/// Model FLOPs of the real tokens, forward and backward (2x), without recomputation.
inline double model_flops(const model_spec& m, const plan_statistics& stats) {
  const double forward =
      m.layers * (2.0 * active_parameters_per_layer(m) * static_cast<double>(stats.real_tokens) +
                  attention_flops_per_square(m) * static_cast<double>(stats.real_squares)) +
      2.0 * static_cast<double>(m.hidden) * static_cast<double>(m.vocabulary) *
          static_cast<double>(stats.real_tokens);
  return 3.0 * forward;
}

inline void count_busy_time(const priced_plan& priced, pipeline pipe, ticks makespan,
                            plan_statistics& stats) {
  double busy = 0;
  double widest = 0;
  std::vector<ticks> slot(static_cast<std::size_t>(priced.num_ranks));
  for (std::int32_t j = 0; j < priced.num_micro_batches(); ++j) {
    std::fill(slot.begin(), slot.end(), ticks{0});
    for (std::int32_t g = priced.first_group[static_cast<std::size_t>(j)];
         g < priced.first_group[static_cast<std::size_t>(j) + 1]; ++g) {
      const auto i = static_cast<std::size_t>(g);
      ticks all_stages = 0;
      for (const std::int32_t k : priced.class_of_stage) {
        all_stages += priced.costs_of_class(k)[i].total();
      }
      for (std::int32_t r = priced.ranks[i].begin; r < priced.ranks[i].end(); ++r) {
        slot[static_cast<std::size_t>(r)] += all_stages;
      }
    }
    for (const ticks t : slot) busy += to_seconds(t);
    widest += to_seconds(*std::max_element(slot.begin(), slot.end()));
  }
  const double slots = static_cast<double>(priced.num_ranks);
  stats.bubble = makespan > 0 ? 1.0 - busy / (slots * pipe.stages * to_seconds(makespan)) : 0.0;
  stats.imbalance = busy > 0 ? widest * slots / busy : 1.0;
}

/// Share of the operations' time that is ring time not hidden by attention, on stage class 0.
template <class Cost>
double exposed_share(const plan& p, const problem& prob, const Cost& cost) {
  const std::int32_t per_node = ranks_per_node(prob.cluster.gpus_per_node, prob.parallel);
  double exposed = 0;
  double total = 0;
  for (const micro_batch& mb : p.micro_batches) {
    for (const pack& pk : mb.packs) {
      const load l = pack_load(pk, prob.sequences, p.padding);
      const link k = link_of(pk.ranks, per_node);
      const cost_parts f = cost.forward_parts(l, pk.ranks.size, k, 0);
      const cost_parts b = cost.backward_parts(l, pk.ranks.size, k, 0);
      exposed += pk.ranks.size * (f.exposed_s + b.exposed_s);
      total += pk.ranks.size * (f.total_s() + b.total_s());
    }
  }
  return total > 0 ? exposed / total : 0.0;
}

}  // namespace detail

/// Statistics of a plan from its prices and its simulated makespan.
/// Requires a plan without violations in its ranks and indices. Complexity: O(sequences + M * R).
template <cost_model Cost>
[[nodiscard]] plan_statistics statistics_of(const plan& p, const problem& prob, const Cost& cost,
                                            const priced_plan& priced, ticks makespan) {
  const pipeline pipe{prob.parallel.pp, prob.parallel.vpp};
  plan_statistics stats;
  stats.micro_batches = p.num_micro_batches();
  detail::count_loads(p, prob, stats);
  stats.makespan_s = to_seconds(makespan);
  stats.all_reduce_s = all_reduce_s(prob.model, prob.cluster, prob.parallel);
  stats.iteration_s = stats.makespan_s + stats.all_reduce_s;
  stats.ideal_s = detail::ideal_seconds(prob);
  stats.efficiency = stats.iteration_s > 0 ? stats.ideal_s / stats.iteration_s : 0.0;
  detail::count_busy_time(priced, pipe, makespan, stats);
  if constexpr (requires { cost.forward_parts(load{}, 1, link::nvlink, 0); }) {
    stats.exposed_share = detail::exposed_share(p, prob, cost);
  }
  const auto held = tokens_by_rank<double>(p, prob.sequences, [](std::int64_t t, std::int32_t c) {
    return static_cast<double>(t) / c;
  });
  if (!held.empty()) {
    stats.inflight_peak_tokens = peak_inflight(held, p.num_ranks, pipe, 0) / pipe.chunks;
  }
  const double gpus = static_cast<double>(prob.parallel.ranks) * prob.parallel.pp *
                      prob.parallel.tp;
  if (stats.iteration_s > 0) {
    stats.model_tflops_per_gpu =
        detail::model_flops(prob.model, stats) / (gpus * stats.iteration_s) * 1e-12;
  }
  return stats;
}

}  // namespace v0
}  // namespace dyncp
