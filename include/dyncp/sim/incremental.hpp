// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/core/rank_range.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A group of a micro-batch with its time on every stage class.
struct timed_group {
  rank_range ranks;
  std::vector<op_cost> costs;  // (stage classes)
};

/// Plain 1F1B whose micro-batches change one at a time: after `commit`, a trial that differs from
/// the committed state in micro-batch j and later is simulated from j on.
///
/// The recursion of `one_f_one_b`, with its rows kept for every step. Memory: 16 * p * R * (M + p)
/// bytes. One object serves one thread. Complexity of a trial: O(p * R * (M - j)).
class incremental_1f1b {
 public:
  incremental_1f1b(std::int32_t ranks, std::vector<std::int32_t> class_of_stage)
      : ranks_(ranks), class_of_stage_(std::move(class_of_stage)) {}

  /// Makespan of `slots`, of which those before `from` are as at the last commit.
  [[nodiscard]] ticks trial(std::span<const std::vector<timed_group>* const> slots,
                            std::int32_t from) {
    load_row(from);
    return run(slots, from, false);
  }

  /// Simulates `slots` from `from` on and keeps every row.
  ticks commit(std::span<const std::vector<timed_group>* const> slots, std::int32_t from) {
    load_row(from);
    return run(slots, from, true);
  }

 private:
  [[nodiscard]] std::int32_t stages() const noexcept {
    return static_cast<std::int32_t>(class_of_stage_.size());
  }
  [[nodiscard]] std::size_t row_size() const noexcept {
    return 2 * class_of_stage_.size() * static_cast<std::size_t>(ranks_);
  }

  void load_row(std::int32_t step) {
    row_.resize(row_size());
    const std::size_t at = static_cast<std::size_t>(step) * row_size();
    if (step == 0 || at + row_size() > rows_.size()) {
      std::fill(row_.begin(), row_.end(), ticks{0});
    } else {
      std::copy_n(rows_.begin() + static_cast<std::ptrdiff_t>(at), row_size(), row_.begin());
    }
  }

  ticks run(std::span<const std::vector<timed_group>* const> slots, std::int32_t from,
            bool keep) {
    const auto m = static_cast<std::int32_t>(slots.size());
    const auto ranks = static_cast<std::size_t>(ranks_);
    if (keep) rows_.resize(row_size() * static_cast<std::size_t>(m + stages() + 1));
    wave_.resize(ranks);
    ticks* const all_free = row_.data();
    ticks* const all_sent = row_.data() + row_size() / 2;
    for (std::int32_t j = from; j < m + stages(); ++j) {
      if (keep) {
        std::copy(row_.begin(), row_.end(),
                  rows_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(j) *
                                                              row_size()));
      }
      std::fill(wave_.begin(), wave_.end(), ticks{0});
      for (std::int32_t s = 0; s < stages(); ++s) {
        ticks* const free = all_free + static_cast<std::size_t>(s) * ranks;
        const std::int32_t k = j - stages() + s;
        if (k >= 0 && k < m) {
          ticks* const sent = all_sent + static_cast<std::size_t>(s) * ranks;
          const ticks* const in = s + 1 < stages() ? sent + ranks : free;
          operate(*slots[static_cast<std::size_t>(k)], s, true, in, free, sent);
        }
        if (j < m) {
          operate(*slots[static_cast<std::size_t>(j)], s, false, wave_.data(), free,
                  wave_.data());
        }
      }
    }
    return *std::max_element(all_free, all_free + row_size() / 2);
  }

  void operate(const std::vector<timed_group>& groups, std::int32_t stage, bool backward,
               const ticks* in, ticks* free, ticks* out) const noexcept {
    const auto k = static_cast<std::size_t>(class_of_stage_[static_cast<std::size_t>(stage)]);
    for (std::int32_t i = 0; i < ranks_; ++i) {
      free[i] = std::max(free[i], in[i]);
      out[i] = free[i];
    }
    for (const timed_group& g : groups) {
      const op_cost& cost = g.costs[k];
      const ticks start = *std::max_element(free + g.ranks.begin, free + g.ranks.end());
      const ticks end = start + (backward ? cost.backward : cost.forward);
      std::fill(free + g.ranks.begin, free + g.ranks.end(), end);
      std::fill(out + g.ranks.begin, out + g.ranks.end(), end + cost.transfer);
    }
  }

  std::int32_t ranks_;
  std::vector<std::int32_t> class_of_stage_;
  std::vector<ticks> rows_;  // (M + p + 1, 2, stages, ranks): state before each step
  std::vector<ticks> row_;   // (2, stages, ranks)
  std::vector<ticks> wave_;  // (ranks)
};

}  // namespace v0
}  // namespace dyncp
