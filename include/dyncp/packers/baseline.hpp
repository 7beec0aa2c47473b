// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/inflight.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace detail {

// What the baselines share: small steps that all of them take before and after packing.

/// A plan of `prob` without micro-batches yet.
[[nodiscard]] inline plan blank_plan(const problem& prob) {
  return {prob.parallel.ranks, prob.limits.max_tokens_per_rank, prob.padding, {}};
}

/// Indices into the batch, longest sequence first, ties in batch order.
[[nodiscard]] inline std::vector<std::int32_t> longest_first(const problem& prob) {
  std::vector<std::int32_t> order(prob.sequences.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return prob.sequences[static_cast<std::size_t>(a)].length >
           prob.sequences[static_cast<std::size_t>(b)].length;
  });
  return order;
}

/// Positions 0 .. count-1, of things that fall in size, with the largest in the middle.
[[nodiscard]] inline std::vector<std::int32_t> largest_in_the_middle(std::int32_t count) {
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < count; i += 2) order.push_back(i);
  std::reverse(order.begin(), order.end());
  for (std::int32_t i = 1; i < count; i += 2) order.push_back(i);
  return order;
}

[[nodiscard]] inline bool size_allowed(const parallel_spec& parallel, std::int32_t c) {
  const std::vector<std::int32_t> sizes = allowed_cp_sizes(parallel);
  return std::binary_search(sizes.begin(), sizes.end(), c);
}

/// Static packers need their CP size among the allowed ones.
[[nodiscard]] inline result<void> check_static_cp(const problem& prob, std::string_view name) {
  if (size_allowed(prob.parallel, prob.parallel.static_cp)) return {};
  return error{errc::unsupported,
               std::string(name) + " packs at the static cp of " +
                   std::to_string(prob.parallel.static_cp) + ", which is not an allowed size",
               prob.parallel.static_cp, effective_max_cp(prob.parallel),
               "choose --cp among the allowed sizes"};
}

/// For packers whose originals place single sequences and would tear a preference pair apart.
[[nodiscard]] inline result<void> check_no_atoms(const problem& prob, std::string_view name) {
  for (const sequence& s : prob.sequences) {
    if (s.atom < 0) continue;
    return error{errc::unsupported,
                 std::string(name) + " knows no atomic groups; sequence " + std::to_string(s.id) +
                     " belongs to one",
                 s.atom, 0, "choose a packer that keeps them whole, such as dynamic_cp"};
  }
  return {};
}

/// Puts packs in rank order and adds flagged empty micro-batches up to the fixed number or the
/// next multiple: in front, since an idle tail makes each backward wait for the one before on the
/// stage before. Errors: not_found when the packer's plan misses a wish that it cannot meet: the
/// fixed M, no idle ranks, one CP size a micro-batch, or the tokens in flight.
[[nodiscard]] inline result<plan> settle(const problem& prob, plan p, std::string_view name) {
  const plan_limits& limits = prob.limits;
  const auto missed = [&](const std::string& what, std::int64_t value, std::int64_t limit,
                          const char* hint) {
    return error{errc::not_found, std::string(name) + " " + what, value, limit, hint};
  };
  const std::int32_t packed = p.num_micro_batches();
  if (limits.micro_batches > 0 && packed > limits.micro_batches) {
    return missed("makes " + std::to_string(packed) + " micro-batches instead of " +
                      std::to_string(limits.micro_batches),
                  packed, limits.micro_batches, "raise --micro-batches or let the packer choose");
  }
  const std::int64_t wanted = limits.micro_batches > 0
                                  ? limits.micro_batches
                                  : round_up(packed, micro_batch_multiple(prob));
  p.micro_batches.insert(p.micro_batches.begin(), static_cast<std::size_t>(wanted - packed), {});
  for (micro_batch& mb : p.micro_batches) {
    std::sort(mb.packs.begin(), mb.packs.end(),
              [](const pack& a, const pack& b) { return a.ranks.begin < b.ranks.begin; });
    std::int64_t busy = 0;
    for (const pack& pk : mb.packs) {
      busy += pk.ranks.size;
      if (limits.uniform_cp && pk.ranks.size != mb.packs.front().ranks.size) {
        return missed("mixes CP sizes in a micro-batch", pk.ranks.size, mb.packs.front().ranks.size,
                      "choose a static packer or drop --uniform-cp");
      }
    }
    if (limits.no_idle_ranks && busy < p.num_ranks) {
      return missed("leaves ranks idle", busy, p.num_ranks,
                    "give more sequences, or a smaller fixed number of micro-batches");
    }
  }
  if (limits.max_inflight_tokens > 0 &&
      (prob.parallel.vpp == 1 || wanted % prob.parallel.pp == 0)) {
    const std::int64_t peak =
        peak_inflight_tokens(p, prob.sequences, {prob.parallel.pp, prob.parallel.vpp});
    if (peak > limits.max_inflight_tokens) {
      return missed("has " + std::to_string(peak) + " tokens a rank in flight", peak,
                    limits.max_inflight_tokens, "raise --max-inflight-tokens");
    }
  }
  return p;
}

/// What packers at one CP size place: a sequence, or an atomic group as a whole, with its load.
struct static_item {
  load sum;
  std::vector<std::int32_t> members;  // indices into the batch
};

/// The items at CP size `c`, by their first sequence in the batch.
/// Errors: sequence_too_long, or infeasible for an atomic group, when a pack of `capacity` padded
/// tokens cannot hold one.
[[nodiscard]] inline result<std::vector<static_item>> static_items(const problem& prob,
                                                                   std::int32_t c,
                                                                   std::int64_t capacity) {
  const std::int64_t align = alignment(prob.padding, c);
  const auto cap = static_cast<std::size_t>(prob.limits.max_sequences_per_pack);
  std::vector<static_item> items;
  std::unordered_map<std::int64_t, std::size_t> of_atom;
  for (std::size_t i = 0; i < prob.sequences.size(); ++i) {
    const sequence& s = prob.sequences[i];
    std::size_t to = items.size();
    if (s.atom >= 0) to = of_atom.emplace(s.atom, to).first->second;
    if (to == items.size()) items.emplace_back();
    static_item& item = items[to];
    const bool fits = s.length <= capacity && item.sum.tokens <= capacity;
    if (fits) item.sum += sequence_load(s.length, align);
    item.members.push_back(static_cast<std::int32_t>(i));
    if (fits && padded_pack_tokens(prob.padding, c, item.sum.tokens) <= capacity &&
        (cap == 0 || item.members.size() <= cap)) {
      continue;
    }
    if (item.members.size() == 1) {
      error e = too_long_error(prob, static_cast<std::int64_t>(i), c);
      if (capacity < e.limit) {
        e.what += ", packs are limited to " + std::to_string(capacity);
        e.limit = capacity;
        e.hint = "raise --pack-tokens";
      }
      return e;
    }
    return error{errc::infeasible,
                 "the atomic group of sequence " + std::to_string(s.id) + " fits no pack of " +
                     std::to_string(c) + " ranks",
                 item.sum.tokens, capacity,
                 "raise --max-tokens-per-rank or the sequence cap, or split the group"};
  }
  return items;
}

/// Tokens that a static pack may hold: the limit of its ranks, or less when asked for.
[[nodiscard]] inline std::int64_t static_capacity(const problem& prob,
                                                  std::int64_t pack_tokens) noexcept {
  const std::int64_t most = pack_capacity(prob, prob.parallel.static_cp);
  return pack_tokens > 0 ? std::min(most, pack_tokens) : most;
}

/// Items by falling tokens, ties in batch order.
[[nodiscard]] inline std::vector<std::int32_t> fullest_first(
    const std::vector<static_item>& items) {
  std::vector<std::int32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return items[static_cast<std::size_t>(a)].sum.tokens >
           items[static_cast<std::size_t>(b)].sum.tokens;
  });
  return order;
}

/// Packs of items, by index into the items of `static_items`.
using item_packs = std::vector<std::vector<std::int32_t>>;

/// Raises the number of packs to that of whole micro-batches (a multiple, or the fixed number): the
/// last pack with more than one item gives its last one to a new pack, as long as one can.
inline void raise_to_whole(const problem& prob, item_packs& packs) {
  const std::int64_t lanes = prob.parallel.ranks / prob.parallel.static_cp;
  const auto now = static_cast<std::int64_t>(packs.size());
  const std::int64_t target = std::max(round_up(now, lanes * micro_batch_multiple(prob)),
                                       lanes * prob.limits.micro_batches);
  std::size_t giver = packs.size();
  while (static_cast<std::int64_t>(packs.size()) < target) {
    while (giver > 0 && packs[giver - 1].size() < 2) --giver;
    if (giver == 0) return;
    const std::int32_t moved = packs[giver - 1].back();
    packs[giver - 1].pop_back();
    packs.push_back({moved});
  }
}

/// A pack of items on a lane, which is `static_cp` ranks; without items the lane stays idle.
inline void add_to_lane(const problem& prob, const std::vector<static_item>& items,
                        const std::vector<std::int32_t>& packed, std::int32_t lane,
                        micro_batch& to) {
  if (packed.empty()) return;
  const std::int32_t cp = prob.parallel.static_cp;
  pack pk{{lane * cp, cp}, {}};
  for (const std::int32_t i : packed) {
    const std::vector<std::int32_t>& members = items[static_cast<std::size_t>(i)].members;
    pk.sequences.insert(pk.sequences.end(), members.begin(), members.end());
  }
  to.packs.push_back(std::move(pk));
}

/// Pack k on lane k % dp of micro-batch k / dp.
[[nodiscard]] inline plan deal_to_lanes(const problem& prob, const std::vector<static_item>& items,
                                        const item_packs& packs) {
  const auto lanes = static_cast<std::size_t>(prob.parallel.ranks / prob.parallel.static_cp);
  plan out = blank_plan(prob);
  for (std::size_t k = 0; k < packs.size(); ++k) {
    if (k % lanes == 0) out.micro_batches.emplace_back();
    add_to_lane(prob, items, packs[k], static_cast<std::int32_t>(k % lanes),
                out.micro_batches.back());
  }
  return out;
}

/// The bins of a static packer while they fill: tokens and sequences against the limits.
class static_bins {
 public:
  static_bins(const problem& prob, const std::vector<static_item>& items, std::int64_t capacity)
      : prob_(prob), items_(items), capacity_(capacity) {}

  [[nodiscard]] bool fits(const load& sum, std::int32_t item) const {
    const load& l = items_[static_cast<std::size_t>(item)].sum;
    const std::int32_t cap = prob_.limits.max_sequences_per_pack;
    return padded_pack_tokens(prob_.padding, prob_.parallel.static_cp, sum.tokens + l.tokens) <=
               capacity_ &&
           (cap == 0 || sum.count + l.count <= cap);
  }

 private:
  const problem& prob_;
  const std::vector<static_item>& items_;
  std::int64_t capacity_;
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
