// SPDX-License-Identifier: Apache-2.0
#include "packers.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/packers/default_dynamic_cp.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/packers/first_fit_decreasing.hpp>
#include <dyncp/packers/flexsp.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/packers/padded_bshd.hpp>
#include <dyncp/packers/relax.hpp>
#include <dyncp/packers/static_balanced.hpp>
#include <dyncp/packers/three_stage.hpp>
#include <dyncp/packers/three_stage_2959.hpp>
#include <dyncp/packers/verl.hpp>
#include <dyncp/packers/wlb_llm.hpp>

#include <algorithm>
#include <optional>
#include <tuple>

namespace tool {
namespace {

using dyncp::errc;
using dyncp::result;

template <class Packer>
struct entry {
  const char* what;
  bool static_cp;
  bool main;
};

// In the order in which they are listed: ours, then the baselines, that of the article first.
constexpr auto table = std::tuple{
    entry<dyncp::dynamic_cp>{"CP size, packs, M and order by simulated time", false, true},
    entry<dyncp::packing_only>{"the article's baseline: next-fit at static CP", true, true},
    entry<dyncp::padded_bshd>{"no packing: rows of equal length", true, true},
    entry<dyncp::static_balanced>{"static CP at its best, balanced by cost", true, true},
    entry<dyncp::ffd>{"static CP, first-fit decreasing by tokens", true, false},
    entry<dyncp::mffd>{"static CP, modified first-fit decreasing", true, false},
    entry<dyncp::wlb_llm>{"WLB-LLM: static CP, variable packs filled by work", true, true},
    entry<dyncp::verl>{"verl: static CP, Karmarkar-Karp; may break the limit", true, false},
    entry<dyncp::verl_capped>{"the same, repaired to keep the limit", true, false},
    entry<dyncp::relax>{"Relax: one CP size a micro-batch; may break the limit", true, false},
    entry<dyncp::relax_capped>{"the same, repaired to keep the limit", true, false},
    entry<dyncp::flexsp>{"FlexSP: groups of several sizes, no pipeline", false, true},
    entry<dyncp::default_dynamic_cp>{"Megatron's open scheduler: greedy on s^2/c", false, true},
    entry<dyncp::three_stage>{"the article's scheduler as the article tells it", false, true},
    entry<dyncp::three_stage_2959>{"the same as its code has it; may break the limit", false,
                                   false},
};

template <class Packer>
Packer make_packer(const packer_parameters& parameters) {
  Packer packer;
  if constexpr (requires { packer.pack_tokens; }) packer.pack_tokens = parameters.pack_tokens;
  if constexpr (requires { packer.sequences_per_micro_batch; }) {
    if (parameters.micro_batch_size > 0) {
      packer.sequences_per_micro_batch = static_cast<std::int32_t>(
          std::min<std::int64_t>(parameters.micro_batch_size, std::int64_t{1} << 30));
    }
  }
  return packer;
}

template <class Use>
void for_each_packer(Use use) {
  std::apply([&](const auto&... e) { (use(e), ...); }, table);
}

}  // namespace

std::vector<packer_info> packers() {
  std::vector<packer_info> out;
  for_each_packer([&]<class Packer>(const entry<Packer>& e) {
    out.push_back({std::string(Packer::name), e.what, e.static_cp, e.main});
  });
  return out;
}

result<packer_info> find_packer(const std::string& name) {
  std::vector<std::string> names;
  for (const packer_info& p : packers()) {
    if (p.name == name) return p;
    names.push_back(p.name);
  }
  const std::string nearest = dyncp::text::nearest_name(name, names);
  return dyncp::make_error(errc::unknown_name, "no packer is named " + dyncp::text::quoted(name),
                           (nearest.empty() ? "" : "did you mean " + nearest + "? ") +
                               ("known: " + dyncp::text::joined(names)));
}

result<dyncp::planned> run_packer(const std::string& name, const dyncp::problem& problem,
                                  const packer_parameters& parameters) {
  auto info = find_packer(name);
  if (!info) return info.error();
  const dyncp::analytic_cost cost(problem.model, problem.cluster, problem.parallel);
  std::optional<result<dyncp::planned>> out;
  for_each_packer([&]<class Packer>(const entry<Packer>&) {
    if (Packer::name == name) {
      out.emplace(dyncp::planner(cost, make_packer<Packer>(parameters)).plan(problem));
    }
  });
  return std::move(*out);
}

}  // namespace tool
