// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/baseline.hpp>
#include <dyncp/packers/karmarkar_karp.hpp>
#include <dyncp/packers/packer.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

namespace detail {

/// The steps of `verl` and `verl_capped`, which differ in the number of micro-batches alone.
class verl_builder {
 public:
  verl_builder(const problem& prob, bool capped)
      : prob_(prob),
        cp_(prob.parallel.static_cp),
        lanes_(prob.parallel.ranks / prob.parallel.static_cp),
        align_(alignment(prob.padding, prob.parallel.static_cp)),
        capped_(capped) {}

  [[nodiscard]] result<plan> run(std::string_view name) {
    if (auto ok = check_static_cp(prob_, name); !ok) return ok.error();
    if (auto ok = check_no_atoms(prob_, name); !ok) return ok.error();
    const auto n = static_cast<std::int64_t>(prob_.sequences.size());
    if (n % lanes_ != 0) {
      return error{errc::not_found,
                   std::string(name) + " gives every DP rank the same number of sequences; " +
                       std::to_string(n) + " do not divide by " + std::to_string(lanes_),
                   n, lanes_, "make the batch a multiple of ranks / cp"};
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t padded = length(static_cast<std::int32_t>(i));
      if (padded_pack_tokens(prob_.padding, cp_, padded) > pack_capacity(prob_, cp_)) {
        return too_long_error(prob_, i, cp_);
      }
      weights_.push_back(weight(static_cast<std::int32_t>(i)));
    }
    const partition lanes = karmarkar_karp(weights_, lanes_, true);
    auto count = count_for(lanes, name);
    if (!count) return count.error();
    plan out = blank_plan(prob_);
    out.micro_batches.resize(static_cast<std::size_t>(*count));
    for (std::int32_t lane = 0; lane < lanes_; ++lane) {
      partition parts = split(lanes[static_cast<std::size_t>(lane)], *count);
      const std::vector<std::int32_t> order = largest_in_the_middle(*count);
      for (std::size_t j = 0; j < order.size(); ++j) {
        out.micro_batches[j].packs.push_back(
            {{lane * cp_, cp_}, std::move(parts[static_cast<std::size_t>(order[j])])});
      }
    }
    return settle(prob_, std::move(out), name);
  }

 private:
  [[nodiscard]] std::int64_t length(std::int32_t i) const {
    return padded_length(prob_.sequences[static_cast<std::size_t>(i)].length, align_);
  }
  [[nodiscard]] int128 weight(std::int32_t i) const {
    const int128 s = length(i);
    return 24576 * s + s * s;
  }

  // The sequences of a lane in `count` parts, heaviest first.
  [[nodiscard]] partition split(const std::vector<std::int32_t>& lane, std::int32_t count) const {
    std::vector<int128> weights;
    for (const std::int32_t i : lane) weights.push_back(weights_[static_cast<std::size_t>(i)]);
    partition parts = karmarkar_karp(weights, count);
    for (std::vector<std::int32_t>& part : parts) {
      for (std::int32_t& i : part) i = lane[static_cast<std::size_t>(i)];
    }
    return parts;
  }

  [[nodiscard]] bool fits(const partition& parts) const {
    return std::all_of(parts.begin(), parts.end(), [&](const std::vector<std::int32_t>& part) {
      std::int64_t tokens = 0;
      for (const std::int32_t i : part) tokens += length(i);
      return padded_pack_tokens(prob_.padding, cp_, tokens) <= pack_capacity(prob_, cp_);
    });
  }

  [[nodiscard]] result<std::int32_t> count_for(const partition& lanes,
                                               std::string_view name) const {
    const std::int64_t per_lane = static_cast<std::int64_t>(prob_.sequences.size()) / lanes_;
    std::int64_t count = 1;
    for (const std::vector<std::int32_t>& lane : lanes) {
      std::int64_t tokens = 0;
      for (const std::int32_t i : lane) tokens += length(i);
      count = std::max(count, std::min(per_lane, ceil_div(tokens, pack_capacity(prob_, cp_))));
    }
    const std::int32_t multiple = micro_batch_multiple(prob_);
    count = std::max<std::int64_t>(round_up(count, multiple), prob_.limits.micro_batches);
    const auto all_fit = [&](std::int64_t c) {
      return std::all_of(lanes.begin(), lanes.end(), [&](const std::vector<std::int32_t>& lane) {
        return fits(split(lane, static_cast<std::int32_t>(c)));
      });
    };
    while (capped_ && count <= per_lane && !all_fit(count)) count += multiple;
    if (count > per_lane) {
      return error{errc::not_found,
                   std::string(name) + " needs " + std::to_string(count) +
                       " micro-batches for " + std::to_string(per_lane) +
                       " sequences on a DP rank",
                   count, per_lane, "give more sequences, or a smaller --micro-batch-multiple"};
    }
    return static_cast<std::int32_t>(count);
  }

  const problem& prob_;
  std::int32_t cp_;
  std::int32_t lanes_;
  std::int64_t align_;
  bool capped_;
  std::vector<int128> weights_;  // (n)
};

}  // namespace detail

/// verl's balancing at the static CP size: Karmarkar-Karp on 24576 s + s^2, twice.
///
/// 1. Over the DP ranks, each with the same number of sequences.
/// 2. The number of micro-batches of a DP rank is min(n, ceil(tokens / (limit * cp))); all take the
///    largest, rounded up to the micro-batch multiple.
/// 3. Over the micro-batches of each DP rank, which then run with the heaviest in the middle.
///
/// Work is balanced, not tokens, so a pack may exceed the token limit: such a plan is returned as
/// the original makes it, and the validator calls it invalid. A batch that does not divide by dp,
/// or has fewer sequences than micro-batches, is `not_found` (an assertion there).
/// Source: verl, `seqlen_balancing.py`, by its description; reproduces its plans.
/// Complexity: O(n * M log M).
struct verl {
  static constexpr std::string_view name = "verl";

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    return detail::verl_builder(prob, false).run(name);
  }
};

/// `verl` as repaired by its pull request 7553: the number of micro-batches grows until every pack
/// keeps the token limit. Not what the measured release does; never the basis of a comparison.
/// Complexity: O(n * M log M) a try.
struct verl_capped {
  static constexpr std::string_view name = "verl_capped";

  template <cost_model Cost>
  [[nodiscard]] result<plan> pack(const problem& prob, const Cost&) const {
    return detail::verl_builder(prob, true).run(name);
  }
};

}  // namespace v0
}  // namespace dyncp
