// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "record.hpp"
#include "slot_balance.hpp"

#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/default_dynamic_cp.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/packers/first_fit_decreasing.hpp>
#include <dyncp/packers/flexsp.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/packers/relax.hpp>
#include <dyncp/packers/static_balanced.hpp>
#include <dyncp/packers/three_stage.hpp>
#include <dyncp/packers/three_stage_2959.hpp>
#include <dyncp/packers/verl.hpp>
#include <dyncp/packers/wlb_llm.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace compare {

/// The packers in the order of the tables; the repaired forms stay out of comparisons.
inline constexpr auto baselines = std::tuple{
    dyncp::packing_only{},     dyncp::static_balanced{}, dyncp::ffd{},
    dyncp::mffd{},             dyncp::wlb_llm{},         dyncp::verl{},
    dyncp::default_dynamic_cp{}, dyncp::three_stage{},   dyncp::three_stage_2959{},
    dyncp::relax{},            dyncp::flexsp{}};

/// What `packer` makes of a problem. A plan that breaks a promise is simulated all the same; its
/// state says so and no goal counts it.
template <class Packer>
[[nodiscard]] record measure(const Packer& packer, const dyncp::problem& problem,
                             std::int32_t repeats, std::string who = std::string(Packer::name)) {
  const dyncp::analytic_cost cost(problem.model, problem.cluster, problem.parallel);
  record out;
  out.who = std::move(who);
  std::optional<dyncp::result<dyncp::plan>> made;
  for (std::int32_t i = 0; i < repeats; ++i) {
    const std::clock_t from = std::clock();
    made.emplace(packer.pack(problem, cost));
    const double ms = 1e3 * static_cast<double>(std::clock() - from) / CLOCKS_PER_SEC;
    out.cpu_ms = i == 0 ? ms : std::min(out.cpu_ms, ms);
  }
  if (!*made) {
    out.state = "refused";
    return out;
  }
  const dyncp::plan& plan = **made;
  const auto found = dyncp::validate(plan, problem);
  out.state = found.empty() ? "valid" : to_string(found.front().kind);
  out.micro_batches = plan.num_micro_batches();
  out.makespan_s = dyncp::to_seconds(
      dyncp::event_simulator{}.makespan(dyncp::price_plan(plan, problem, cost),
                                        {problem.parallel.pp, problem.parallel.vpp}));
  out.iteration_s =
      out.makespan_s + dyncp::all_reduce_s(problem.model, problem.cluster, problem.parallel);
  if constexpr (std::is_same_v<Packer, dyncp::dynamic_cp>) {
    const slot_balance balance = measure_balance(plan, problem, cost);
    out.slots = balance.slots;
    out.uneven = balance.uneven;
  }
  return out;
}

/// All baselines. #2959 plans by FLOPs alone and was recorded with four times the token limit and
/// CP up to 8: it runs so.
[[nodiscard]] inline std::vector<record> measure_baselines(const dyncp::problem& problem,
                                                           std::int32_t repeats) {
  dyncp::problem roomy = problem;
  roomy.limits.max_tokens_per_rank *= 4;
  roomy.parallel.max_cp = std::min(8, problem.parallel.ranks);
  std::vector<record> all;
  const auto add = [&](const auto& packer) {
    using packer_type = std::remove_cvref_t<decltype(packer)>;
    constexpr bool is_2959 = std::is_same_v<packer_type, dyncp::three_stage_2959>;
    all.push_back(measure(packer, is_2959 ? roomy : problem, repeats));
  };
  std::apply([&](const auto&... packer) { (add(packer), ...); }, baselines);
  return all;
}

}  // namespace compare
