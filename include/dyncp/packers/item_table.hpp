// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// What packers place: an atomic group of sequences, most often a single one, with its load and
/// its time alone at every allowed CP size.
///
/// Items are sorted by descending time at the smallest size that holds them (ties by position in
/// the batch), so "longest first" is index order. Immutable after `make_items`.
struct item_table {
  std::vector<std::int32_t> sizes;         // allowed CP sizes, ascending
  std::vector<std::int64_t> capacity;      // (sizes): padded tokens of a pack
  std::vector<std::int32_t> first_member;  // (items + 1): sequences of an item
  std::vector<std::int32_t> members;       // indices into the batch
  std::vector<load> loads;                 // (sizes or 1, items)
  std::vector<ticks> alone;                // (sizes, items): F + B in one node, 0 where it does
                                           // not fit
  std::vector<std::int32_t> least_size;    // (items): index of the smallest size that holds it
  bool one_alignment = true;               // loads do not depend on the size

  [[nodiscard]] std::int32_t count() const noexcept {
    return static_cast<std::int32_t>(first_member.size()) - 1;
  }
  [[nodiscard]] std::int32_t num_sizes() const noexcept {
    return static_cast<std::int32_t>(sizes.size());
  }
  [[nodiscard]] const load& load_of(std::int32_t item, std::int32_t size) const noexcept {
    return loads[(one_alignment ? 0 : index(0, size)) + static_cast<std::size_t>(item)];
  }
  [[nodiscard]] ticks time_alone(std::int32_t item, std::int32_t size) const noexcept {
    return alone[index(item, size)];
  }
  [[nodiscard]] std::span<const std::int32_t> members_of(std::int32_t item) const noexcept {
    const auto i = static_cast<std::size_t>(item);
    return std::span(members).subspan(
        static_cast<std::size_t>(first_member[i]),
        static_cast<std::size_t>(first_member[i + 1] - first_member[i]));
  }

 private:
  [[nodiscard]] std::size_t index(std::int32_t item, std::int32_t size) const noexcept {
    return static_cast<std::size_t>(size) * static_cast<std::size_t>(count()) +
           static_cast<std::size_t>(item);
  }
};

/// Sequences by atom: first_member and members of an item table, in batch order.
inline void group_atoms(const std::vector<sequence>& batch, item_table& table) {
  std::vector<std::pair<std::int64_t, std::int32_t>> order;  // (position of the atom, sequence)
  order.reserve(batch.size());
  std::vector<std::pair<std::int64_t, std::int32_t>> atoms;  // (atom, first position)
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].atom >= 0) atoms.emplace_back(batch[i].atom, static_cast<std::int32_t>(i));
  }
  std::stable_sort(atoms.begin(), atoms.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < batch.size(); ++i) {
    std::int64_t at = static_cast<std::int64_t>(i);
    if (batch[i].atom >= 0) {
      const auto it = std::lower_bound(
          atoms.begin(), atoms.end(), batch[i].atom,
          [](const auto& a, std::int64_t atom) { return a.first < atom; });
      at = it->second;
    }
    order.emplace_back(at, static_cast<std::int32_t>(i));
  }
  if (!atoms.empty()) std::stable_sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || order[i].first != order[i - 1].first) {
      table.first_member.push_back(static_cast<std::int32_t>(i));
    }
    table.members.push_back(order[i].second);
  }
  table.first_member.push_back(static_cast<std::int32_t>(order.size()));
}

/// Errors: sequence_too_long (or infeasible, for an atomic group) when no size holds an item.
/// Complexity: O(n log n + items * sizes).
template <cost_model Cost>
[[nodiscard]] result<item_table> make_items(const problem& prob, const Cost& cost) {
  item_table table;
  table.sizes = allowed_cp_sizes(prob.parallel);
  for (const std::int32_t c : table.sizes) table.capacity.push_back(pack_capacity(prob, c));
  for (const std::int32_t c : table.sizes) {
    table.one_alignment =
        table.one_alignment &&
        alignment(prob.padding, c) == alignment(prob.padding, table.sizes.front());
  }
  item_table by_batch = table;
  group_atoms(prob.sequences, by_batch);
  const auto items = static_cast<std::size_t>(by_batch.first_member.size() - 1);
  const std::size_t alignments = table.one_alignment ? 1 : table.sizes.size();
  const std::int32_t cap = prob.limits.max_sequences_per_pack;

  by_batch.loads.assign(alignments * items, load{});
  for (std::size_t k = 0; k < alignments; ++k) {
    const std::int64_t align = alignment(prob.padding, table.sizes[k]);
    for (std::size_t i = 0; i < items; ++i) {
      load& sum = by_batch.loads[k * items + i];
      for (const std::int32_t s : by_batch.members_of(static_cast<std::int32_t>(i))) {
        const std::int64_t length = prob.sequences[static_cast<std::size_t>(s)].length;
        if (length > max_pack_tokens || sum.tokens > max_pack_tokens) {
          sum.tokens = max_pack_tokens + 1;  // fits nowhere; keeps the squares in range
          break;
        }
        sum += sequence_load(length, align);
      }
    }
  }

  std::vector<int128> key(items, 0);  // rank-ticks
  by_batch.least_size.assign(items, -1);
  const std::int32_t bottleneck = cost.bottleneck_class();
  for (std::size_t i = 0; i < items; ++i) {
    const auto item = static_cast<std::int32_t>(i);
    for (std::int32_t k = 0; k < table.num_sizes(); ++k) {
      const load& l = by_batch.load_of(item, k);
      const std::int32_t c = table.sizes[static_cast<std::size_t>(k)];
      const bool capped = cap > 0 && l.count > cap;
      if (capped || l.tokens > max_pack_tokens ||
          padded_pack_tokens(prob.padding, c, l.tokens) >
              table.capacity[static_cast<std::size_t>(k)]) {
        continue;
      }
      by_batch.least_size[i] = k;
      key[i] = int128{cost.cost(l, c, link::nvlink, bottleneck).total()} * c;
      break;
    }
    if (by_batch.least_size[i] < 0) {
      const auto members = by_batch.members_of(item);
      if (members.size() == 1) return too_long_error(prob, members[0], table.sizes.back());
      return error{errc::infeasible,
                   "the atomic group of sequence " +
                       std::to_string(prob.sequences[static_cast<std::size_t>(members[0])].id) +
                       " fits no pack",
                   by_batch.load_of(item, table.num_sizes() - 1).tokens, table.capacity.back(),
                   "raise --max-tokens-per-rank or the sequence cap, or split the group"};
    }
  }

  std::vector<std::int32_t> order(items);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const int128 ka = key[static_cast<std::size_t>(a)];
    const int128 kb = key[static_cast<std::size_t>(b)];
    return ka != kb ? ka > kb : a < b;
  });

  table.first_member.push_back(0);
  table.loads.resize(alignments * items);
  for (std::size_t to = 0; to < items; ++to) {
    const std::int32_t from = order[to];
    for (const std::int32_t s : by_batch.members_of(from)) table.members.push_back(s);
    table.first_member.push_back(static_cast<std::int32_t>(table.members.size()));
    table.least_size.push_back(by_batch.least_size[static_cast<std::size_t>(from)]);
    for (std::size_t k = 0; k < alignments; ++k) {
      table.loads[k * items + to] = by_batch.loads[k * items + static_cast<std::size_t>(from)];
    }
  }
  const std::int32_t per_node = ranks_per_node(prob.cluster.gpus_per_node, prob.parallel);
  table.alone.assign(table.sizes.size() * items, 0);
  for (std::size_t k = 0; k < table.sizes.size(); ++k) {
    const link over = table.sizes[k] <= per_node ? link::nvlink : link::network;
    for (std::size_t i = 0; i < items; ++i) {
      if (table.least_size[i] > static_cast<std::int32_t>(k)) continue;
      table.alone[k * items + i] =
          cost.cost(table.load_of(static_cast<std::int32_t>(i), static_cast<std::int32_t>(k)),
                    table.sizes[k], over, bottleneck)
              .total();
    }
  }
  return table;
}

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
