// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/padding.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// What the packers ask of a group while they fill it: does a load fit, and what does it cost.
/// Refers to its arguments; immutable, safe to use concurrently. O(1) a call.
template <cost_model Cost>
class group_pricing {
 public:
  group_pricing(const problem& prob, const Cost& cost, const item_table& items)
      : prob_(prob),
        cost_(cost),
        items_(items),
        per_node_(ranks_per_node(prob.cluster.gpus_per_node, prob.parallel)) {}

  [[nodiscard]] std::int32_t ranks_of(std::int32_t size) const noexcept {
    return items_.sizes[static_cast<std::size_t>(size)];
  }
  /// Token limit and sequence cap, for a group of the allowed size with this index.
  [[nodiscard]] bool fits(const load& l, std::int32_t size) const noexcept {
    const std::int32_t cap = prob_.limits.max_sequences_per_pack;
    return (cap == 0 || l.count <= cap) &&
           padded_pack_tokens(prob_.padding, ranks_of(size), l.tokens) <=
               items_.capacity[static_cast<std::size_t>(size)];
  }
  /// On stages of a class; `ranks` are those of the whole domain.
  [[nodiscard]] op_cost cost(const load& l, rank_range ranks, std::int32_t stage_class) const {
    load padded = l;
    padded.tokens = padded_pack_tokens(prob_.padding, ranks.size, l.tokens);
    return cost_.cost(padded, ranks.size, link_of(ranks, per_node_), stage_class);
  }
  /// On every stage class.
  void costs(const load& l, rank_range ranks, std::vector<op_cost>& out) const {
    out.resize(static_cast<std::size_t>(cost_.stage_classes()));
    for (std::int32_t k = 0; k < cost_.stage_classes(); ++k) {
      out[static_cast<std::size_t>(k)] = cost(l, ranks, k);
    }
  }
  [[nodiscard]] std::int32_t bottleneck() const { return cost_.bottleneck_class(); }
  /// Class of each stage of plain 1F1B, shape (pp).
  [[nodiscard]] std::vector<std::int32_t> stage_classes() const {
    std::vector<std::int32_t> classes;
    for (std::int32_t s = 0; s < prob_.parallel.pp; ++s) classes.push_back(cost_.stage_class(s));
    return classes;
  }

 private:
  const problem& prob_;
  const Cost& cost_;
  const item_table& items_;
  std::int32_t per_node_;
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
