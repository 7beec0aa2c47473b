// SPDX-License-Identifier: Apache-2.0
#pragma once

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

namespace compare {

/// What a packer made of a problem. A plan that breaks a promise is simulated all the same: peers
/// are compared by the time of the plans that they do make.
struct outcome {
  std::string packer;
  std::string refused;    ///< the error instead of a plan; empty: there is a plan
  std::string violation;  ///< the first breach, "over_limit" say; empty: valid
  std::int32_t micro_batches = 0;
  double iteration_s = 0;
  double cpu_ms = 0;      ///< best of the repeats
};

/// The packers in the order of the table; the repaired forms stay out of comparisons.
inline constexpr auto packers = std::tuple{
    dyncp::dynamic_cp{},       dyncp::packing_only{},       dyncp::static_balanced{},
    dyncp::ffd{},              dyncp::mffd{},               dyncp::wlb_llm{},
    dyncp::verl{},             dyncp::default_dynamic_cp{}, dyncp::three_stage{},
    dyncp::three_stage_2959{}, dyncp::relax{},              dyncp::flexsp{}};

template <class Packer>
[[nodiscard]] outcome measure(const Packer& packer, const dyncp::problem& problem,
                              std::int32_t repeats) {
  const dyncp::analytic_cost cost(problem.model, problem.cluster, problem.parallel);
  outcome out;
  out.packer = Packer::name;
  std::optional<dyncp::result<dyncp::plan>> made;
  for (std::int32_t i = 0; i < repeats; ++i) {
    const std::clock_t from = std::clock();
    made.emplace(packer.pack(problem, cost));
    const double ms = 1e3 * static_cast<double>(std::clock() - from) / CLOCKS_PER_SEC;
    out.cpu_ms = i == 0 ? ms : std::min(out.cpu_ms, ms);
  }
  if (!*made) {
    out.refused = made->error().message();
    return out;
  }
  const dyncp::plan& plan = **made;
  const auto found = dyncp::validate(plan, problem);
  if (!found.empty()) out.violation = to_string(found.front().kind);
  out.micro_batches = plan.num_micro_batches();
  const dyncp::ticks makespan =
      dyncp::event_simulator{}.makespan(dyncp::price_plan(plan, problem, cost),
                                        {problem.parallel.pp, problem.parallel.vpp});
  out.iteration_s = dyncp::to_seconds(makespan) +
                    dyncp::all_reduce_s(problem.model, problem.cluster, problem.parallel);
  return out;
}

/// Calls use(outcome) for every packer.
template <class Use>
void measure_all(const dyncp::problem& problem, std::int32_t repeats, Use use) {
  std::apply([&](const auto&... p) { (use(measure(p, problem, repeats)), ...); }, packers);
}

}  // namespace compare
