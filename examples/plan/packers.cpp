// SPDX-License-Identifier: Apache-2.0
#include "packers.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/packers/packing_only.hpp>

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
