// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of the data iterators share: a small problem, samples that know who they are, and
// ranks as threads that may be stopped and started again.

#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/cpu/fault.hpp>
#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/cpu/thread_world.hpp>
#include <dyncp/packers/plan_hint.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/runtime/group_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dyncp_test {

using thread_pool = dyncp::group_pool<dyncp::cpu::thread_backend>;

/// Token ids: every token of a sample is its id.
using token_sample = std::vector<std::int32_t>;

inline token_sample make_sample(const dyncp::sequence& s) {
  return token_sample(static_cast<std::size_t>(s.length), static_cast<std::int32_t>(s.id));
}

/// `ranks` ranks of at most `limit` tokens, zigzag, no sequences.
inline dyncp::problem small_job(std::int32_t ranks, std::int64_t limit = 100, std::int32_t pp = 1) {
  dyncp::problem p = reference_problem({}, ranks, pp, limit);
  p.padding.zigzag = true;
  return p;
}

inline auto planner_of(const dyncp::problem& p) {
  return dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
}

/// Plans otherwise once it has learned: micro-batches backwards. So ranks of which only some have
/// learned plan differently, on any batch of two micro-batches or more.
struct learning_planner {
  decltype(planner_of(std::declval<dyncp::problem>())) plain;
  dyncp::result<dyncp::planned> plan(const dyncp::problem& p, const dyncp::plan_hint& hint) const {
    auto made = plain.plan(p);
    if (!made) return made;
    if (!hint.regions.empty()) {
      std::reverse(made->plan.micro_batches.begin(), made->plan.micro_batches.end());
    }
    made->hint.regions = hint.regions;
    made->hint.regions.emplace_back();
    return made;
  }
  const auto& cost() const { return plain.cost(); }
};

inline std::vector<std::int64_t> some_lengths(std::int64_t count, std::int64_t longest,
                                              std::uint64_t seed) {
  random rng(seed);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    lengths.push_back(rng.one_in(8) ? rng.between(1, longest) : rng.between(1, longest / 8 + 1));
  }
  return lengths;
}

/// The shard of `rank`: samples dealt out in turn.
inline std::vector<token_sample> shard_of(const std::vector<std::int64_t>& lengths,
                                          std::int32_t rank, std::int32_t ranks) {
  std::vector<token_sample> out;
  for (std::size_t i = static_cast<std::size_t>(rank); i < lengths.size();
       i += static_cast<std::size_t>(ranks)) {
    out.push_back(make_sample({static_cast<std::int64_t>(i), lengths[i], -1}));
  }
  return out;
}

inline dyncp::sequence probe_sample(const token_sample& s) {
  return {s.front(), static_cast<std::int64_t>(s.size()), -1};
}

inline dyncp::error failed(const std::string& what) {
  return dyncp::make_error(dyncp::errc::invalid_plan, what);
}

struct rank_world {
  std::int32_t ranks = 4;
  std::int64_t deadline_us = 1'000'000;
  std::vector<dyncp::cpu::fault> faults = {};
  std::int64_t* ended_us = nullptr;  ///< where to note the virtual time at the end
};

/// Runs f(pool) on each rank, in virtual time; returns what each returned.
template <class F>
std::vector<dyncp::result<void>> run_pool(const rank_world& w, F f) {
  dyncp::cpu::thread_world world({.ranks = w.ranks,
                                  .deadline_us = w.deadline_us,
                                  .time = dyncp::cpu::time_source::virtual_time,
                                  .faults = w.faults});
  auto results = dyncp::cpu::run_ranks(world, {}, [&](dyncp::cpu::thread_backend& b)
                                                      -> dyncp::result<void> {
    auto pool = thread_pool::create(b, {.warm_up = false});
    if (!pool) return std::move(pool).error();
    return f(*pool);
  });
  if (w.ended_us != nullptr) *w.ended_us = world.now_us();
  return results;
}

/// "" if all ranks succeeded.
inline std::string complaints(const std::vector<dyncp::result<void>>& results) {
  std::string text;
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (results[r]) continue;
    text += "rank " + std::to_string(r) + ": " + results[r].error().message() + "\n";
  }
  return text;
}

}  // namespace dyncp_test
