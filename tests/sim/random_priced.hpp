// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/random.hpp"

#include <dyncp/plan/schedule.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace dyncp_test {

struct priced_case {
  dyncp::priced_plan plan;
  dyncp::pipeline pipe;
};

/// A small priced plan of any kind: groups of any size and place, idle ranks, empty micro-batches,
/// uneven stages, transfers, costs of 1 to 50 ticks.
inline priced_case random_priced(random& rng) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return static_cast<std::int32_t>(rng.between(low, high));
  };
  priced_case out;
  out.pipe = {pick(1, 5), pick(1, 3)};
  const std::int32_t m =
      out.pipe.chunks == 1 ? pick(1, 8) : out.pipe.stages * pick(1, 8 / out.pipe.stages);
  dyncp::priced_plan& p = out.plan;
  p.num_ranks = pick(1, 6);
  p.stage_classes = pick(1, 3);
  for (std::int32_t s = 0; s < out.pipe.stages * out.pipe.chunks; ++s) {
    p.class_of_stage.push_back(pick(0, p.stage_classes - 1));
  }
  p.first_group.push_back(0);
  for (std::int32_t j = 0; j < m; ++j) {
    for (std::int32_t at = 0; at < p.num_ranks;) {
      const std::int32_t size = pick(1, p.num_ranks - at);
      if (!rng.one_in(5)) p.ranks.push_back({at, size});
      at += size;
    }
    p.first_group.push_back(static_cast<std::int32_t>(p.ranks.size()));
  }
  const bool transfers = rng.one_in(2);
  for (std::int32_t k = 0; k < p.stage_classes; ++k) {
    for (std::size_t g = 0; g < p.num_groups(); ++g) {
      p.costs.push_back(
          {rng.between(1, 50), rng.between(1, 50), transfers ? rng.between(0, 20) : 0});
    }
  }
  return out;
}

inline std::string describe(const priced_case& c) {
  std::string text = "R " + std::to_string(c.plan.num_ranks) + " p " +
                     std::to_string(c.pipe.stages) + " V " + std::to_string(c.pipe.chunks) +
                     " classes";
  for (const std::int32_t k : c.plan.class_of_stage) text += " " + std::to_string(k);
  for (std::int32_t j = 0; j < c.plan.num_micro_batches(); ++j) {
    text += " |";
    for (std::int32_t g = c.plan.first_group[static_cast<std::size_t>(j)];
         g < c.plan.first_group[static_cast<std::size_t>(j) + 1]; ++g) {
      const auto i = static_cast<std::size_t>(g);
      text +=
          " " + std::to_string(c.plan.ranks[i].begin) + "+" + std::to_string(c.plan.ranks[i].size);
      for (std::int32_t k = 0; k < c.plan.stage_classes; ++k) {
        const dyncp::op_cost& cost = c.plan.costs_of_class(k)[i];
        text += ":" + std::to_string(cost.forward) + "/" + std::to_string(cost.backward) + "/" +
                std::to_string(cost.transfer);
      }
    }
  }
  return text;
}

/// M micro-batches on every rank alone, all of one cost.
inline dyncp::priced_plan equal_costs(std::int32_t ranks, std::int32_t micro_batches,
                                      dyncp::pipeline pipe, dyncp::op_cost cost) {
  dyncp::priced_plan p;
  p.num_ranks = ranks;
  p.class_of_stage.assign(
      static_cast<std::size_t>(pipe.stages) * static_cast<std::size_t>(pipe.chunks), 0);
  p.first_group.push_back(0);
  for (std::int32_t j = 0; j < micro_batches; ++j) {
    for (std::int32_t r = 0; r < ranks; ++r) p.ranks.push_back({r, 1});
    p.first_group.push_back(static_cast<std::int32_t>(p.ranks.size()));
  }
  p.costs.assign(p.ranks.size(), cost);
  return p;
}

}  // namespace dyncp_test
