// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

namespace detail {

/// Packs of variable length, filled greedily by work.
struct wlb_packs {
  item_packs packs;
  std::vector<std::int32_t> left;  // items that no pack has room for
};

/// Each item, longest first, goes to the pack of least work; without room there, to the one of
/// least tokens; without room there, it is left. Ties go to the lower pack. O(items * packs).
template <cost_model Cost>
[[nodiscard]] wlb_packs fill_by_work(const problem& prob, const Cost& cost,
                                     const std::vector<static_item>& items, std::size_t count,
                                     std::int64_t capacity) {
  const std::int32_t cp = prob.parallel.static_cp;
  const link over = link_of({0, cp}, ranks_per_node(prob.cluster.gpus_per_node, prob.parallel));
  const static_bins bins(prob, items, capacity);
  count = std::min(count, items.size());  // more packs than items would stay empty
  wlb_packs out;
  out.packs.resize(count);
  std::vector<load> sums(count);
  std::vector<ticks> work(count, 0);
  for (const std::int32_t i : fullest_first(items)) {
    const auto lightest =
        static_cast<std::size_t>(std::min_element(work.begin(), work.end()) - work.begin());
    const auto shortest = static_cast<std::size_t>(
        std::min_element(sums.begin(), sums.end(),
                         [](const load& a, const load& b) { return a.tokens < b.tokens; }) -
        sums.begin());
    const std::size_t to = bins.fits(sums[lightest], i) ? lightest : shortest;
    if (!bins.fits(sums[to], i)) {
      out.left.push_back(i);
      continue;
    }
    out.packs[to].push_back(i);
    sums[to] += items[static_cast<std::size_t>(i)].sum;
    work[to] = cost.cost(sums[to], cp, over, cost.bottleneck_class()).total();
  }
  return out;
}

/// ceil(tokens / (dp * window)), at least 1, rounded up to the micro-batch multiple.
[[nodiscard]] inline std::int64_t wlb_micro_batches(const problem& prob,
                                                    const std::vector<static_item>& items,
                                                    std::int64_t window) {
  int128 tokens = 0;
  for (const static_item& item : items) tokens += item.sum.tokens;
  const int128 step = int128{window} * (prob.parallel.ranks / prob.parallel.static_cp);
  const auto least = static_cast<std::int64_t>((tokens + step - 1) / step);
  return round_up(std::max<std::int64_t>(1, least), micro_batch_multiple(prob));
}

}  // namespace detail

/// WLB-LLM's variable-length packing for a batch that must go out as a whole.
///
/// 1. M is that of equal packs of `window_tokens` (the context window; 0: limit * cp), rounded up
///    to the micro-batch multiple; there are dp * M packs of up to limit * cp tokens.
/// 2. Sequences, longest first, each go to the pack of least work (attention and linear, by the
///    cost model); where that lacks room, to the one of least tokens.
/// 3. What fits neither would wait for the next step; here M goes up until nothing waits.
/// Pack k goes to lane k % dp of micro-batch k / dp. Its choice between two ways of sharding a
/// pack over a CP group is a matter of kernels, not of plans.
/// Errors: as `packing_only`. Source: WLB-LLM (OSDI 2025), by its description.
/// Complexity: O(n * dp * M) for each M tried.
struct wlb_llm {
  static constexpr std::string_view name = "wlb_llm";

  std::int64_t window_tokens = 0;

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost& cost) const {
    if (auto ok = detail::check_static_cp(prob, name); !ok) return ok.error();
    const std::int64_t capacity = pack_capacity(prob, prob.parallel.static_cp);
    auto items = detail::static_items(prob, prob.parallel.static_cp, capacity);
    if (!items) return items.error();
    const std::int64_t lanes = prob.parallel.ranks / prob.parallel.static_cp;
    const std::int64_t window = window_tokens > 0 ? std::min(window_tokens, capacity) : capacity;
    const std::int64_t fixed = prob.limits.micro_batches;
    std::int64_t m = fixed > 0 ? fixed : detail::wlb_micro_batches(prob, *items, window);
    for (;;) {
      const detail::wlb_packs filled =
          detail::fill_by_work(prob, cost, *items, static_cast<std::size_t>(m * lanes), capacity);
      if (filled.left.empty()) {
        return detail::settle(prob, detail::deal_to_lanes(prob, *items, filled.packs), name);
      }
      m += micro_batch_multiple(prob);  // ends: with a pack for each item, all have room
    }
  }
};

/// One training step of a stream: what goes out now.
struct wlb_step {
  std::vector<sequence> batch;  ///< what the plan's indices mean; ids and lengths kept
  dyncp::plan plan;
  std::int64_t waiting = 0;  ///< sequences held back for later steps
  std::int64_t late = 0;     ///< of this step's sequences, those taken in by earlier ones
  std::int64_t longest_delay = 0;  ///< steps that the oldest of them has waited
};

/// WLB-LLM over a stream of batches: outliers wait until there is one for every pack.
///
/// 1. A new sequence of at least `thresholds[0]` tokens enters the queue of the last threshold that
///    it reaches. A queue with dp * M sequences or more releases that many, first in first out.
/// 2. What was left from the last step, the new ones that are no outliers and the released ones are
///    packed as in step 2 of `wlb_llm`; what fits nowhere is left for the next step.
/// M is fixed by the limits or that of the new batch, as in step 1 of `wlb_llm`. Every sequence
/// goes out exactly once; `flush` sends all that waits.
///
/// The original bounds no delay. With `max_delay` D > 0 no sequence goes out more than D steps
/// after the one that took it in: what has waited D steps leaves its queue, and M goes up until all
/// such sequences have room. Not thread-safe: one object is one stream.
class wlb_llm_stream {
 public:
  /// `thresholds`: lengths, ascending; empty: nothing is an outlier. `window_tokens` as above.
  /// `max_delay`: steps; 0: no bound.
  explicit wlb_llm_stream(std::vector<std::int64_t> thresholds, std::int64_t window_tokens = 0,
                          std::int64_t max_delay = 0)
      : thresholds_(std::move(thresholds)),
        window_tokens_(window_tokens),
        max_delay_(max_delay),
        queues_(thresholds_.size()) {
    std::sort(thresholds_.begin(), thresholds_.end());
  }

  /// Takes prob.sequences in; on an error nothing has been taken in.
  /// Errors: as `wlb_llm`; not_found when the packs of this step cannot be a plan (idle ranks), or
  /// when what has waited `max_delay` steps has no room in a fixed M.
  template <cost_model Cost>
  [[nodiscard]] result<wlb_step> next(const problem& prob, const Cost& cost) {
    auto checked = check_batch(prob);
    if (!checked) return checked.error();
    const bool fixed = prob.limits.micro_batches > 0;
    std::int64_t m = fixed ? prob.limits.micro_batches
                           : detail::wlb_micro_batches(prob, *checked, window(prob));
    const std::int64_t lanes = prob.parallel.ranks / prob.parallel.static_cp;
    std::vector<std::deque<held>> queues = queues_;
    std::vector<held> due = left_;
    for (const sequence& s : prob.sequences) {
      const auto reached = static_cast<std::size_t>(
          std::upper_bound(thresholds_.begin(), thresholds_.end(), s.length) - thresholds_.begin());
      if (reached == 0) {
        due.push_back({s, step_});
      } else {
        queues[reached - 1].push_back({s, step_});
      }
    }
    const auto packs = static_cast<std::size_t>(m * lanes);
    for (std::deque<held>& queue : queues) {
      std::size_t released = queue.size() < packs ? 0 : packs;
      while (released < queue.size() && is_overdue(queue[released])) ++released;
      const auto end = queue.begin() + static_cast<std::ptrdiff_t>(released);
      due.insert(due.end(), queue.begin(), end);
      queue.erase(queue.begin(), end);
    }
    problem now = prob;
    now.sequences.clear();
    for (const held& h : due) now.sequences.push_back(h.what);
    auto items = check_batch(now);
    if (!items) return items.error();
    for (;; m += micro_batch_multiple(prob)) {  // ends: with a pack for each item, all have room
      const detail::wlb_packs filled = detail::fill_by_work(
          now, cost, *items, static_cast<std::size_t>(m * lanes), capacity(now));
      std::vector<held> left;
      std::vector<bool> stays(due.size(), false);
      for (const std::int32_t i : filled.left) {
        for (const std::int32_t s : (*items)[static_cast<std::size_t>(i)].members) {
          left.push_back(due[static_cast<std::size_t>(s)]);
          stays[static_cast<std::size_t>(s)] = true;
        }
      }
      if (std::any_of(left.begin(), left.end(), [&](const held& h) { return is_overdue(h); })) {
        if (!fixed) continue;
        return error{errc::not_found,
                     "sequences that have waited " + std::to_string(max_delay_) +
                         " steps have no room in " + std::to_string(m) + " micro-batches",
                     m, m + micro_batch_multiple(prob),
                     "leave the number of micro-batches open, or allow a longer delay"};
      }
      auto step = send(now, *items, filled.packs);
      if (!step) return step.error();
      for (std::size_t i = 0; i < due.size(); ++i) {
        if (stays[i] || due[i].since == step_) continue;
        ++step->late;
        step->longest_delay = std::max(step->longest_delay, step_ - due[i].since);
      }
      left_ = std::move(left);
      queues_ = std::move(queues);
      ++step_;
      step->waiting = waiting();
      return step;
    }
  }

  /// All that waits, by the one-batch form. Requires waiting() > 0 to make sense; prob.sequences is
  /// not read.
  template <cost_model Cost>
  [[nodiscard]] result<wlb_step> flush(const problem& prob, const Cost& cost) {
    problem now = prob;
    now.sequences.clear();
    std::int64_t oldest = step_;
    const auto take = [&](const held& h) {
      now.sequences.push_back(h.what);
      oldest = std::min(oldest, h.since);
    };
    for (const held& h : left_) take(h);
    for (const std::deque<held>& queue : queues_) {
      for (const held& h : queue) take(h);
    }
    auto made = wlb_llm{window_tokens_}.pack(now, cost);
    if (!made) return made.error();
    left_.clear();
    for (std::deque<held>& queue : queues_) queue.clear();
    const auto late = static_cast<std::int64_t>(now.sequences.size());
    return wlb_step{std::move(now.sequences), std::move(*made), 0, late, step_ - oldest};
  }

  /// Sequences taken in and not sent out yet.
  [[nodiscard]] std::int64_t waiting() const noexcept {
    auto sum = static_cast<std::int64_t>(left_.size());
    for (const std::deque<held>& q : queues_) sum += static_cast<std::int64_t>(q.size());
    return sum;
  }

 private:
  struct held {
    sequence what;
    std::int64_t since = 0;  // the step that took it in
  };

  [[nodiscard]] bool is_overdue(const held& h) const noexcept {
    return max_delay_ > 0 && step_ - h.since >= max_delay_;
  }
  static std::int64_t capacity(const problem& prob) {
    return pack_capacity(prob, prob.parallel.static_cp);
  }
  [[nodiscard]] std::int64_t window(const problem& prob) const {
    return window_tokens_ > 0 ? std::min(window_tokens_, capacity(prob)) : capacity(prob);
  }

  static result<std::vector<detail::static_item>> check_batch(const problem& prob) {
    if (auto ok = detail::check_static_cp(prob, wlb_llm::name); !ok) return ok.error();
    if (auto ok = detail::check_no_atoms(prob, wlb_llm::name); !ok) return ok.error();
    return detail::static_items(prob, prob.parallel.static_cp, capacity(prob));
  }

  // The plan over the sequences that were packed, renumbered.
  static result<wlb_step> send(const problem& now, const std::vector<detail::static_item>& items,
                               const detail::item_packs& packs) {
    plan made = detail::deal_to_lanes(now, items, packs);
    wlb_step step;
    for (micro_batch& mb : made.micro_batches) {
      for (pack& pk : mb.packs) {
        for (std::int32_t& s : pk.sequences) {
          step.batch.push_back(now.sequences[static_cast<std::size_t>(s)]);
          s = static_cast<std::int32_t>(step.batch.size()) - 1;
        }
      }
    }
    problem sent = now;
    sent.sequences = step.batch;
    auto settled = detail::settle(sent, std::move(made), wlb_llm::name);
    if (!settled) return settled.error();
    step.plan = std::move(*settled);
    return step;
  }

  std::vector<std::int64_t> thresholds_;
  std::int64_t window_tokens_;
  std::int64_t max_delay_;
  std::int64_t step_ = 0;
  std::vector<std::deque<held>> queues_;  // (thresholds): outliers, first in first out
  std::vector<held> left_;                // what had no room in the last step
};

}  // namespace v0
}  // namespace dyncp
