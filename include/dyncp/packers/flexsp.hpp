// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/item_table.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

namespace detail {

/// Distinct values among which levels are chosen; more are first rounded up to multiples of
/// 1/4096 of the largest.
inline constexpr std::size_t most_distinct_lengths = 4096;

/// Rounds falling values up to at most `count` levels so that the sum of what is added is least.
/// Returns the level of each value. Dynamic programming over d <= `most_distinct_lengths` distinct
/// values; the start of the last level never falls as values are added, so the scan goes on from
/// there. Complexity: O(values + count * d^2) at worst.
[[nodiscard]] inline std::vector<std::int64_t> round_up_to_levels(
    std::vector<std::int64_t> falling, std::size_t count) {
  std::size_t distinct = falling.empty() ? 0 : 1;
  for (std::size_t i = 1; i < falling.size(); ++i) distinct += falling[i] != falling[i - 1] ? 1 : 0;
  if (distinct > most_distinct_lengths) {
    const auto most = static_cast<std::int64_t>(most_distinct_lengths);
    const std::int64_t step = ceil_div(falling.front(), most);
    for (std::int64_t& v : falling) v = round_up(v, step);
  }
  std::vector<std::int64_t> values;    // distinct, falling
  std::vector<std::int64_t> how_many;  // (values)
  for (const std::int64_t v : falling) {
    if (values.empty() || values.back() != v) {
      values.push_back(v);
      how_many.push_back(0);
    }
    ++how_many.back();
  }
  const std::size_t d = values.size();
  if (d <= count) return falling;
  std::vector<int128> number(d + 1, 0);  // of values before
  std::vector<int128> total(d + 1, 0);
  for (std::size_t k = 0; k < d; ++k) {
    number[k + 1] = number[k] + how_many[k];
    total[k + 1] = total[k] + int128{values[k]} * how_many[k];
  }
  // best[q][k]: least added for values [0, k) in q levels; the last level is values[from[q][k]].
  constexpr int128 never = int128{1} << 120;
  std::vector<std::vector<int128>> best(count + 1, std::vector<int128>(d + 1, never));
  std::vector<std::vector<std::size_t>> from(count + 1, std::vector<std::size_t>(d + 1, 0));
  best[0][0] = 0;
  for (std::size_t q = 1; q <= count; ++q) {
    for (std::size_t k = 1; k <= d; ++k) {
      for (std::size_t j = from[q][k - 1]; j < k; ++j) {
        if (best[q - 1][j] == never) continue;
        const int128 added =
            best[q - 1][j] + values[j] * (number[k] - number[j]) - (total[k] - total[j]);
        if (added < best[q][k]) {
          best[q][k] = added;
          from[q][k] = j;
        }
      }
    }
  }
  std::vector<std::int64_t> level_of(d);
  std::size_t k = d;
  for (std::size_t q = count; k > 0; --q) {
    const std::size_t j = from[q][k];
    for (std::size_t i = j; i < k; ++i) level_of[i] = values[j];
    k = j;
  }
  std::vector<std::int64_t> levels;
  for (std::size_t i = 0; i < d; ++i) {
    levels.insert(levels.end(), static_cast<std::size_t>(how_many[i]), level_of[i]);
  }
  return levels;
}

}  // namespace detail

/// FlexSP's scheme: groups of several sizes in each micro-batch, so that the slowest is fast.
///
/// 1. Sequences, longest first, are cut into M consecutive chunks whose largest sum of tokens is
///    least: the micro-batches. Five values of M from Mmin = ceil(tokens / (R * limit)) on are
///    tried, a fifth of Mmin apart (at its authors' Mmin of about five, that is Mmin .. Mmin + 4).
/// 2. In a micro-batch, lengths are rounded up to 16 levels that add the fewest tokens; times are
///    those of rounded lengths, token limits those of real ones.
/// 3. Min-max: the least time d is sought by bisection for which first-fit succeeds: each sequence,
///    longest first, joins the smallest group (of those, the fullest in time) that stays within d
///    and the limit, or opens one of the least size that does; where ranks run out, again with the
///    smallest size left out. The original solves this step as a mixed-integer program; a heuristic
///    takes its place here.
/// 4. While ranks are left, the slowest group doubles if that is faster and they suffice.
/// 5. The M of least summed times is taken. Its authors run no pipeline: neither M nor the order
///    knows of one. When chunks hold too much for step 3 at each M, M goes on growing.
/// Sizes are the allowed powers of two. Ranks may stay idle.
/// Errors: sequence_too_long, infeasible for an atomic group; unsupported without a power of two
/// among the sizes; not_found for a fixed M at which step 3 fails.
/// Source: FlexSP (ASPLOS 2025), by its description. Complexity: O(n * R * log) for each M.
struct flexsp {
  static constexpr std::string_view name = "flexsp";
  static constexpr std::size_t levels = 16;

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost& cost) const {
    problem powers = prob;
    powers.parallel.cp_sizes = allowed_cp_sizes(prob.parallel);
    std::erase_if(powers.parallel.cp_sizes, [](std::int32_t c) { return !is_power_of_two(c); });
    if (powers.parallel.cp_sizes.empty()) {
      return make_error(errc::unsupported, "flexsp needs a power of two among the CP sizes",
                        "add one to --cp-sizes");
    }
    auto items = detail::make_items(powers, cost);
    if (!items) return items.error();
    const builder<Cost> build(powers, cost, *items);
    const std::int64_t multiple = micro_batch_multiple(prob);
    const auto most = round_up(items->count(), multiple);
    const bool fixed = prob.limits.micro_batches > 0;
    std::optional<chunked> best;
    const std::int64_t first = fixed ? prob.limits.micro_batches : build.least();
    const std::int64_t step = std::max<std::int64_t>(1, first / 5);
    std::int64_t m = round_up(first, multiple);
    for (std::int32_t tries = 0;; ++tries) {
      std::optional<chunked> made = build.at(m);
      if (made && (!best || made->sum < best->sum)) best = std::move(made);
      if (fixed || m >= most || (tries >= 4 && best)) break;
      m = std::min(most, round_up(m + (tries < 4 ? step : std::max(step, m / 8)), multiple));
    }
    if (!best) {
      return error{errc::not_found,
                   "flexsp finds no groups for " + std::to_string(m) + " micro-batches", m, 0,
                   "raise --micro-batches or let the packer choose"};
    }
    return detail::settle(prob, std::move(best->made), name);
  }

 private:
  struct chunked {
    plan made;
    ticks sum = 0;
  };
  struct group {
    std::int32_t size = 0;  // index of the CP size
    load rounded;           // for times
    std::int64_t tokens = 0;
    std::int64_t count = 0;
    ticks time = 0;
    std::vector<std::int32_t> members;  // items
  };

  template <cost_model Cost>
  class builder {
   public:
    builder(const problem& prob, const Cost& cost, const detail::item_table& items)
        : prob_(prob), cost_(cost), items_(items), order_(static_cast<std::size_t>(items.count())) {
      std::iota(order_.begin(), order_.end(), 0);
      std::stable_sort(order_.begin(), order_.end(),
                       [&](std::int32_t a, std::int32_t b) { return tokens(a) > tokens(b); });
    }

    [[nodiscard]] std::int64_t least() const {
      int128 sum = 0;
      for (const std::int32_t i : order_) sum += tokens(i);
      const int128 step = int128{prob_.limits.max_tokens_per_rank} * prob_.parallel.ranks;
      return std::max<std::int64_t>(1, static_cast<std::int64_t>((sum + step - 1) / step));
    }

    [[nodiscard]] std::optional<chunked> at(std::int64_t m) const {
      chunked out{detail::blank_plan(prob_), 0};
      for (const auto& [from, to] : chunks(m)) {
        std::optional<std::vector<group>> groups = min_max(from, to);
        if (!groups) return std::nullopt;
        ticks slowest = 0;
        for (const group& g : *groups) slowest = std::max(slowest, g.time);
        out.sum += slowest;
        out.made.micro_batches.push_back(lay_out(*groups));
      }
      return out;
    }

   private:
    [[nodiscard]] std::int64_t tokens(std::int32_t item) const {
      return items_.load_of(item, 0).tokens;
    }
    [[nodiscard]] std::int32_t size_of(std::int32_t k) const {
      return items_.sizes[static_cast<std::size_t>(k)];
    }

    // Positions [from, to) of order_, at most m chunks of the least largest sum.
    [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> chunks(std::int64_t m) const {
      std::int64_t low = 0;
      std::int64_t high = 0;
      for (const std::int32_t i : order_) {
        low = std::max(low, tokens(i));
        high += tokens(i);
      }
      const auto cut = [&](std::int64_t most) {
        std::vector<std::pair<std::size_t, std::size_t>> parts;
        std::int64_t sum = 0;
        for (std::size_t i = 0; i < order_.size(); ++i) {
          if (parts.empty() || sum + tokens(order_[i]) > most) {
            parts.emplace_back(i, i);
            sum = 0;
          }
          sum += tokens(order_[i]);
          parts.back().second = i + 1;
        }
        return parts;
      };
      while (low < high) {
        const std::int64_t middle = low + (high - low) / 2;
        if (static_cast<std::int64_t>(cut(middle).size()) <= m) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      return cut(low);
    }

    [[nodiscard]] ticks price(const load& l, std::int32_t k) const {
      const std::int32_t node = ranks_per_node(prob_.cluster.gpus_per_node, prob_.parallel);
      const link over = size_of(k) <= node ? link::nvlink : link::network;
      return cost_.cost(l, size_of(k), over, cost_.bottleneck_class()).total();
    }

    [[nodiscard]] std::optional<std::vector<group>> min_max(std::size_t from,
                                                            std::size_t to) const {
      std::vector<std::int64_t> lengths;
      for (std::size_t i = from; i < to; ++i) lengths.push_back(tokens(order_[i]));
      const std::vector<std::int64_t> rounded = detail::round_up_to_levels(lengths, levels);
      std::optional<std::vector<group>> best =
          first_fit(from, rounded, std::numeric_limits<ticks>::max());
      if (!best) return std::nullopt;
      ticks low = 0;
      ticks high = 0;
      for (const group& g : *best) high = std::max(high, g.time);
      // Half a percent is close enough: rounding to levels is coarser.
      while (low + high / 256 < high) {
        const ticks middle = low + (high - low) / 2;
        std::optional<std::vector<group>> made = first_fit(from, rounded, middle);
        if (made) {
          best = std::move(made);
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      widen(*best);
      return best;
    }

    [[nodiscard]] bool holds(const group& g, std::int32_t item) const {
      const load& l = items_.load_of(item, g.size);
      const std::int32_t c = size_of(g.size);
      const std::int32_t cap = prob_.limits.max_sequences_per_pack;
      return padded_pack_tokens(prob_.padding, c, g.tokens + l.tokens) <= pack_capacity(prob_, c) &&
             (cap == 0 || g.count + l.count <= cap);
    }

    // An item's load with its tokens rounded up to the level of its chunk.
    [[nodiscard]] load rounded_load(std::int32_t item, std::int64_t level, std::int32_t k) const {
      load l = items_.load_of(item, k);
      const std::int64_t more = std::max<std::int64_t>(0, level - tokens(item));
      l.squares += more * (2 * l.tokens + more);
      l.tokens += more;
      return l;
    }

    [[nodiscard]] std::optional<std::vector<group>> first_fit(
        std::size_t from, const std::vector<std::int64_t>& rounded, ticks most) const {
      for (std::int32_t least = 0; least < items_.num_sizes(); ++least) {
        auto made = first_fit(from, rounded, most, least);
        if (made) return made;
      }
      return std::nullopt;
    }

    [[nodiscard]] std::optional<std::vector<group>> first_fit(
        std::size_t from, const std::vector<std::int64_t>& rounded, ticks most,
        std::int32_t least) const {
      std::vector<group> groups;
      std::int32_t free = prob_.parallel.ranks;
      for (std::size_t i = 0; i < rounded.size(); ++i) {
        const std::int32_t item = order_[from + i];
        group* best = nullptr;
        ticks best_time = 0;
        for (group& g : groups) {
          if (best != nullptr &&
              (g.size > best->size || (g.size == best->size && g.time <= best->time))) {
            continue;
          }
          if (g.time >= most || !holds(g, item)) continue;
          const ticks t = price(g.rounded + rounded_load(item, rounded[i], g.size), g.size);
          if (t > most) continue;
          best = &g;
          best_time = t;
        }
        if (best == nullptr) {
          group fresh;
          for (fresh.size = least; fresh.size < items_.num_sizes(); ++fresh.size) {
            if (size_of(fresh.size) > free || !holds(fresh, item)) continue;
            best_time = price(rounded_load(item, rounded[i], fresh.size), fresh.size);
            if (best_time <= most) break;
          }
          if (fresh.size == items_.num_sizes()) return std::nullopt;
          free -= size_of(fresh.size);
          groups.push_back(std::move(fresh));
          best = &groups.back();
        }
        best->rounded += rounded_load(item, rounded[i], best->size);
        best->tokens += items_.load_of(item, best->size).tokens;
        best->count += items_.load_of(item, best->size).count;
        best->time = best_time;
        best->members.push_back(item);
      }
      return groups;
    }

    // Step 4.
    void widen(std::vector<group>& groups) const {
      std::int32_t free = prob_.parallel.ranks;
      for (const group& g : groups) free -= size_of(g.size);
      for (;;) {
        group& slowest =
            *std::max_element(groups.begin(), groups.end(),
                              [](const group& a, const group& b) { return a.time < b.time; });
        const std::int32_t k = slowest.size + 1;
        if (k >= items_.num_sizes() || size_of(k) - size_of(slowest.size) > free) return;
        std::int64_t sum = 0;
        for (const std::int32_t i : slowest.members) sum += items_.load_of(i, k).tokens;
        const bool fits =
            padded_pack_tokens(prob_.padding, size_of(k), sum) <= pack_capacity(prob_, size_of(k));
        const ticks t = price(slowest.rounded, k);
        if (!fits || t >= slowest.time) return;
        free -= size_of(k) - size_of(slowest.size);
        slowest.size = k;
        slowest.time = t;
      }
    }

    // Falling sizes from rank 0 on: powers of two are then aligned.
    [[nodiscard]] micro_batch lay_out(std::vector<group>& groups) const {
      std::stable_sort(groups.begin(), groups.end(),
                       [](const group& a, const group& b) { return a.size > b.size; });
      micro_batch mb;
      std::int32_t begin = 0;
      for (const group& g : groups) {
        dyncp::pack pk{{begin, size_of(g.size)}, {}};
        for (const std::int32_t i : g.members) {
          const auto members = items_.members_of(i);
          pk.sequences.insert(pk.sequences.end(), members.begin(), members.end());
        }
        mb.packs.push_back(std::move(pk));
        begin += size_of(g.size);
      }
      return mb;
    }

    const problem& prob_;
    const Cost& cost_;
    const detail::item_table& items_;
    std::vector<std::int32_t> order_;  // items by falling tokens
  };
};

}  // namespace v0
}  // namespace dyncp
