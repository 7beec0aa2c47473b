// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The solver of Megatron-LM pull request 2959, the code behind the Dynamic-CP article.
///
/// For M = pp * 1 .. pp * 6 (or the fixed M), with F the FLOPs of a sequence and the quota
/// W = sum(F) / (R * M), one and the same for every rank and micro-batch:
/// 1. Sequences go by falling F. Those over 1.3 W are "except": each takes one slot on c ranks, c
///    the power of two nearest (by logarithm) to ceil(F / W), at most max_cp and R. It gets the
///    first aligned block of c ranks whose fewest free slots are most, halving c if there is none
///    (or if the size is not allowed).
/// 2. Its group is topped up: going through the short ones by falling F, one is added when F is at
///    most 1.05 of what is missing to c * W and the tokens stay below limit * c.
/// 3. Every free slot is a bucket of one rank. Each remaining sequence, by falling F, goes to the
///    bucket of least F among those whose tokens stay within the average of all buckets.
/// 4. What fits none goes, afterwards and in the same order, to the bucket whose tokens end up
///    closest to the average, whatever the limit.
/// 5. Buckets, by rising F, go to the rank of least F so far that has a free slot. So each rank runs
///    its except groups first and then its lightest bucket.
/// 6. Each rank is simulated alone; the M with the least makespan of the slowest rank wins.
///
/// Kept as they are: FLOPs are the only cost, the average of step 3 is not the limit, long
/// sequences come first, which is the worst order for a pipeline. Not kept: the crash on a list of
/// M, and constants that its code takes from a model with grouped queries (F counts exact FLOPs).
/// Step 6 was found by comparison with recorded runs, since its description leaves it open: the
/// interleaved schedule with one chunk, 2(p-1-i) warm-up forwards on stage i (all when M = p),
/// backward 2.7 times the matrix and 2.77 times the attention FLOPs, and a group of c ranks takes
/// (1 + 0.09 (c-1)) / c of its FLOPs. Given M, steps 1 to 5 reproduce the recorded plans; step 6
/// picks the recorded M in all twelve.
/// A plan may break the token limit (steps 1 and 4); the validator then calls it invalid.
/// Errors: unsupported when cp 1 is not allowed, for atomic groups, and when (n + R) * R * M passes
/// `most_steps` at every M, since every sequence is compared with every slot; not_found when the
/// micro-batches have too few slots at every M.
/// Source: Megatron-LM pull request 2959, by its description.
/// Ties: lowest index first. Integer arithmetic. Complexity: O(n * R * M) for each M.
struct three_stage_2959 {
  static constexpr std::string_view name = "three_stage_2959";
  static constexpr std::int64_t most_steps = std::int64_t{1} << 30;  ///< at one M

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    if (auto ok = detail::check_no_atoms(prob, name); !ok) return ok.error();
    if (!detail::size_allowed(prob.parallel, 1)) {
      return error{errc::unsupported, "three_stage_2959 packs short sequences at cp 1",
                   prob.parallel.min_cp, 1, "allow cp 1 (--min-cp 1)"};
    }
    const solver solve(prob);
    std::optional<schedule> best;
    bool too_large = true;
    for (const std::int32_t m : candidates(prob)) {
      const auto n = static_cast<std::int64_t>(prob.sequences.size());
      if (int128{m} * prob.parallel.ranks * (n + prob.parallel.ranks) > most_steps) continue;
      too_large = false;
      std::optional<schedule> made = solve.at(m);
      if (made && (!best || made->makespan < best->makespan)) best = std::move(made);
    }
    if (too_large) {
      return make_error(errc::unsupported,
                        "three_stage_2959 compares all sequences with all slots: too many here",
                        "choose dynamic_cp, or a smaller batch");
    }
    if (!best) {
      return error{errc::not_found, "three_stage_2959 finds too few slots at every M",
                   static_cast<std::int64_t>(prob.sequences.size()),
                   6 * std::int64_t{prob.parallel.pp} * prob.parallel.ranks,
                   "use more micro-batches (--micro-batches) or ranks"};
    }
    return detail::settle(prob, solve.to_plan(*best), name);
  }

 private:
  // What a rank runs in one micro-batch; a group's ranks share one.
  struct slot {
    std::int32_t begin = 0;
    std::int32_t size = 1;
    std::int64_t tokens = 0;
    int128 linear = 0;     // FLOPs
    int128 attention = 0;  // FLOPs
    std::vector<std::int32_t> sequences;

    [[nodiscard]] int128 flops() const noexcept { return linear + attention; }
  };
  struct schedule {
    std::int32_t micro_batches = 0;
    std::vector<slot> slots;
    std::vector<std::vector<std::int32_t>> of_rank;  // (R, <= M): indices into slots, in order
    int128 makespan = 0;
  };

  static std::vector<std::int32_t> candidates(const problem& prob) {
    if (prob.limits.micro_batches > 0) return {prob.limits.micro_batches};
    std::vector<std::int32_t> all;
    const std::int32_t multiple = micro_batch_multiple(prob);
    for (std::int32_t i = 1; i <= 6; ++i) {
      const std::int32_t m = i * prob.parallel.pp;
      if (m % multiple == 0) all.push_back(m);
    }
    if (all.empty()) {
      all.push_back(static_cast<std::int32_t>(
          least_common_multiple(multiple, prob.parallel.pp)));
    }
    return all;
  }

  class solver {
   public:
    explicit solver(const problem& prob)
        : prob_(prob),
          ranks_(prob.parallel.ranks),
          pp_(prob.parallel.pp),
          linear_per_token_(std::llround(2.0 * active_parameters_per_layer(prob.model))),
          attention_per_square_(std::llround(attention_flops_per_square(prob.model))),
          order_(detail::longest_first(prob)) {
      for (const std::int32_t c : allowed_cp_sizes(prob.parallel)) {
        if (is_power_of_two(c)) sizes_.push_back(c);
      }
      max_size_ = sizes_.back();
      for (const std::int32_t i : order_) total_ += flops(i);
    }

    [[nodiscard]] std::optional<schedule> at(std::int32_t m) const {
      schedule s;
      s.micro_batches = m;
      s.of_rank.resize(static_cast<std::size_t>(ranks_));
      std::vector<std::int32_t> shorts;
      std::vector<std::int32_t> except;
      for (const std::int32_t i : order_) {
        (10 * flops(i) * ranks_ * m > 13 * total_ ? except : shorts).push_back(i);
      }
      for (const std::int32_t i : except) {
        if (!place_except(s, i, shorts)) return std::nullopt;
      }
      if (!fill_buckets(s, shorts)) return std::nullopt;
      s.makespan = slowest_rank(s);
      return s;
    }

    [[nodiscard]] plan to_plan(const schedule& s) const {
      plan out = detail::blank_plan(prob_);
      out.micro_batches.resize(static_cast<std::size_t>(s.micro_batches));
      for (std::size_t r = 0; r < s.of_rank.size(); ++r) {
        for (std::size_t j = 0; j < s.of_rank[r].size(); ++j) {
          const slot& x = s.slots[static_cast<std::size_t>(s.of_rank[r][j])];
          if (x.begin != static_cast<std::int32_t>(r) || x.sequences.empty()) continue;
          out.micro_batches[j].packs.push_back({{x.begin, x.size}, x.sequences});
        }
      }
      return out;
    }

   private:
    [[nodiscard]] std::int64_t length(std::int32_t i) const {
      return prob_.sequences[static_cast<std::size_t>(i)].length;
    }
    [[nodiscard]] int128 linear(std::int32_t i) const {
      return int128{linear_per_token_} * length(i);
    }
    [[nodiscard]] int128 attention(std::int32_t i) const {
      return int128{attention_per_square_} * length(i) * length(i);
    }
    [[nodiscard]] int128 flops(std::int32_t i) const { return linear(i) + attention(i); }

    void add(slot& to, std::int32_t i) const {
      to.tokens += padded_length(length(i), alignment(prob_.padding, to.size));
      to.linear += linear(i);
      to.attention += attention(i);
      to.sequences.push_back(i);
    }

    // 2^round(log2(q)): q^2 against 2 * 4^k; they are never equal.
    static std::int32_t nearest_power_of_two(int128 q) {
      std::int32_t c = 1;
      while (q * q > 2 * int128{c} * c && c < (1 << 30)) c *= 2;
      return c;
    }

    [[nodiscard]] std::int32_t free_slots(const schedule& s, std::int32_t rank) const {
      return s.micro_batches -
             static_cast<std::int32_t>(s.of_rank[static_cast<std::size_t>(rank)].size());
    }

    // Steps 1 and 2. Sizes fall, so the ranks of a block have the same number of slots in use.
    [[nodiscard]] bool place_except(schedule& s, std::int32_t i,
                                    std::vector<std::int32_t>& shorts) const {
      const int128 share = flops(i) * ranks_ * s.micro_batches;
      const int128 quotas = (share + total_ - 1) / total_;
      const std::int32_t wanted = nearest_power_of_two(quotas);
      for (std::size_t k = sizes_.size(); k-- > 0;) {
        const std::int32_t c = sizes_[k];
        if (c > wanted) continue;
        std::int32_t best = -1;
        std::int32_t most = 0;
        for (std::int32_t at = 0; at + c <= ranks_; at += c) {
          std::int32_t fewest = s.micro_batches;
          for (std::int32_t r = at; r < at + c; ++r) fewest = std::min(fewest, free_slots(s, r));
          if (fewest > most) {
            most = fewest;
            best = at;
          }
        }
        if (best < 0) continue;
        slot group;
        group.begin = best;
        group.size = c;
        add(group, i);
        top_up(s, group, shorts);
        for (std::int32_t r = best; r < best + c; ++r) {
          s.of_rank[static_cast<std::size_t>(r)].push_back(
              static_cast<std::int32_t>(s.slots.size()));
        }
        s.slots.push_back(std::move(group));
        return true;
      }
      return false;
    }

    void top_up(const schedule& s, slot& group, std::vector<std::int32_t>& shorts) const {
      // In units of 1 / (R * M): what is missing to c quotas.
      const int128 unit = int128{ranks_} * s.micro_batches;
      int128 missing = total_ * group.size - group.flops() * unit;
      if (missing <= 0) return;
      const std::int64_t align = alignment(prob_.padding, group.size);
      std::erase_if(shorts, [&](std::int32_t i) {
        if (missing <= 0 || 100 * flops(i) * unit > 105 * missing ||
            group.tokens + padded_length(length(i), align) >=
                pack_capacity(prob_, group.size)) {
          return false;
        }
        missing -= flops(i) * unit;
        add(group, i);
        return true;
      });
    }

    // Steps 3 to 5.
    [[nodiscard]] bool fill_buckets(schedule& s, const std::vector<std::int32_t>& shorts) const {
      std::int64_t count = 0;
      for (std::int32_t r = 0; r < ranks_; ++r) count += free_slots(s, r);
      if (count == 0) return shorts.empty();
      int128 tokens = 0;
      const std::int64_t align = alignment(prob_.padding, 1);
      for (const std::int32_t i : shorts) tokens += padded_length(length(i), align);
      std::vector<slot> buckets(static_cast<std::size_t>(count));
      std::vector<std::int32_t> late;
      for (const std::int32_t i : shorts) {
        const std::int64_t padded = padded_length(length(i), align);
        slot* best = nullptr;
        int128 least = 0;
        for (slot& b : buckets) {
          if (int128{b.tokens + padded} * count > tokens) continue;
          if (best == nullptr || b.flops() < least) {
            best = &b;
            least = b.flops();
          }
        }
        if (best == nullptr) {
          late.push_back(i);
        } else {
          add(*best, i);
        }
      }
      for (const std::int32_t i : late) {
        const std::int64_t padded = padded_length(length(i), align);
        const auto distance = [&](const slot& b) {
          const int128 over = int128{b.tokens + padded} * count - tokens;
          return over < 0 ? -over : over;
        };
        add(*std::min_element(buckets.begin(), buckets.end(),
                              [&](const slot& a, const slot& b) {
                                return distance(a) < distance(b);
                              }),
            i);
      }
      std::stable_sort(buckets.begin(), buckets.end(),
                       [](const slot& a, const slot& b) { return a.flops() < b.flops(); });
      deal_buckets(s, buckets);
      return true;
    }

    void deal_buckets(schedule& s, std::vector<slot>& buckets) const {
      std::vector<int128> work(static_cast<std::size_t>(ranks_), 0);  // FLOPs * max_size_
      for (std::size_t r = 0; r < work.size(); ++r) {
        for (const std::int32_t k : s.of_rank[r]) {
          const slot& x = s.slots[static_cast<std::size_t>(k)];
          work[r] += x.flops() * (max_size_ / x.size);
        }
      }
      for (slot& b : buckets) {
        std::int32_t to = -1;
        for (std::int32_t r = 0; r < ranks_; ++r) {
          if (free_slots(s, r) > 0 && (to < 0 || work[static_cast<std::size_t>(r)] <
                                                     work[static_cast<std::size_t>(to)])) {
            to = r;
          }
        }
        work[static_cast<std::size_t>(to)] += b.flops() * max_size_;
        b.begin = to;
        s.of_rank[static_cast<std::size_t>(to)].push_back(
            static_cast<std::int32_t>(s.slots.size()));
        s.slots.push_back(std::move(b));
      }
    }

    // Step 6, in units of FLOPs / (10^4 * max_size_).
    [[nodiscard]] int128 slowest_rank(const schedule& s) const {
      int128 slowest = 0;
      std::vector<int128> forward;
      std::vector<int128> backward;
      for (const std::vector<std::int32_t>& row : s.of_rank) {
        forward.clear();
        backward.clear();
        for (const std::int32_t k : row) {
          const slot& x = s.slots[static_cast<std::size_t>(k)];
          const int128 share = (91 + 9 * x.size) * (max_size_ / x.size);
          forward.push_back(100 * x.flops() * share);
          backward.push_back((270 * x.linear + 277 * x.attention) * share);
        }
        slowest = std::max(slowest, makespan_alone(forward, backward));
      }
      return slowest;
    }

    [[nodiscard]] int128 makespan_alone(const std::vector<int128>& forward,
                                        const std::vector<int128>& backward) const {
      const std::size_t m = forward.size();
      const auto p = static_cast<std::size_t>(pp_);
      std::vector<int128> forward_end(p * m);
      std::vector<int128> backward_end(p * m);
      std::vector<int128> free(p, 0);
      std::vector<std::size_t> forwards(p, 0);
      std::vector<std::size_t> backwards(p, 0);
      const auto warm_up = [&](std::size_t i) { return m == p ? m : std::min(m, 2 * (p - 1 - i)); };
      for (std::size_t left = 2 * p * m; left > 0;) {
        for (std::size_t i = 0; i < p; ++i) {
          while (backwards[i] < m) {
            const std::size_t f = forwards[i];
            const std::size_t b = backwards[i];
            const bool go = f < m && (f < warm_up(i) || f - warm_up(i) == b);
            if (go ? i > 0 && forwards[i - 1] <= f
                   : (i + 1 < p ? backwards[i + 1] : forwards[i]) <= b) {
              break;  // its input has not come
            }
            const int128 ready = go ? (i > 0 ? forward_end[(i - 1) * m + f] : 0)
                                    : (i + 1 < p ? backward_end[(i + 1) * m + b] : 0);
            free[i] = std::max(free[i], ready) + (go ? forward[f] : backward[b]);
            (go ? forward_end[i * m + f] : backward_end[i * m + b]) = free[i];
            ++(go ? forwards : backwards)[i];
            --left;
          }
        }
      }
      return m == 0 ? 0 : *std::max_element(free.begin(), free.end());
    }

    const problem& prob_;
    std::int32_t ranks_;
    std::int32_t pp_;
    std::int64_t linear_per_token_;
    std::int64_t attention_per_square_;
    std::vector<std::int32_t> order_;  // by falling FLOPs
    int128 total_ = 0;
    std::vector<std::int32_t> sizes_;  // the allowed powers of two, 1 the first of them
    std::int32_t max_size_ = 1;
  };
};

}  // namespace v0
}  // namespace dyncp
