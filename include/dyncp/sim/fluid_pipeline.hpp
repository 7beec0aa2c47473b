// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/matrix_game.hpp>
#include <dyncp/plan/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Work that can be divided at will over the slots of one rank's pipeline, in any unit of time.
struct fluid_work {
  double total = 0;           ///< forward and backward of a stage, all slots
  double least = 0;           ///< each slot takes at least this
  double peak = 0;            ///< and slot `peak_slot` at least this
  std::int32_t peak_slot = 0;
  double forward_share = 0.25;  ///< of every slot; backward has the rest
};

/// What 1F1B (interleaved with chunks) makes of the best division of work over M slots.
struct fluid_makespan {
  double bound = 0;     ///< no division is faster
  double attained = 0;  ///< makespan of `slots`
  std::vector<double> slots;
};

/// Paths through the operations of a pipeline with M slots on each stage, all ranks alike.
///
/// The makespan of given slots is the longest path, and a path is linear in the slots: it bounds
/// the makespan of every division of the work. So the least makespan is the value of a game between
/// paths and divisions (`matrix_game`); paths are added where they are longest until the best
/// division against the known ones attains their value.
class fluid_pipeline {
 public:
  /// Requires pipe.chunks == 1 or micro_batches a multiple of pipe.stages. O(p * V * M).
  fluid_pipeline(pipeline pipe, std::int32_t micro_batches)
      : pipe_(pipe), slots_(static_cast<std::size_t>(micro_batches)) {
    const std::int32_t virtual_stages = pipe.stages * pipe.chunks;
    std::vector<std::vector<operation>> orders;
    for (std::int32_t s = 0; s < pipe.stages; ++s) {
      orders.push_back(stage_order(pipe, s, micro_batches));
    }
    // Each stage runs on while its next operation's input is known.
    std::vector<std::size_t> next(orders.size(), 0);
    std::vector<std::size_t> last(orders.size(), none);
    std::vector<std::size_t> forward(static_cast<std::size_t>(virtual_stages) * slots_, none);
    std::vector<std::size_t> backward(forward.size(), none);
    const std::size_t all = 2 * forward.size();
    while (steps_.size() < all) {
      for (std::int32_t s = 0; s < pipe.stages; ++s) {
        const auto stage = static_cast<std::size_t>(s);
        while (next[stage] < orders[stage].size()) {
          const operation op = orders[stage][next[stage]];
          const auto slot = static_cast<std::size_t>(op.micro_batch);
          const std::int32_t v = op.chunk * pipe.stages + s;
          const auto at = [&](std::int32_t vs) {
            return static_cast<std::size_t>(vs) * slots_ + slot;
          };
          std::size_t input = none;
          if (op.backward) {
            input = v + 1 < virtual_stages ? backward[at(v + 1)] : forward[at(v)];
            if (input == none) break;
          } else if (v > 0) {
            input = forward[at(v - 1)];
            if (input == none) break;
          }
          (op.backward ? backward : forward)[at(v)] = steps_.size();
          steps_.push_back({slot, op.backward, last[stage], input});
          last[stage] = steps_.size() - 1;
          ++next[stage];
        }
      }
    }
    ends_ = std::move(last);
  }

  /// The least makespan of the work, to a relative `tolerance` (bound and attained). If the minima
  /// exceed the total, they are what is run. O(paths * p * M), some hundred paths; the paths that
  /// decided one call start the next, so a sweep over similar works is fast.
  [[nodiscard]] fluid_makespan least_makespan(const fluid_work& work, double tolerance = 1e-3) {
    fluid_makespan best;
    std::vector<double> floor(slots_, work.least);
    double& peak = floor[static_cast<std::size_t>(work.peak_slot)];
    peak = std::max(peak, work.peak);
    const double minima = std::accumulate(floor.begin(), floor.end(), 0.0);
    const double total = std::max(work.total, minima);
    if (total <= 0) return {0, 0, floor};
    const double rest = total - minima;

    matrix_game game(slots_);
    std::vector<std::vector<double>> paths = std::exchange(deciding_, {});
    const auto play = [&](const std::vector<double>& path) {
      double fixed = 0;
      std::vector<double> row(slots_);
      for (std::size_t j = 0; j < slots_; ++j) fixed += path[j] * floor[j];
      for (std::size_t j = 0; j < slots_; ++j) row[j] = (fixed + rest * path[j]) / total;
      game.add(row);
    };
    for (const std::vector<double>& path : paths) play(path);
    std::vector<double> slots(slots_, rest / static_cast<double>(slots_));
    for (std::size_t j = 0; j < slots_; ++j) slots[j] += floor[j];
    for (int round = 0; round < most_rounds; ++round) {
      const std::vector<double> ends = run(slots, work.forward_share);
      double makespan = 0;
      for (const std::size_t end : ends_) makespan = std::max(makespan, ends[end]);
      if (best.slots.empty() || makespan < best.attained) {
        best.attained = makespan;
        best.slots = slots;
      }
      if (best.attained <= best.bound * (1 + tolerance)) break;
      for (const std::size_t end : ends_) {
        if (ends[end] <= best.bound * (1 + 0.1 * tolerance)) continue;
        paths.push_back(longest_path(ends, end, slots, work.forward_share));
        play(paths.back());
      }
      best.bound = std::max(best.bound, game.value() * total);
      // Paths are asked for between the best division so far and the one that is best against the
      // known paths: alone, the latter jumps about and takes many times the rounds.
      const std::vector<double> mix = game.mix();
      for (std::size_t j = 0; j < slots_; ++j) {
        slots[j] = best.slots[j] + step_to_mix * (floor[j] + rest * mix[j] - best.slots[j]);
      }
    }
    for (const std::size_t i : game.binding()) deciding_.push_back(std::move(paths[i]));
    return best;
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  static constexpr int most_rounds = 2000;
  static constexpr double step_to_mix = 0.2;

  struct step {
    std::size_t slot;
    bool backward;
    std::size_t before;  // on the same stage
    std::size_t input;   // from the neighbouring stage
  };

  [[nodiscard]] double share(const step& s, double forward_share) const {
    return (s.backward ? 1 - forward_share : forward_share) / pipe_.chunks;
  }

  [[nodiscard]] std::vector<double> run(const std::vector<double>& slots,
                                        double forward_share) const {
    std::vector<double> ends(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const step& s = steps_[i];
      double start = s.before == none ? 0 : ends[s.before];
      if (s.input != none) start = std::max(start, ends[s.input]);
      ends[i] = start + slots[s.slot] * share(s, forward_share);
    }
    return ends;
  }

  // How much of each slot lies on the path that ends last at step `end`.
  [[nodiscard]] std::vector<double> longest_path(const std::vector<double>& ends, std::size_t end,
                                                 const std::vector<double>& slots,
                                                 double forward_share) const {
    std::vector<double> path(slots.size(), 0.0);
    for (std::size_t at = end; at != none;) {
      const step& s = steps_[at];
      path[s.slot] += share(s, forward_share);
      if (s.before == none || (s.input != none && ends[s.input] > ends[s.before])) {
        at = s.input;
      } else {
        at = s.before;
      }
    }
    return path;
  }

  pipeline pipe_;
  std::size_t slots_;
  std::vector<step> steps_;  // in an order in which inputs come first
  std::vector<std::size_t> ends_;
  std::vector<std::vector<double>> deciding_;  // paths that bound the last division
};

}  // namespace v0
}  // namespace dyncp
