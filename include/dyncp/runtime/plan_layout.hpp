// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/runtime/group_handle.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/thd/pack_view.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// One pack of a plan, laid out over its ranks.
struct placed_pack {
  std::int32_t micro_batch = 0;
  rank_range ranks;
  pack_layout layout;
  std::vector<std::int32_t> sequences;  ///< indices into the batch, in THD order
};

/// Where every row of a plan lies: the packs of all micro-batches, and for each rank the order of
/// its rows. A rank's rows are those of its packs, one behind the other by micro-batch; ranks that
/// are idle in a micro-batch have none for it.
///
/// The same on all ranks, made without communication from the same plan and batch. A value; const
/// members may be called concurrently.
class plan_layout {
 public:
  /// Complexity: linear in the sequences and in ranks * micro-batches. Errors: invalid_plan for a
  /// sequence that is missing, doubled or unknown, a group outside the ranks, or packs that
  /// overlap, each by name; those of `pack_layout::make`.
  [[nodiscard]] static result<plan_layout> make(const plan& p, std::span<const sequence> batch,
                                                layout_kind layout) {
    plan_layout out;
    out.num_ranks_ = p.num_ranks;
    out.num_micro_batches_ = p.num_micro_batches();
    for (const sequence& s : batch) {
      out.ids_.push_back(s.id);
      out.lengths_.push_back(s.length);
    }
    out.pack_of_.assign(batch.size(), none);
    const std::size_t cells =
        static_cast<std::size_t>(p.num_ranks) * static_cast<std::size_t>(p.num_micro_batches());
    out.cells_.assign(cells, cell{});
    std::vector<std::int64_t> lengths;
    for (std::int32_t m = 0; m < p.num_micro_batches(); ++m) {
      for (const pack& from : p.micro_batches[static_cast<std::size_t>(m)].packs) {
        if (auto added = out.add(from, m, layout, p.padding, lengths); !added) {
          return std::move(added).error();
        }
      }
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (out.pack_of_[i] == none) {
        return error{errc::invalid_plan,
                     "sequence " + std::to_string(batch[i].id) + " is in no pack of the plan",
                     static_cast<std::int64_t>(i), 0, "plan this batch, not another one"};
      }
    }
    out.local_rows_.assign(static_cast<std::size_t>(p.num_ranks), 0);
    for (std::int32_t rank = 0; rank < p.num_ranks; ++rank) {
      std::int64_t& rows = out.local_rows_[static_cast<std::size_t>(rank)];
      for (std::int32_t m = 0; m < out.num_micro_batches_; ++m) {
        cell& c = out.at(rank, m);
        c.row = rows;
        if (c.pack != none) rows += out.packs_[c.pack].layout.view().local_rows();
      }
    }
    return out;
  }

  [[nodiscard]] std::int32_t num_ranks() const noexcept { return num_ranks_; }
  [[nodiscard]] std::int32_t num_micro_batches() const noexcept { return num_micro_batches_; }
  /// Sequences of the batch, in the caller's order.
  [[nodiscard]] std::int32_t num_sequences() const noexcept {
    return static_cast<std::int32_t>(ids_.size());
  }
  [[nodiscard]] std::int64_t id(std::int32_t sequence) const noexcept {
    return ids_[static_cast<std::size_t>(sequence)];
  }
  [[nodiscard]] std::int64_t length(std::int32_t sequence) const noexcept {
    return lengths_[static_cast<std::size_t>(sequence)];
  }
  [[nodiscard]] std::span<const std::int64_t> lengths() const noexcept { return lengths_; }

  /// All packs, by micro-batch and first rank.
  [[nodiscard]] std::span<const placed_pack> packs() const noexcept { return packs_; }
  /// The pack that `rank` works on in micro-batch `m`; nullptr if it is idle.
  [[nodiscard]] const placed_pack* pack_at(std::int32_t rank, std::int32_t m) const noexcept {
    const cell& c = at(rank, m);
    return c.pack == none ? nullptr : &packs_[c.pack];
  }
  /// The pack that holds `sequence`.
  [[nodiscard]] const placed_pack& pack_of(std::int32_t sequence) const noexcept {
    return packs_[pack_of_[static_cast<std::size_t>(sequence)]];
  }

  /// Rows of `rank` in all micro-batches, padding included.
  [[nodiscard]] std::int64_t local_rows(std::int32_t rank) const noexcept {
    return local_rows_[static_cast<std::size_t>(rank)];
  }
  /// The first of them that belongs to micro-batch `m`.
  [[nodiscard]] std::int64_t local_begin(std::int32_t rank, std::int32_t m) const noexcept {
    return at(rank, m).row;
  }

  /// The parameters of `rank`'s pack in micro-batch `m` on its group; nothing if it is idle.
  /// `group_of(rank_range) -> result<group_handle>`, as `group_pool::group`.
  template <class GroupOf>
  [[nodiscard]] result<std::optional<packed_seq_params>> params(std::int32_t rank, std::int32_t m,
                                                                GroupOf&& group_of) const {
    const placed_pack* const p = pack_at(rank, m);
    if (p == nullptr) return std::optional<packed_seq_params>{};
    result<group_handle> group = group_of(p->ranks);
    if (!group) return std::move(group).error();
    packed_seq_params out{p->layout, *group, {}, m};
    for (std::int32_t s : p->sequences) out.sequence_ids.push_back(id(s));
    return std::optional<packed_seq_params>(std::move(out));
  }

 private:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  struct cell {
    std::size_t pack = none;
    std::int64_t row = 0;
  };

  plan_layout() = default;

  [[nodiscard]] cell& at(std::int32_t rank, std::int32_t m) noexcept {
    return cells_[static_cast<std::size_t>(rank) * static_cast<std::size_t>(num_micro_batches_) +
                  static_cast<std::size_t>(m)];
  }
  [[nodiscard]] const cell& at(std::int32_t rank, std::int32_t m) const noexcept {
    return const_cast<plan_layout*>(this)->at(rank, m);
  }

  [[nodiscard]] result<void> add(const pack& from, std::int32_t m, layout_kind layout,
                                 const padding_rule& padding, std::vector<std::int64_t>& lengths) {
    const std::string name = "micro-batch " + std::to_string(m) + ", group of ranks " +
                             std::to_string(from.ranks.begin) + ".." +
                             std::to_string(from.ranks.end() - 1);
    if (from.ranks.begin < 0 || from.ranks.size < 1 || from.ranks.end() > num_ranks_) {
      return error{errc::invalid_plan, name + " of " + std::to_string(num_ranks_) + " ranks",
                   from.ranks.begin, num_ranks_, "check the plan with `validate`"};
    }
    lengths.clear();
    for (std::int32_t s : from.sequences) {
      if (s < 0 || s >= num_sequences()) {
        return error{errc::invalid_plan,
                     name + " holds sequence number " + std::to_string(s) + " of " +
                         std::to_string(num_sequences()),
                     s, num_sequences(), "plan this batch, not another one"};
      }
      std::size_t& home = pack_of_[static_cast<std::size_t>(s)];
      if (home != none) {
        const std::int32_t first = home < packs_.size() ? packs_[home].micro_batch : m;
        return error{errc::invalid_plan,
                     "sequence " + std::to_string(id(s)) + " is in micro-batch " +
                         std::to_string(first) + " and again in " + name,
                     s, 0, "check the plan with `validate`"};
      }
      home = packs_.size();
      lengths.push_back(length(s));
    }
    auto placed = pack_layout::make(lengths, layout, from.ranks.size, padding);
    if (!placed) return std::move(placed).error();
    for (std::int32_t rank = from.ranks.begin; rank < from.ranks.end(); ++rank) {
      cell& c = at(rank, m);
      if (c.pack != none) {
        return error{errc::invalid_plan,
                     name + " overlaps another one on rank " + std::to_string(rank), rank, 0,
                     "check the plan with `validate`"};
      }
      c.pack = packs_.size();
    }
    packs_.push_back({m, from.ranks, std::move(*placed), from.sequences});
    return {};
  }

  std::int32_t num_ranks_ = 0;
  std::int32_t num_micro_batches_ = 0;
  std::vector<std::int64_t> ids_;      // (sequences)
  std::vector<std::int64_t> lengths_;  // (sequences)
  std::vector<std::size_t> pack_of_;   // (sequences)
  std::vector<placed_pack> packs_;
  std::vector<cell> cells_;               // (ranks, micro-batches)
  std::vector<std::int64_t> local_rows_;  // (ranks)
};

}  // namespace v0
}  // namespace dyncp
