// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// One lower bound on the makespan, by the resource that binds.
struct lower_bound {
  std::string_view name;
  ticks value = 0;
};

/// Bounds that hold for every plan of a batch that `validate` accepts, whatever its M.
struct certificate {
  std::vector<lower_bound> bounds;

  /// The largest, which is the certificate of a plan.
  [[nodiscard]] lower_bound binding() const {
    lower_bound best{"none", 0};
    for (const lower_bound& b : bounds) {
      if (b.value > best.value) best = b;
    }
    return best;
  }
};

namespace detail {

template <cost_model Cost>
class bound_calculator {
 public:
  bound_calculator(const problem& prob, const Cost& cost)
      : prob_(prob),
        cost_(growing(cost)),
        pipe_{prob.parallel.pp, prob.parallel.vpp},
        sums_(sum_lengths(prob.sequences)),
        sizes_(allowed_cp_sizes(prob.parallel)),
        per_node_(ranks_per_node(prob.cluster.gpus_per_node, prob.parallel)) {
    for (const sequence& s : prob.sequences) {
      if (longest_.length < s.length) longest_ = s;
      if (shortest_.length == 0 || shortest_.length > s.length) shortest_ = s;
    }
  }

  [[nodiscard]] certificate all() const {
    certificate c;
    c.bounds.push_back({"path", path(longest_)});
    c.bounds.push_back({"memory", memory()});
    c.bounds.push_back({"inflight", inflight()});
    if constexpr (requires { cost_.work_floor_s(0.0, 0.0, 0); }) {
      c.bounds.push_back({"area", area()});
      c.bounds.push_back({"link", link_area()});
    }
    return c;
  }

  // Some slot holds at least the average work; its pack passes all stages both ways.
  [[nodiscard]] ticks slots(std::int32_t m) const {
    if constexpr (requires { cost_.work_floor_s(0.0, 0.0, 0); }) {
      double all_stages = 0;
      for (std::int32_t vs = 0; vs < pipe_.stages * pipe_.chunks; ++vs) {
        all_stages += work_s(cost_.stage_class(vs));
      }
      return less_rounding(all_stages / (rank_count() * m));
    } else {
      return 0;
    }
  }

  [[nodiscard]] const std::vector<std::int32_t>& sizes() const noexcept { return sizes_; }

  // The longest sequence alone on the best link of a group of c ranks; nothing if it does not fit.
  [[nodiscard]] std::optional<op_cost> longest_alone(std::int32_t c,
                                                     std::int32_t stage_class) const {
    if (!fits(longest_, c)) return std::nullopt;
    return cheapest(sequence_load(longest_.length, alignment(prob_.padding, c)), c, stage_class);
  }

  // Packs that the busiest rank runs at least: a rank holds at most the limit in each.
  [[nodiscard]] std::int64_t packs_per_rank() const {
    const int128 room = int128{prob_.limits.max_tokens_per_rank} * prob_.parallel.ranks;
    return static_cast<std::int64_t>(
        std::min<int128>((sums_.tokens + room - 1) / room, std::numeric_limits<int>::max()));
  }

  // Rank-seconds of the batch on one virtual stage.
  [[nodiscard]] double work_s(std::int32_t stage_class) const {
    return cost_.work_floor_s(static_cast<double>(sums_.tokens),
                              static_cast<double>(sums_.squares), stage_class);
  }

  [[nodiscard]] double fixed_s() const { return cost_.fixed_floor_s(); }

 private:
  // Ticks of a sum of real costs, less what rounding may take from it: 1e-9 of the doubles and
  // half a tick of every operation, of which a rank runs at most two a sequence and virtual stage.
  [[nodiscard]] ticks less_rounding(double seconds) const {
    const ticks sum = to_ticks(std::min(max_operation_s, seconds * (1.0 - 1e-9)));
    return std::max<ticks>(0, sum - sums_.count * pipe_.chunks - 2 * pipe_.stages * pipe_.chunks);
  }
  [[nodiscard]] double rank_count() const { return prob_.parallel.ranks; }

  [[nodiscard]] static Cost growing(const Cost& cost) {
    if constexpr (requires { cost.at_full_attention_rate(); }) {
      return cost.at_full_attention_rate();
    } else {
      return cost;
    }
  }

  // Whatever link a group of c ranks may come to lie on.
  [[nodiscard]] op_cost cheapest(const load& l, std::int32_t c, std::int32_t stage_class) const {
    const op_cost far = cost_.cost(l, c, link::network, stage_class);
    if (c > per_node_) return far;
    const op_cost near = cost_.cost(l, c, link::nvlink, stage_class);
    return {std::min(near.forward, far.forward), std::min(near.backward, far.backward), 0};
  }
  [[nodiscard]] bool fits(const sequence& s, std::int32_t c) const {
    const std::int64_t padded = padded_length(s.length, alignment(prob_.padding, c));
    return padded_pack_tokens(prob_.padding, c, padded) <= pack_capacity(prob_, c);
  }

  // A sequence passes p stages forward and backward, at its best size. Costs grow with the load, so
  // nothing that is packed with it makes it faster.
  [[nodiscard]] ticks path(const sequence& s) const {
    ticks best = std::numeric_limits<ticks>::max();
    for (const std::int32_t c : sizes_) {
      if (!fits(s, c)) continue;
      const load alone = sequence_load(s.length, alignment(prob_.padding, c));
      ticks sum = 0;
      for (std::int32_t vs = 0; vs < pipe_.stages * pipe_.chunks; ++vs) {
        sum += cheapest(alone, c, cost_.stage_class(vs)).total();
      }
      best = std::min(best, sum);
    }
    return best == std::numeric_limits<ticks>::max() ? 0 : best;
  }

  // Least forward and backward of any pack, on any stage: that of the shortest sequence alone.
  [[nodiscard]] op_cost smallest() const {
    op_cost least{std::numeric_limits<ticks>::max(), std::numeric_limits<ticks>::max(), 0};
    for (const std::int32_t c : sizes_) {
      if (!fits(shortest_, c)) continue;
      const load l = sequence_load(shortest_.length, alignment(prob_.padding, c));
      for (std::int32_t k = 0; k < cost_.stage_classes(); ++k) {
        const op_cost cost = cheapest(l, c, k);
        least.forward = std::min(least.forward, cost.forward);
        least.backward = std::min(least.backward, cost.backward);
      }
    }
    return least.forward == std::numeric_limits<ticks>::max() ? op_cost{} : least;
  }

  // A token is in flight on stage 0 for at least its sequence's way through all stages, and at most
  // R*B are at once. Of sequences alike in length the shortest stands for all: 256 ways are priced.
  [[nodiscard]] ticks inflight() const {
    const std::int64_t budget = prob_.limits.max_inflight_tokens;
    if (budget == 0 || pipe_.chunks > 1) return 0;
    std::vector<std::int64_t> lengths;
    lengths.reserve(prob_.sequences.size());
    for (const sequence& s : prob_.sequences) lengths.push_back(s.length);
    std::sort(lengths.begin(), lengths.end());
    const std::size_t step = (lengths.size() + 255) / 256;
    int128 held = 0;  // tokens * ticks
    for (std::size_t first = 0; first < lengths.size(); first += step) {
      sequence shortest;
      shortest.length = lengths[first];
      int128 tokens = 0;
      for (std::size_t i = first; i < std::min(first + step, lengths.size()); ++i) {
        tokens += lengths[i];
      }
      held += tokens * path(shortest);
    }
    return static_cast<ticks>(held / (int128{budget} * prob_.parallel.ranks));
  }

  // That many of the smallest packs through the pipeline, fill and drain included.
  [[nodiscard]] ticks memory() const {
    const op_cost least = smallest();
    return least.total() * (packs_per_rank() * pipe_.chunks + pipe_.stages - 1);
  }

  // Work of the last stage shared evenly, fixed times of the packs that memory forces, and the
  // smallest pack's way through the other stages before the first and after the last operation.
  [[nodiscard]] ticks area() const {
    double busy = 0;
    for (std::int32_t v = 0; v < pipe_.chunks; ++v) {
      busy += work_s(cost_.stage_class(v * pipe_.stages + pipe_.stages - 1));
    }
    const double rank_packs = static_cast<double>(sums_.tokens) /
                              static_cast<double>(prob_.limits.max_tokens_per_rank);
    busy += rounded_product(cost_.fixed_floor_s() * pipe_.chunks, rank_packs);
    const op_cost least = smallest();
    return less_rounding(busy / rank_count()) + (pipe_.stages - 1) * least.total();
  }

  // Sequences that no smaller group holds send their keys and values around a ring.
  [[nodiscard]] ticks link_area() const {
    double busy = 0;
    for (const sequence& s : prob_.sequences) {
      std::int32_t least = 0;
      for (const std::int32_t c : sizes_) {
        if (fits(s, c)) {
          least = c;
          break;
        }
      }
      const std::int32_t c = std::max(1, least);
      const double far = cost_.ring_floor_s(static_cast<double>(s.length), c, link::network, 0);
      const double near = cost_.ring_floor_s(static_cast<double>(s.length), c, link::nvlink, 0);
      busy += c > per_node_ ? far : std::min(near, far);
    }
    return less_rounding(busy * pipe_.chunks / rank_count());
  }

  const problem& prob_;
  Cost cost_;  // grows with the load and is never above the cost of the plan
  pipeline pipe_;
  length_sums sums_;
  std::vector<std::int32_t> sizes_;
  std::int32_t per_node_;
  sequence longest_;
  sequence shortest_;
};

}  // namespace detail

/// Lower bounds on the makespan of any admissible plan, at every M:
///   path    p stages times forward + backward of the longest sequence at its best size
///   area    all work at full efficiency, shared by all ranks, plus forced fixed times, plus the
///           fill and drain of the smallest pack
///   memory  the least number of packs of the busiest rank, each as small as any
///   inflight  under max_inflight_tokens, plain 1F1B: each token's time on stage 0, at least its
///           sequence's path, of what R ranks may hold at once
///   link    matrix work plus the ring bytes of sequences that need several ranks
/// Proofs in docs/algorithms.md. Requires a problem that `can_plan`. Complexity: O(n * sizes).
template <cost_model Cost>
[[nodiscard]] certificate lower_bounds(const problem& prob, const Cost& cost) {
  return detail::bound_calculator<Cost>(prob, cost).all();
}

/// The bound for plans with exactly M micro-batches: the certificate, or the average slot's way
/// through all stages where that is longer.
template <cost_model Cost>
[[nodiscard]] lower_bound bound_at(const problem& prob, const Cost& cost, std::int32_t m) {
  const detail::bound_calculator<Cost> calculator(prob, cost);
  lower_bound best = calculator.all().binding();
  const ticks slot = calculator.slots(m);
  if (slot > best.value) best = {"slots", slot};
  return best;
}

}  // namespace v0
}  // namespace dyncp
