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
};

// Every packer, in the order in which they are listed.
constexpr auto table = std::tuple{
    entry<dyncp::dynamic_cp>{"CP size, packs, M and order by simulated time", false},
    entry<dyncp::packing_only>{"next-fit at static CP, nothing balanced: the baseline", true},
    entry<dyncp::static_balanced>{"static CP, balanced by cost, the best of a dozen M", true},
    entry<dyncp::padded_bshd>{"static CP without packing: rows of the longest length", true},
    entry<dyncp::ffd>{"static CP, first-fit decreasing", true},
    entry<dyncp::mffd>{"static CP, modified first-fit decreasing", true},
    entry<dyncp::wlb_llm>{"static CP, packs of variable length filled by work", true},
    entry<dyncp::verl>{"static CP, Karmarkar-Karp; may break the limit, as verl does", true},
    entry<dyncp::default_dynamic_cp>{"Megatron's greedy on s^2/c up to the token limit", false},
    entry<dyncp::three_stage>{"the Dynamic-CP article's scheduler, as it is told", false},
    entry<dyncp::three_stage_2959>{"the same as its code has it; may break the limit", false},
    entry<dyncp::relax>{"one CP size a micro-batch; may break the limit, as Relax does", true},
    entry<dyncp::flexsp>{"groups of several sizes, min-max in a micro-batch", false},
};

template <class Use>
void for_each_packer(Use use) {
  std::apply([&](const auto&... e) { (use(e), ...); }, table);
}

}  // namespace

std::vector<packer_info> packers() {
  std::vector<packer_info> out;
  for_each_packer([&]<class Packer>(const entry<Packer>& e) {
    out.push_back({std::string(Packer::name), e.what, e.static_cp});
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

result<dyncp::planned> run_packer(const std::string& name, const dyncp::problem& problem) {
  auto info = find_packer(name);
  if (!info) return info.error();
  const std::int32_t cp = problem.parallel.static_cp;
  const std::vector<std::int32_t> sizes = dyncp::allowed_cp_sizes(problem.parallel);
  if (info->static_cp && !std::binary_search(sizes.begin(), sizes.end(), cp)) {
    return dyncp::error{errc::invalid_argument,
                        name + " makes groups of static cp " + std::to_string(cp) +
                            ", a size that is not allowed",
                        cp, sizes.back(),
                        "choose --cp among the powers of two in min-cp .. max-cp"};
  }
  const dyncp::analytic_cost cost(problem.model, problem.cluster, problem.parallel);
  std::optional<result<dyncp::planned>> out;
  for_each_packer([&]<class Packer>(const entry<Packer>&) {
    if (Packer::name == name) out.emplace(dyncp::planner(cost, Packer{}).plan(problem));
  });
  return std::move(*out);
}

}  // namespace tool
