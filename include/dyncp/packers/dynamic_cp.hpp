// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/ticks.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/packers/region_builder.hpp>
#include <dyncp/packers/region_split.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

struct dynamic_cp {
  static constexpr std::string_view name = "dynamic_cp";

  std::int32_t rounds = 4;
  double long_share = 0.85;

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost& cost) const {
    auto items = detail::make_items(prob, cost);
    if (!items) return items.error();
    detail::region_builder<Cost> builder(prob, cost, *items);
    detail::region_splitter splitter(*items, prob.parallel.ranks,
                                     ranks_per_node(prob.cluster.gpus_per_node, prob.parallel),
                                     prob.parallel.pp);
    std::vector<detail::region_plan> best;
    ticks best_time = 0;
    std::vector<std::int32_t> start_m;
    for (std::int32_t round = 0; round < rounds; ++round) {
      const std::vector<detail::region_share> shares = splitter.split(long_share);
      std::vector<detail::region_plan> plans(shares.size());
      ticks worst = 0;
      double mean = 0;
      bool ok = true;
      start_m.resize(shares.size(), 0);
      for (std::size_t k = 0; k < shares.size(); ++k) {
        ok = ok && search_m(prob, cost, *items, shares[k], builder, round, start_m[k], plans[k]);
        worst = std::max(worst, plans[k].makespan);
        mean += static_cast<double>(plans[k].makespan) / static_cast<double>(shares.size());
      }
      if (ok && (best.empty() || worst < best_time)) {
        best_time = worst;
        best = plans;
      }
      for (std::size_t k = 0; k < shares.size(); ++k) {
        splitter.correct(k, 0.8 * (static_cast<double>(plans[k].makespan) - mean));
      }
      if (splitter.single()) break;
    }
    if (best.empty()) return make_error(errc::not_found, "no plan");
    return assemble(prob, *items, best);
  }

 private:
  template <cost_model Cost>
  bool search_m(const problem& prob, const Cost& cost, const detail::item_table& items,
                const detail::region_share& share, detail::region_builder<Cost>& builder,
                std::int32_t round, std::int32_t& m_start, detail::region_plan& best) const {
    best = {};
    best.ranks = share.ranks;
    if (share.items.empty()) return true;
    double work = 0;
    int128 tokens = 0;
    for (std::int32_t i : share.items) {
      const std::int32_t k = items.least_size[static_cast<std::size_t>(i)];
      work += static_cast<double>(items.time_alone(i, k)) * items.sizes[static_cast<std::size_t>(k)];
      tokens += items.load_of(i, k).tokens;
    }
    work /= share.ranks.size;
    const double fixed = static_cast<double>(
        cost.cost(load{1, 1, 1}, 1, link::nvlink, cost.bottleneck_class()).total());
    const std::int32_t least = std::max<std::int32_t>(
        1, static_cast<std::int32_t>(tokens / pack_capacity(prob, share.ranks.size)));
    const double msqrt = std::sqrt(0.6 * (prob.parallel.pp - 1) * work / fixed);
    std::int32_t evals = 0;
    const auto try_m = [&](std::int32_t m) {
      if (m < least) return false;
      detail::region_plan p;
      ++evals;
      if (!builder.build(share.ranks, share.items, {m, 1.0, 1.0}, p)) return false;
      builder.simulate(p);
      if (!best.cells.empty() && p.makespan >= best.makespan) return false;
      best = std::move(p);
      m_start = m;
      return true;
    };
    if (round == 0 || m_start == 0) {
      const double top = std::max(msqrt * 1.3, least * 1.5);
      for (double m = least; m <= top; m = std::max(m + 1, m * 1.15)) try_m(static_cast<std::int32_t>(m));
    } else {
      try_m(m_start);
    }
    double m = m_start;
    for (std::int32_t step = std::max(1, m_start / 10); ; step /= 2) {
      const std::int32_t center = m_start;
      if (!try_m(center + step)) try_m(center - step);
      if (step <= 1) break;
    }
    (void)m;
    for (std::int32_t m = least + 1; best.cells.empty() && m < 4 * (least + items.count()); m += 1 + m / 8) try_m(m);
    return !best.cells.empty();
  }

  static plan assemble(const problem& prob, const detail::item_table& items,
                       const std::vector<detail::region_plan>& regions) {
    plan out{prob.parallel.ranks, prob.limits.max_tokens_per_rank, prob.padding, {}};
    std::size_t slots = 0;
    for (const auto& r : regions) slots = std::max(slots, r.order.size());
    out.micro_batches.resize(slots);
    for (const auto& r : regions) {
      for (const detail::cell& g : r.cells) {
        dyncp::pack pk{g.ranks, {}};
        for (std::int32_t i = g.first_item; i >= 0; i = r.next[static_cast<std::size_t>(i)]) {
          for (std::int32_t s : items.members_of(i)) pk.sequences.push_back(s);
        }
        std::sort(pk.sequences.begin(), pk.sequences.end());
        out.micro_batches[static_cast<std::size_t>(g.slot)].packs.push_back(std::move(pk));
      }
    }
    return out;
  }
};

}  // namespace v0
}  // namespace dyncp
