// SPDX-License-Identifier: Apache-2.0
#include "evaluate.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstdint>

namespace tool {
namespace {

using dyncp::violation_kind;

// Times are those of disjoint groups of existing ranks with existing sequences in int32 packs.
bool can_be_timed(const std::vector<dyncp::violation>& violations, const dyncp::problem& p,
                  const dyncp::plan& plan) {
  const bool interleaved = p.parallel.vpp > 1;
  if (interleaved && plan.num_micro_batches() % p.parallel.pp != 0) return false;
  return std::none_of(violations.begin(), violations.end(), [](const dyncp::violation& v) {
    return v.kind == violation_kind::rank_overlap || v.kind == violation_kind::rank_out_of_range ||
           v.kind == violation_kind::unknown_sample || v.kind == violation_kind::over_pack_tokens;
  });
}

// The time of all operations one after another bounds every sum of ticks.
dyncp::result<void> check_ticks(const dyncp::priced_plan& priced) {
  constexpr double most_s = 2097152.0;  // 2^21 s: half of the range of ticks
  double total = 0;
  for (std::int32_t j = 0; j < priced.num_micro_batches(); ++j) {
    for (const std::int32_t k : priced.class_of_stage) {
      double longest = 0;
      const auto costs = priced.costs_of_class(k);
      for (auto g = static_cast<std::size_t>(priced.first_group[static_cast<std::size_t>(j)]);
           g < static_cast<std::size_t>(priced.first_group[static_cast<std::size_t>(j) + 1]); ++g) {
        longest = std::max(longest, dyncp::to_seconds(costs[g].forward) +
                                        dyncp::to_seconds(costs[g].backward) +
                                        2 * dyncp::to_seconds(costs[g].transfer));
      }
      total += longest;
    }
  }
  if (total <= most_s) return {};
  return dyncp::error{dyncp::errc::overflow, "the plan may take more than 2^21 s",
                      static_cast<std::int64_t>(std::min(total, 1e18)),
                      static_cast<std::int64_t>(most_s),
                      "check the units of the model and cluster, and the lengths"};
}

}  // namespace

dyncp::result<void> check_size(std::int64_t micro_batches, const dyncp::parallel_spec& parallel) {
  constexpr std::int64_t most_operations = std::int64_t{1} << 33;
  constexpr std::int64_t most_cells = std::int64_t{1} << 27;
  const std::int64_t ranks = parallel.ranks;
  const std::int64_t stages = std::int64_t{parallel.pp} * parallel.vpp;
  micro_batches = std::max<std::int64_t>(1, micro_batches);
  if (ranks * micro_batches > most_cells || ranks * stages > most_cells ||
      micro_batches * stages > most_cells ||
      ranks * micro_batches > most_operations / stages) {
    return dyncp::error{dyncp::errc::overflow,
                        std::to_string(ranks) + " ranks, " + std::to_string(micro_batches) +
                            " micro-batches and " + std::to_string(stages) +
                            " stages are too many to simulate",
                        std::max({ranks * micro_batches, ranks * stages, micro_batches * stages}),
                        most_cells, "simulate a part of the job"};
  }
  return {};
}

simulation simulate(const dyncp::plan& plan, const dyncp::problem& problem) {
  const dyncp::analytic_cost cost(problem.model, problem.cluster, problem.parallel);
  simulation out;
  out.priced = dyncp::price_plan(plan, problem, cost);
  out.time = dyncp::event_simulator{}.trace(out.priced,
                                            {problem.parallel.pp, problem.parallel.vpp});
  return out;
}

dyncp::result<evaluation> evaluate(const dyncp::plan& plan, const dyncp::problem& problem) {
  if (auto ok = check_size(plan.num_micro_batches(), problem.parallel); !ok) return ok.error();
  evaluation out;
  out.violations = dyncp::validate(plan, problem);
  if (!can_be_timed(out.violations, problem, plan)) return out;

  const dyncp::analytic_cost cost(problem.model, problem.cluster, problem.parallel);
  const dyncp::priced_plan priced = dyncp::price_plan(plan, problem, cost);
  if (auto ok = check_ticks(priced); !ok) return ok.error();
  const dyncp::pipeline pipe{problem.parallel.pp, problem.parallel.vpp};
  out.timed = true;
  out.statistics = dyncp::statistics_of(plan, problem, cost, priced,
                                        dyncp::event_simulator{}.makespan(priced, pipe));
  const std::int32_t per_node =
      dyncp::ranks_per_node(problem.cluster.gpus_per_node, problem.parallel);
  for (const dyncp::micro_batch& mb : plan.micro_batches) {
    std::vector<double> forward;
    std::vector<double> backward;
    for (const dyncp::pack& pk : mb.packs) {
      const dyncp::load l = dyncp::pack_load(pk, problem.sequences, plan.padding);
      const dyncp::link k = dyncp::link_of(pk.ranks, per_node);
      const bool busy = !pk.sequences.empty();
      forward.push_back(busy ? cost.forward_parts(l, pk.ranks.size, k, 0).total_s() : 0.0);
      backward.push_back(busy ? cost.backward_parts(l, pk.ranks.size, k, 0).total_s() : 0.0);
    }
    out.forward_s.push_back(std::move(forward));
    out.backward_s.push_back(std::move(backward));
  }
  return out;
}

}  // namespace tool
