// SPDX-License-Identifier: Apache-2.0
#include "random_plan.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/plan/validate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using dyncp::violation_kind;

namespace {

struct place {
  std::size_t micro_batch;
  std::size_t group;
};

// A plan and the means to break it.
class breaker {
 public:
  breaker(dyncp::problem prob, dyncp::plan plan, dyncp_test::random& rng)
      : prob_(std::move(prob)), plan_(std::move(plan)), rng_(rng) {
    for (std::size_t j = 0; j < plan_.micro_batches.size(); ++j) {
      for (std::size_t g = 0; g < plan_.micro_batches[j].packs.size(); ++g)
        places_.push_back({j, g});
    }
  }

  [[nodiscard]] const dyncp::problem& prob() const { return prob_; }
  [[nodiscard]] const dyncp::plan& plan() const { return plan_; }

  // Breaks the promise of this name; false when this plan offers no way to.
  bool apply(violation_kind kind) {
    dyncp::pack& pk = at(any());
    const auto n = static_cast<std::int32_t>(prob_.sequences.size());
    switch (kind) {
      case violation_kind::missing_sample:
        pk.sequences.erase(pk.sequences.begin() + pick(pk.sequences.size()));
        return true;
      case violation_kind::duplicate_sample:
        pk.sequences.push_back(static_cast<std::int32_t>(rng_.between(0, n - 1)));
        return true;
      case violation_kind::unknown_sample:
        pk.sequences.push_back(rng_.one_in(2) ? n + static_cast<std::int32_t>(rng_.between(0, 9))
                                              : -1 - static_cast<std::int32_t>(rng_.between(0, 9)));
        return true;
      case violation_kind::rank_out_of_range:
        pk.ranks.begin = rng_.one_in(2) ? plan_.num_ranks - pk.ranks.size + 1 : -1;
        return true;
      case violation_kind::rank_overlap: return overlap();
      case violation_kind::not_power_of_two: return odd_size();
      case violation_kind::size_not_allowed: return forbid_size(pk.ranks.size);
      case violation_kind::unaligned: return misalign();
      case violation_kind::empty_pack: pk.sequences.clear(); return true;
      case violation_kind::over_limit: plan_.max_tokens_per_rank = largest_shard() - 1; return true;
      case violation_kind::over_pack_tokens:
        prob_.sequences[static_cast<std::size_t>(pk.sequences[0])].length = std::int64_t{1} << 31;
        return true;
      case violation_kind::over_sequence_cap: return cap();
      case violation_kind::over_inflight: return lower_budget();
      case violation_kind::split_atom: return split();
      case violation_kind::wrong_job:
        prob_.limits.max_tokens_per_rank = plan_.max_tokens_per_rank - 1;
        return true;
      case violation_kind::wrong_micro_batches:
        prob_.limits.micro_batch_multiple = 1 + plan_.num_micro_batches();
        return true;
      case violation_kind::idle_rank: return idle();
      case violation_kind::mixed_cp: return mix();
      case violation_kind::wrong_padding: return mispad();
    }
    return false;
  }

 private:
  [[nodiscard]] std::ptrdiff_t pick(std::size_t count) {
    return rng_.between(0, static_cast<std::int64_t>(count) - 1);
  }
  [[nodiscard]] place any() { return places_[static_cast<std::size_t>(pick(places_.size()))]; }
  dyncp::pack& at(place p) { return plan_.micro_batches[p.micro_batch].packs[p.group]; }

  bool mispad() {
    const std::int64_t wrong[] = {0, -1, INT64_MIN, INT64_MAX, (std::int64_t{1} << 24) + 1};
    const std::int64_t value = wrong[pick(5)];
    switch (pick(3)) {
      case 0: plan_.padding.multiple = value; break;
      case 1: plan_.padding.shard_multiple = value; break;
      default: plan_.padding.sequence_parallel = rng_.one_in(2) ? INT32_MIN : INT32_MAX;
    }
    return true;
  }

  bool overlap() {
    for (const place p : places_) {
      if (p.group == 0) continue;
      at(p).ranks = at({p.micro_batch, 0}).ranks;
      return true;
    }
    return false;
  }

  // A group of three or more, where only powers of two are allowed.
  bool odd_size() {
    if (!prob_.parallel.cp_sizes.empty() || plan_.num_ranks < 3) return false;
    at(any()).ranks = {0, 3};
    return true;
  }

  bool forbid_size(std::int32_t size) {
    if (plan_.num_ranks < 2) return false;
    prob_.parallel.min_cp = 1;
    prob_.parallel.max_cp = 0;
    prob_.parallel.cp_sizes = {size == 1 ? 2 : size - 1};
    return true;
  }

  bool misalign() {
    for (const place p : places_) {
      dyncp::rank_range& r = at(p).ranks;
      if (r.size < 2 || !dyncp::is_power_of_two(r.size) || r.end() >= plan_.num_ranks) continue;
      ++r.begin;
      return true;
    }
    return false;
  }

  // The integer below which some pack does not fit.
  [[nodiscard]] std::int64_t largest_shard() {
    std::int64_t most = 0;
    for (const place p : places_) {
      const auto tokens = dyncp::pack_load(at(p), prob_.sequences, plan_.padding).tokens;
      most = std::max(most, dyncp::ceil_div(tokens, at(p).ranks.size));
    }
    return most;
  }

  bool cap() {
    std::size_t most = 0;
    for (const place p : places_) most = std::max(most, at(p).sequences.size());
    prob_.limits.max_sequences_per_pack = static_cast<std::int32_t>(most) - 1;
    return most > 1;
  }

  bool lower_budget() {
    const std::int64_t peak = dyncp::peak_inflight_tokens(plan_, prob_.sequences,
                                                          {prob_.parallel.pp, prob_.parallel.vpp});
    prob_.limits.max_inflight_tokens = peak - 1;
    return peak > 1;
  }

  // A new atom over two packs.
  bool split() {
    if (places_.size() < 2) return false;
    for (const place p : {places_.front(), places_.back()}) {
      prob_.sequences[static_cast<std::size_t>(at(p).sequences[0])].atom = 1000;
    }
    return true;
  }

  bool idle() {
    prob_.limits.no_idle_ranks = true;
    dyncp::micro_batch& mb = plan_.micro_batches[any().micro_batch];
    std::int32_t busy = 0;
    for (const dyncp::pack& pk : mb.packs) busy += pk.ranks.size;
    if (busy < plan_.num_ranks) return true;
    mb.packs.pop_back();
    return true;
  }

  bool mix() {
    for (const dyncp::micro_batch& mb : plan_.micro_batches) {
      for (const dyncp::pack& pk : mb.packs) {
        if (pk.ranks.size == mb.packs[0].ranks.size) continue;
        prob_.limits.uniform_cp = true;
        return true;
      }
    }
    return false;
  }

  dyncp::problem prob_;
  dyncp::plan plan_;
  dyncp_test::random& rng_;
  std::vector<place> places_;
};

constexpr std::size_t num_kinds = static_cast<std::size_t>(violation_kind::wrong_padding) + 1;

bool reported(const std::vector<dyncp::violation>& found, violation_kind kind) {
  return std::any_of(found.begin(), found.end(),
                     [&](const dyncp::violation& v) { return v.kind == kind; });
}

}  // namespace

TEST_CASE("a valid plan that is broken in one way is reported for that way") {
  const std::uint64_t seed = dyncp_test::seed_or(4711);
  std::array<int, num_kinds> tried{};
  const std::int64_t rounds = dyncp_test::count_or(3000);
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::uint64_t round_seed = seed + static_cast<std::uint64_t>(round);
    CAPTURE(round_seed);
    dyncp_test::random rng(round_seed);
    const auto made = dyncp_test::random_plan(rng);
    if (!made) continue;
    const dyncp::problem& prob = made->prob;
    REQUIRE(dyncp::validate(made->plan, prob).empty());
    for (std::size_t k = 0; k < num_kinds; ++k) {
      const auto kind = static_cast<violation_kind>(k);
      breaker b(prob, made->plan, rng);
      if (!b.apply(kind)) continue;
      ++tried[k];
      CAPTURE(std::string(to_string(kind)));
      CAPTURE(dyncp_test::describe(prob));
      CHECK(reported(dyncp::validate(b.plan(), b.prob()), kind));
    }
  }
  for (std::size_t k = 0; k < num_kinds; ++k) {
    CAPTURE(std::string(to_string(static_cast<violation_kind>(k))));
    CHECK((tried[k] > 20 || rounds < 1000));
  }
}

TEST_CASE("plans of random numbers are judged without a crash") {
  const std::uint64_t seed = dyncp_test::seed_or(815);
  CAPTURE(seed);
  dyncp_test::random rng(seed);
  const std::int32_t extreme[] = {INT32_MIN, INT32_MIN + 1, -2,       -1, 0, 1, 2, 3, 4, 7,
                                  8,         INT32_MAX - 1, INT32_MAX};
  const auto number = [&] { return extreme[rng.between(0, 12)]; };
  for (std::int64_t round = 0; round < dyncp_test::count_or(4000); ++round) {
    dyncp::problem prob = dyncp_test::random_problem(rng);
    if (!dyncp::check(prob)) continue;
    dyncp::plan p;
    p.num_ranks = prob.parallel.ranks;
    p.max_tokens_per_rank = rng.one_in(3) ? INT64_MAX : number();
    p.padding = prob.padding;
    if (rng.one_in(4)) p.padding = {rng.one_in(2), number(), number(), number()};
    for (std::int64_t m = rng.between(0, 4); m > 0; --m) {
      dyncp::micro_batch mb;
      for (std::int64_t g = rng.between(0, 4); g > 0; --g) {
        dyncp::pack pk{{number(), number()}, {}};
        for (std::int64_t n = rng.between(0, 3); n > 0; --n) pk.sequences.push_back(number());
        mb.packs.push_back(pk);
      }
      p.micro_batches.push_back(mb);
    }
    for (const dyncp::violation& v : dyncp::validate(p, prob)) CHECK_FALSE(v.message.empty());
  }
}
