// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/packers/item_table.hpp>

#include <algorithm>
#include <cmath>
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
  double correction = 0;            // ticks: simulated minus estimated time, of earlier rounds
};

/// Share of (p-1) * peak that a pipeline with work x * peak a rank adds as bubble: close to 1
/// while the peak dominates, 0.52 for long batches with ramps (a linear program over divisible
/// work, p = 8, b = 3f; the exponential is a fit to it, within 0.06).
[[nodiscard]] inline double bubble_share(double x, std::int32_t stages) noexcept {
  return 0.52 + rounded_product(0.48, std::exp(-1.6 * x / stages));
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
  region_splitter(const item_table& items, std::int32_t ranks, std::int32_t per_node,
                  std::int32_t stages)
      : items_(items), ranks_(ranks), stages_(stages) {
    base_ = std::min(ranks, per_node);
    const std::int32_t widest = items.sizes[static_cast<std::size_t>(
        *std::max_element(items.least_size.begin(), items.least_size.end()))];
    // Groups across nodes of an odd size, or sizes that no power of two covers: one region.
    if (widest > base_ && (!is_power_of_two(base_) || !is_power_of_two(widest))) base_ = ranks;
    if (items.sizes.front() > base_) base_ = ranks;
    best_.reserve(static_cast<std::size_t>(items.count()));
    for (std::int32_t i = 0; i < items.count(); ++i) {
      std::int32_t k = items.least_size[static_cast<std::size_t>(i)];
      best_.push_back(k);
      total_ += static_cast<double>(items.time_alone(i, k)) *
                items.sizes[static_cast<std::size_t>(k)];
    }
    corrections_.assign(static_cast<std::size_t>(ranks / base_ + 1), 0.0);
  }

  /// The shares for the corrections so far. O(items + log(1/eps) * (longs + regions)).
  [[nodiscard]] std::vector<region_share> split(double long_share) {
    std::vector<region_share> shares;
    if (base_ >= ranks_) {
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
    double high = 2.0 * average + 4.0 * stages_ * time_at(0, items_.sizes.back());
    for (int step = 0; step < 24; ++step) {
      const double middle = 0.5 * (low + high);
      (assign_longs(middle, long_share, shares) ? high : low) = middle;
    }
    while (!assign_longs(high, long_share, shares)) high *= 1.25;
    assign_shorts(shares);
    for (region_share& s : shares) std::sort(s.items.begin(), s.items.end());
    return shares;
  }

  /// Feeds back what the simulator found for the shares of the last split.
  void correct(std::size_t region, double simulated_minus_mean) {
    if (region < corrections_.size()) corrections_[region] += simulated_minus_mean;
  }

  [[nodiscard]] bool single() const noexcept { return base_ >= ranks_; }

 private:
  // Time of an item on the best size of at most `ranks` ranks.
  [[nodiscard]] double time_at(std::int32_t item, std::int32_t ranks) const noexcept {
    std::int32_t k = items_.least_size[static_cast<std::size_t>(item)];
    ticks best = items_.time_alone(item, k);
    for (++k; k < items_.num_sizes() && items_.sizes[static_cast<std::size_t>(k)] <= ranks; ++k) {
      best = std::min(best, items_.time_alone(item, k));
    }
    return static_cast<double>(best);
  }
  [[nodiscard]] double work_of(std::int32_t item) const noexcept {
    const std::int32_t k = best_[static_cast<std::size_t>(item)];
    return static_cast<double>(items_.time_alone(item, k)) *
           items_.sizes[static_cast<std::size_t>(k)];
  }
  [[nodiscard]] bool is_long(std::int32_t item, double average) const noexcept {
    return time_at(item, base_) * 64.0 > average ||
           items_.sizes[static_cast<std::size_t>(
               items_.least_size[static_cast<std::size_t>(item)])] > base_ / 2;
  }

  // Work a rank that brings a region with this peak to time `target`.
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

  // Longest first into the first regions; true when what is left fits the quotas.
  bool assign_longs(double target, double long_share, std::vector<region_share>& shares) {
    shares.clear();
    std::int32_t at = 0;
    std::int32_t next = 0;
    double room = 0;
    double left = total_;
    while (at < ranks_) {
      region_share share;
      std::int32_t size = base_;
      if (next < num_long_) {
        size = std::max(
            size, items_.sizes[static_cast<std::size_t>(
                      items_.least_size[static_cast<std::size_t>(next)])]);
      }
      share.ranks = {at, std::min(size, ranks_ - at)};
      const bool fits_first =
          next < num_long_ && size <= share.ranks.size && next < items_.count();
      share.peak = next < items_.count() ? time_at(next, share.ranks.size) : 0.0;
      share.correction = corrections_[std::min(shares.size(), corrections_.size() - 1)];
      const double capacity =
          quota(target, share.peak, share.correction) * share.ranks.size;
      if (fits_first) {
        double used = 0;
        while (next < num_long_ && needed(next) <= share.ranks.size &&
               (share.items.empty() || used + work_of(next) <= long_share * capacity)) {
          used += work_of(next);
          share.items.push_back(next);
          ++next;
        }
        share.work = used;
        left -= used;
      }
      share.correction = capacity;  // reused below as the capacity
      room += std::max(0.0, capacity - share.work);
      at += share.ranks.size;
      shares.push_back(std::move(share));
    }
    return next == num_long_ && room >= left;
  }

  [[nodiscard]] std::int32_t needed(std::int32_t item) const noexcept {
    return items_.sizes[static_cast<std::size_t>(
        items_.least_size[static_cast<std::size_t>(item)])];
  }

  // The rest, longest first, each to the region with the most room a rank.
  void assign_shorts(std::vector<region_share>& shares) {
    std::vector<std::pair<double, std::int32_t>> room;
    for (std::size_t k = 0; k < shares.size(); ++k) {
      room.emplace_back((shares[k].correction - shares[k].work) / shares[k].ranks.size,
                        -static_cast<std::int32_t>(k));
    }
    std::make_heap(room.begin(), room.end());
    for (std::int32_t i = num_long_; i < items_.count(); ++i) {
      std::pop_heap(room.begin(), room.end());
      auto& [left, minus_k] = room.back();
      region_share& share = shares[static_cast<std::size_t>(-minus_k)];
      share.items.push_back(i);
      share.work += work_of(i);
      left -= work_of(i) / share.ranks.size;
      std::push_heap(room.begin(), room.end());
    }
  }

  const item_table& items_;
  std::int32_t ranks_;
  std::int32_t stages_;
  std::int32_t base_ = 1;
  std::int32_t num_long_ = 0;
  double total_ = 0;  // rank-ticks of all items at their least sizes
  std::vector<std::int32_t> best_;  // (items): size whose work is counted
  std::vector<double> corrections_; // (regions)
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
