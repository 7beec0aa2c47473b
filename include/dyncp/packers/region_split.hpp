// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/packers/item_table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// A region and the items that it is to run.
struct region_share {
  rank_range ranks;
  std::vector<std::int32_t> items;  // ascending: longest first
  double work = 0;                  // rank-ticks, by the estimate
  double peak = 0;                  // ticks of its longest item
  double capacity = 0;              // rank-ticks that bring it to the common time
};

/// Share of (p-1) * peak that a pipeline with work x * peak a rank adds as bubble: close to 1
/// while the peak dominates, 0.52 for long batches with ramps (a linear program over divisible
/// work, p = 8, b = 3f; the fraction is a fit to it, within 0.07). Only a start: `correct` feeds
/// simulated times back.
[[nodiscard]] inline double bubble_share(double x, std::int32_t stages) noexcept {
  const double y = x / stages;
  return 0.52 + 0.48 / (1.0 + rounded_product(y, 1.3 + rounded_product(1.2, y)));
}

/// Splits the ranks into regions and the items among them, so that the estimated times
///   T = work/ranks + bubble_share * (p-1) * peak + correction
/// are equal. No operation couples two regions, so only the largest T counts; and since a region
/// pays for its longest item, the long items go together into as few regions as they fill.
///
/// Regions are nodes (groups then never leave NVLink), wider only for items that need more ranks
/// than a node has.
class region_splitter {
 public:
  /// `whole` makes all ranks one region, whatever the nodes; `first` is the least size of the
  /// region of the longest items (0: a node, or what they need).
  region_splitter(const item_table& items, std::int32_t ranks, std::int32_t per_node,
                  std::int32_t stages, bool whole, std::int32_t first)
      : items_(items),
        ranks_(ranks),
        stages_(stages),
        first_(first),
        base_(std::min(ranks, per_node)) {
    widest_need_.resize(static_cast<std::size_t>(items.count()));
    std::int32_t need = 0;
    for (std::int32_t i = items.count() - 1; i >= 0; --i) {
      need = std::max(need, needed(i));
      widest_need_[static_cast<std::size_t>(i)] = need;
      total_ += work_of(i);
    }
    // Groups that powers of two do not nest, or that no node holds, cannot split the ranks.
    const bool nested = is_power_of_two(base_) && is_power_of_two(need);
    if (whole || items.sizes.front() > base_ || (need > base_ && !nested)) base_ = ranks;
    corrections_.assign(static_cast<std::size_t>(ranks / base_ + 1), 0.0);
  }

  [[nodiscard]] bool single() const noexcept { return base_ >= ranks_; }
  /// Regions of the usual size that the ranks hold.
  [[nodiscard]] std::int32_t count() const noexcept { return std::max(1, ranks_ / base_); }

  /// The shares under the corrections so far; `long_share` of a region's capacity at most goes to
  /// long items, so that short ones are left to fill its gaps and ramps. Empty when the long items
  /// cannot be laid out. Complexity: O(items * log(regions) + longs + regions).
  [[nodiscard]] std::vector<region_share> split(double long_share) {
    std::vector<region_share> shares;
    if (single()) {
      region_share all;
      all.ranks = {0, ranks_};
      for (std::int32_t i = 0; i < items_.count(); ++i) all.items.push_back(i);
      shares.push_back(std::move(all));
      return shares;
    }
    const double average = total_ / ranks_;
    num_long_ = 0;
    while (num_long_ < items_.count() && is_long(num_long_, average)) ++num_long_;
    double low = 0;
    double high = 2.0 * average + rounded_product(4.0 * stages_, time_at(0, ranks_));
    for (int doublings = 0; !assign_longs(high, long_share, shares); ++doublings) {
      if (doublings == 40) return {};
      high *= 2.0;
    }
    for (int step = 0; step < 24; ++step) {
      const double middle = 0.5 * (low + high);
      (assign_longs(middle, long_share, shares) ? high : low) = middle;
    }
    assign_longs(high, long_share, shares);
    if (!assign_shorts(shares)) return {};
    for (region_share& s : shares) std::sort(s.items.begin(), s.items.end());
    return shares;
  }

  /// Time of the longest item through all stages, forward and backward, in the first region.
  [[nodiscard]] ticks longest_path() const noexcept {
    return static_cast<ticks>(time_at(0, first_size())) * stages_;
  }

  /// A size of the first region with which its longest item takes at least 0.5 % less time, or 0.
  /// Groups across nodes seldom pay: only where one sequence bounds the whole plan.
  [[nodiscard]] std::int32_t wider_first() const noexcept {
    const double now = time_at(0, first_size());
    double best = rounded_product(now, 0.995);
    std::int32_t wider = 0;
    for (const std::int32_t c : items_.sizes) {
      if (c <= first_size() || c > ranks_ || !is_power_of_two(c) || !is_power_of_two(base_)) {
        continue;
      }
      if (time_at(0, c) < best) {
        best = rounded_product(time_at(0, c), 0.995);
        wider = c;
      }
    }
    return wider;
  }

  /// Corrections, in ticks, to hand on to the next batch and to start from.
  [[nodiscard]] std::int64_t correction(std::size_t region) const noexcept {
    return region < corrections_.size() ? static_cast<std::int64_t>(corrections_[region]) : 0;
  }
  void start_from(std::size_t region, std::int64_t correction) noexcept {
    if (region < corrections_.size()) corrections_[region] = static_cast<double>(correction);
  }

  /// Adds to the estimate of a region what the simulator found beyond it, in ticks.
  void correct(std::size_t region, double excess) {
    if (region < corrections_.size()) corrections_[region] += excess;
  }

 private:
  [[nodiscard]] std::int32_t needed(std::int32_t item) const noexcept {
    return items_.sizes[static_cast<std::size_t>(
        items_.least_size[static_cast<std::size_t>(item)])];
  }
  [[nodiscard]] double work_of(std::int32_t item) const noexcept {
    const std::int32_t k = items_.least_size[static_cast<std::size_t>(item)];
    return rounded_product(static_cast<double>(items_.time_alone(item, k)), needed(item));
  }
  // Time of an item on its best size of at most `ranks` ranks.
  [[nodiscard]] double time_at(std::int32_t item, std::int32_t ranks) const noexcept {
    std::int32_t k = items_.least_size[static_cast<std::size_t>(item)];
    ticks best = items_.time_alone(item, k);
    for (++k; k < items_.num_sizes() && items_.sizes[static_cast<std::size_t>(k)] <= ranks; ++k) {
      best = std::min(best, items_.time_alone(item, k));
    }
    return static_cast<double>(best);
  }
  [[nodiscard]] bool is_long(std::int32_t item, double average) const noexcept {
    return rounded_product(time_at(item, base_), 64.0) > average || needed(item) > base_ / 2;
  }

  [[nodiscard]] std::int32_t first_size() const noexcept {
    return std::max({base_, first_, single() ? ranks_ : widest_need_.front()});
  }

  // Work a rank that brings a region with this peak to the time `target`.
  [[nodiscard]] double quota(double target, double peak, double correction) const noexcept {
    double work = std::max(0.0, target - correction - peak);
    if (peak <= 0) return work;
    for (int step = 0; step < 6; ++step) {
      const double bubble =
          rounded_product(bubble_share(work / peak, stages_), (stages_ - 1) * peak);
      work = 0.5 * (work + std::max(0.0, target - correction - bubble));
    }
    return work;
  }

  // Longest first into the first regions; true when all are placed and the rest has room.
  bool assign_longs(double target, double long_share, std::vector<region_share>& shares) {
    shares.clear();
    std::int32_t next = 0;
    double room = 0;
    double left = total_;
    for (std::int32_t at = 0; at < ranks_;) {
      region_share share;
      std::int32_t size = shares.empty() ? first_size() : base_;
      if (next < num_long_) {
        size = std::max(size, widest_need_[static_cast<std::size_t>(next)]);
      }
      share.ranks = {at, std::min(size, ranks_ - at)};
      at += share.ranks.size;
      if (share.ranks.size >= items_.sizes.front()) {
        share.peak = next < items_.count() ? time_at(next, share.ranks.size) : 0.0;
        const double correction = corrections_[std::min(shares.size(), corrections_.size() - 1)];
        share.capacity =
            rounded_product(quota(target, share.peak, correction), share.ranks.size);
        const double for_longs = rounded_product(long_share, share.capacity);
        while (next < num_long_ && needed(next) <= share.ranks.size &&
               (share.items.empty() || share.work + work_of(next) <= for_longs)) {
          share.work += work_of(next);
          share.items.push_back(next);
          ++next;
        }
      }
      left -= share.work;
      room += std::max(0.0, share.capacity - share.work);
      shares.push_back(std::move(share));
    }
    return next == num_long_ && room >= left;
  }

  // The rest, longest first, each to the region with the most room a rank that can hold it.
  bool assign_shorts(std::vector<region_share>& shares) {
    std::vector<std::pair<double, std::int32_t>> room;  // (room a rank, -region): max-heap
    for (std::size_t k = 0; k < shares.size(); ++k) {
      if (shares[k].ranks.size < items_.sizes.front()) continue;
      room.emplace_back((shares[k].capacity - shares[k].work) / shares[k].ranks.size,
                        -static_cast<std::int32_t>(k));
    }
    std::make_heap(room.begin(), room.end());
    std::vector<std::pair<double, std::int32_t>> too_small;
    for (std::int32_t i = num_long_; i < items_.count(); ++i) {
      bool placed = false;
      while (!placed && !room.empty()) {
        std::pop_heap(room.begin(), room.end());
        const auto [left, minus_k] = room.back();
        region_share& share = shares[static_cast<std::size_t>(-minus_k)];
        room.pop_back();
        if (needed(i) > share.ranks.size) {
          too_small.emplace_back(left, minus_k);
          continue;
        }
        share.items.push_back(i);
        share.work += work_of(i);
        too_small.emplace_back(left - work_of(i) / share.ranks.size, minus_k);
        placed = true;
      }
      for (const auto& entry : too_small) {
        room.push_back(entry);
        std::push_heap(room.begin(), room.end());
      }
      too_small.clear();
      if (!placed) return false;
    }
    return true;
  }

  const item_table& items_;
  std::int32_t ranks_;
  std::int32_t stages_;
  std::int32_t first_;                     // least ranks of the first region
  std::int32_t base_;                      // ranks of a region
  std::int32_t num_long_ = 0;
  double total_ = 0;                       // rank-ticks of all items at their least sizes
  std::vector<std::int32_t> widest_need_;  // (items): most ranks that this or a later item needs
  std::vector<double> corrections_;        // (regions): ticks
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
