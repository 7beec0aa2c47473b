// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// `rows` rows from row `src` of the array of rank `from` to row `dst` of the array of rank `to`.
struct row_transfer {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int64_t src = 0;
  std::int64_t dst = 0;
  std::int64_t rows = 0;

  friend constexpr bool operator==(const row_transfer&, const row_transfer&) = default;
};

/// Which rows go where, as one rank sees it: all transfers that it sends or receives.
///
/// Every rank builds the transfers between two ranks in the same order, from the same plan, so the
/// two ends of a message agree on its bytes without talking about them.
struct row_route {
  std::vector<row_transfer> transfers;
  std::int64_t src_rows = 0;  ///< of this rank's array before
  std::int64_t dst_rows = 0;  ///< of this rank's array after; rows that nothing reaches become 0
};

/// Whole sequences side by side in one array, in the caller's order, padding nowhere: what a data
/// loader has, what the loss gets back. `place[i]` is the first row of sequence i, -1 if the rank
/// does not hold it.
struct sequence_rows {
  std::vector<std::int64_t> place;  // (sequences)
  std::int64_t rows = 0;
};

/// On every rank. In lists of owners, where a rank is expected.
inline constexpr std::int32_t every_rank = -1;

/// The sequences that `owners` (sequences) gives to `rank`, or to every rank.
[[nodiscard]] inline sequence_rows rows_of_owner(const plan_layout& layout,
                                                 std::span<const std::int32_t> owners,
                                                 std::int32_t rank) {
  sequence_rows out;
  for (std::int32_t i = 0; i < layout.num_sequences(); ++i) {
    const std::int32_t owner = owners[static_cast<std::size_t>(i)];
    const bool here = owner == every_rank || owner == rank;
    out.place.push_back(here ? out.rows : -1);
    if (here) out.rows += layout.length(i);
  }
  return out;
}

/// The sequences that `rank` works on, in the caller's order.
[[nodiscard]] inline sequence_rows rows_of_worker(const plan_layout& layout, std::int32_t rank) {
  sequence_rows out;
  for (std::int32_t i = 0; i < layout.num_sequences(); ++i) {
    const bool here = layout.pack_of(i).ranks.contains(rank);
    out.place.push_back(here ? out.rows : -1);
    if (here) out.rows += layout.length(i);
  }
  return out;
}

/// Errors: invalid_argument for a list of another length than the batch, or ranks that are none.
[[nodiscard]] inline result<void> check_owners(const plan_layout& layout,
                                               std::span<const std::int32_t> owners) {
  if (owners.size() != static_cast<std::size_t>(layout.num_sequences())) {
    return error{errc::invalid_argument,
                 std::to_string(owners.size()) + " owners for " +
                     std::to_string(layout.num_sequences()) + " sequences",
                 static_cast<std::int64_t>(owners.size()), layout.num_sequences(),
                 "give one rank for each sequence"};
  }
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] == every_rank || (owners[i] >= 0 && owners[i] < layout.num_ranks())) continue;
    return error{errc::invalid_argument,
                 "sequence " + std::to_string(layout.id(static_cast<std::int32_t>(i))) +
                     " belongs to rank " + std::to_string(owners[i]) + " of " +
                     std::to_string(layout.num_ranks()),
                 owners[i], layout.num_ranks() - 1, "name a rank, or every_rank"};
  }
  return {};
}

namespace detail {

/// Calls visit(position, local row, rows) for the runs of tokens of a sequence that `rank` holds;
/// local rows count through all micro-batches of the rank.
template <class Visit>
void for_each_run(const plan_layout& layout, const placed_pack& p, std::int32_t in_pack,
                  std::int32_t rank, Visit visit) {
  const pack_view view = p.layout.view();
  const slot rows = slot_of(view, in_pack, rank - p.ranks.begin);
  const std::int64_t begin = layout.local_begin(rank, p.micro_batch);
  for (const row_run& run : {rows.front, rows.back}) {
    if (run.valid > 0) visit(run.position, begin + run.row, run.valid);
  }
}

/// sequence_rows of every rank, made when asked for.
class rows_by_rank {
 public:
  rows_by_rank(const plan_layout& layout, std::span<const std::int32_t> owners)
      : layout_(&layout), owners_(owners), ranks_(static_cast<std::size_t>(layout.num_ranks())) {}
  [[nodiscard]] const sequence_rows& of(std::int32_t rank) {
    sequence_rows& rows = ranks_[static_cast<std::size_t>(rank)];
    if (rows.place.empty()) rows = rows_of_owner(*layout_, owners_, rank);
    return rows;
  }

 private:
  const plan_layout* layout_;
  std::span<const std::int32_t> owners_;
  std::vector<sequence_rows> ranks_;
};

}  // namespace detail

/// Split: whole sequences at their `owners` to the shares of the ranks that work on them. The
/// result has layout.local_rows(rank) rows, padding 0. With every_rank as owner each rank cuts its
/// share out of its own copy and nothing is sent.
///
/// Requires check_owners. Complexity: linear in sequences, times the ranks of their groups.
[[nodiscard]] inline row_route split_route(const plan_layout& layout,
                                           std::span<const std::int32_t> owners,
                                           std::int32_t rank) {
  row_route route;
  detail::rows_by_rank homes(layout, owners);
  route.src_rows = homes.of(rank).rows;
  route.dst_rows = layout.local_rows(rank);
  for (const placed_pack& p : layout.packs()) {
    for (std::size_t i = 0; i < p.sequences.size(); ++i) {
      const std::int32_t s = p.sequences[i];
      const std::int32_t owner = owners[static_cast<std::size_t>(s)];
      for (std::int32_t to = p.ranks.begin; to < p.ranks.end(); ++to) {
        const std::int32_t from = owner == every_rank ? to : owner;
        if (from != rank && to != rank) continue;
        const std::int64_t place = homes.of(from).place[static_cast<std::size_t>(s)];
        detail::for_each_run(layout, p, static_cast<std::int32_t>(i), to,
                             [&](std::int64_t position, std::int64_t row, std::int64_t rows) {
                               route.transfers.push_back({from, to, place + position, row, rows});
                             });
      }
    }
  }
  return route;
}

/// Reroute: whole sequences at their `owners` to every rank that works on them, in the order of
/// `rows_of_worker`.
[[nodiscard]] inline row_route reroute_route(const plan_layout& layout,
                                             std::span<const std::int32_t> owners,
                                             std::int32_t rank) {
  row_route route;
  detail::rows_by_rank homes(layout, owners);
  route.src_rows = homes.of(rank).rows;
  std::vector<sequence_rows> workers(static_cast<std::size_t>(layout.num_ranks()));
  const auto worker = [&](std::int32_t r) -> const sequence_rows& {
    sequence_rows& rows = workers[static_cast<std::size_t>(r)];
    if (rows.place.empty()) rows = rows_of_worker(layout, r);
    return rows;
  };
  route.dst_rows = worker(rank).rows;
  for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
    const rank_range ranks = layout.pack_of(s).ranks;
    const std::int32_t owner = owners[static_cast<std::size_t>(s)];
    for (std::int32_t to = ranks.begin; to < ranks.end(); ++to) {
      const std::int32_t from = owner == every_rank ? to : owner;
      if (from != rank && to != rank) continue;
      route.transfers.push_back({from, to, homes.of(from).place[static_cast<std::size_t>(s)],
                                 worker(to).place[static_cast<std::size_t>(s)], layout.length(s)});
    }
  }
  return route;
}

/// First half of merge: the shares of the sequences to the leader of each group, its first rank,
/// who gets them whole. The leader holds the sequences of the packs that it leads.
[[nodiscard]] inline row_route gather_route(const plan_layout& layout, std::int32_t rank) {
  std::vector<std::int32_t> leaders;
  for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
    leaders.push_back(layout.pack_of(s).ranks.begin);
  }
  row_route route;
  detail::rows_by_rank homes(layout, leaders);
  route.src_rows = layout.local_rows(rank);
  route.dst_rows = homes.of(rank).rows;
  for (const placed_pack& p : layout.packs()) {
    const std::int32_t leader = p.ranks.begin;
    for (std::size_t i = 0; i < p.sequences.size(); ++i) {
      const std::int32_t s = p.sequences[i];
      for (std::int32_t from = p.ranks.begin; from < p.ranks.end(); ++from) {
        if (from != rank && leader != rank) continue;
        const std::int64_t place = homes.of(leader).place[static_cast<std::size_t>(s)];
        detail::for_each_run(
            layout, p, static_cast<std::int32_t>(i), from,
            [&](std::int64_t position, std::int64_t row, std::int64_t rows) {
              route.transfers.push_back({from, leader, row, place + position, rows});
            });
      }
    }
  }
  return route;
}

/// Second half of merge: whole sequences from the leaders to their `owners`, in the caller's order.
/// Requires check_owners.
[[nodiscard]] inline row_route deliver_route(const plan_layout& layout,
                                             std::span<const std::int32_t> owners,
                                             std::int32_t rank) {
  std::vector<std::int32_t> leaders;
  for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
    leaders.push_back(layout.pack_of(s).ranks.begin);
  }
  row_route route;
  detail::rows_by_rank sources(layout, leaders);
  detail::rows_by_rank homes(layout, owners);
  route.src_rows = sources.of(rank).rows;
  route.dst_rows = homes.of(rank).rows;
  for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
    const std::int32_t from = leaders[static_cast<std::size_t>(s)];
    const std::int32_t owner = owners[static_cast<std::size_t>(s)];
    const std::int32_t first = owner == every_rank ? 0 : owner;
    const std::int32_t last = owner == every_rank ? layout.num_ranks() - 1 : owner;
    for (std::int32_t to = first; to <= last; ++to) {
      if (from != rank && to != rank) continue;
      route.transfers.push_back({from, to, sources.of(from).place[static_cast<std::size_t>(s)],
                                 homes.of(to).place[static_cast<std::size_t>(s)],
                                 layout.length(s)});
    }
  }
  return route;
}

}  // namespace v0
}  // namespace dyncp
