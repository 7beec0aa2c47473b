// SPDX-License-Identifier: Apache-2.0
// Small inputs on which the originals of the baselines were run or worked out by hand: what they
// make of them, faults included. What this library's planner makes of the same inputs stands in
// tests/planner/known_failures.cpp.
#include "all_packers.hpp"
#include "support/problems.hpp"

#include <dyncp/core/int_math.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using lengths = std::vector<std::int64_t>;

// n times the same length.
lengths repeat(std::int64_t length, std::size_t n) {
  return lengths(n, length);
}

lengths operator+(lengths a, const lengths& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

dyncp::problem static_problem(const lengths& batch, std::int32_t ranks, std::int32_t cp,
                              std::int64_t limit) {
  dyncp::problem p = dyncp_test::reference_problem(batch, ranks, 1, limit);
  p.parallel.static_cp = cp;
  return p;
}

template <class Packer>
dyncp::result<dyncp::plan> run(const dyncp::problem& p, const Packer& packer = {}) {
  return packer.pack(p, dyncp::analytic_cost(p.model, p.cluster, p.parallel));
}

std::int64_t tokens(const dyncp::pack& pk, const dyncp::problem& p) {
  return dyncp::pack_load(pk, p.sequences, p.padding).tokens;
}

// Tokens of all packs, by micro-batch and rank.
lengths pack_tokens(const dyncp::plan& made, const dyncp::problem& p) {
  lengths out;
  for (const dyncp::micro_batch& mb : made.micro_batches) {
    for (const dyncp::pack& pk : mb.packs) out.push_back(tokens(pk, p));
  }
  return out;
}

std::vector<std::int32_t> sizes(const dyncp::micro_batch& mb) {
  std::vector<std::int32_t> out;
  for (const dyncp::pack& pk : mb.packs) out.push_back(pk.ranks.size);
  return out;
}

// Sum over micro-batches of the largest sum(s^2)/c.
std::int64_t quadratic_makespan(const dyncp::plan& made, const dyncp::problem& p) {
  std::int64_t sum = 0;
  for (const dyncp::micro_batch& mb : made.micro_batches) {
    std::int64_t most = 0;
    for (const dyncp::pack& pk : mb.packs) {
      most = std::max(most, dyncp::pack_load(pk, p.sequences, p.padding).squares / pk.ranks.size);
    }
    sum += most;
  }
  return sum;
}

}  // namespace

TEST_CASE("packing_only: ten tens on two lanes are nine and one") {
  const auto p = static_problem(repeat(10, 10), 2, 1, 100);
  CHECK(pack_tokens(*run<dyncp::packing_only>(p), p) == lengths{90, 10});
}

TEST_CASE("packing_only: the first pack may be split") {
  const auto p = static_problem({10, 10}, 2, 1, 100);
  CHECK(pack_tokens(*run<dyncp::packing_only>(p), p) == lengths{10, 10});
}

TEST_CASE("packing_only: a sequence over the pack is an error that names it") {
  const auto p = static_problem({100}, 1, 1, 64);
  const auto made = run<dyncp::packing_only>(p);
  REQUIRE_FALSE(made);
  CHECK(made.error().code == dyncp::errc::sequence_too_long);
  CHECK(made.error().value == 100);
}

TEST_CASE("packing_only: a fixed M is filled by splitting, then by empty micro-batches") {
  auto p = static_problem({10, 10, 10}, 1, 1, 100);
  p.limits.micro_batches = 5;
  const auto made = run<dyncp::packing_only>(p);
  REQUIRE(made);
  CHECK(made->num_micro_batches() == 5);
  CHECK(pack_tokens(*made, p) == lengths{10, 10, 10});
  p.limits.max_tokens_per_rank = 10;
  p.limits.micro_batches = 2;
  CHECK(run<dyncp::packing_only>(p).error().code == dyncp::errc::not_found);
}

TEST_CASE("static packers: pack-tokens closes packs below the limit") {
  const auto p = static_problem({30, 30, 30, 30}, 1, 1, 1000);
  CHECK(pack_tokens(*run(p, dyncp::packing_only{60}), p) == lengths{60, 60});
  CHECK(pack_tokens(*run(p, dyncp::ffd{60}), p) == lengths{60, 60});
  CHECK(pack_tokens(*run(p, dyncp::static_balanced{60, dyncp::micro_batch_choice::least}), p) ==
        lengths{60, 60});
  const auto over = run(p, dyncp::packing_only{20});
  REQUIRE_FALSE(over);
  CHECK(over.error().code == dyncp::errc::sequence_too_long);
  CHECK(over.error().limit == 20);
}

TEST_CASE("static packers: an atomic group stays whole") {
  auto p = static_problem({40, 10, 40, 30}, 1, 1, 80);
  p.sequences[0].atom = 7;
  p.sequences[2].atom = 7;
  dyncp_test::for_each_baseline([&]<class Packer>() {
    CAPTURE(Packer::name);
    const auto made = run<Packer>(p);
    if (made) {
      CHECK(dyncp::validate(*made, p).empty());
    } else {
      CHECK(made.error().code == dyncp::errc::unsupported);
    }
  });
  p.limits.max_tokens_per_rank = 79;
  CHECK(run<dyncp::packing_only>(p).error().code == dyncp::errc::infeasible);
}

TEST_CASE("ffd: four bins of seven sequences are 80, 5, 5 and 10") {
  const auto p = static_problem({50, 10, 10, 10, 10, 5, 5}, 4, 1, 100);
  CHECK(pack_tokens(*run<dyncp::ffd>(p), p) == lengths{80, 5, 5, 10});
}

TEST_CASE("mffd makes no empty pack") {
  const auto p = static_problem({10, 10}, 1, 1, 10);
  CHECK(pack_tokens(*run<dyncp::mffd>(p), p) == lengths{10, 10});
}

TEST_CASE("mffd is never worse than ffd: two packs of twelve") {
  const auto p = static_problem({5, 4, 4, 4, 3, 2, 2}, 1, 1, 12);
  CHECK(run<dyncp::ffd>(p)->num_micro_batches() == 2);
  CHECK(run<dyncp::mffd>(p)->num_micro_batches() == 2);
}

TEST_CASE("mffd pairs medium and small items with large ones where ffd does not") {
  const auto p = static_problem({60, 51, 30, 20, 20, 19}, 1, 1, 100);
  CHECK(run<dyncp::mffd>(p)->num_micro_batches() <= run<dyncp::ffd>(p)->num_micro_batches());
  CHECK(run<dyncp::mffd>(p)->num_micro_batches() == 2);
}

TEST_CASE("default_dynamic_cp: the longest stays at its least size, 73.1M of quadratic work") {
  const auto p = dyncp_test::reference_problem(lengths{16384} + repeat(1000, 64), 8, 1, 4096);
  const auto made = run<dyncp::default_dynamic_cp>(p);
  REQUIRE(made);
  REQUIRE(made->num_micro_batches() == 3);
  CHECK(made->micro_batches[0].packs[0].ranks == dyncp::rank_range{0, 4});
  CHECK(quadratic_makespan(*made, p) == 16384 * 16384 / 4 + 4'000'000 + 2'000'000);
}

TEST_CASE("default_dynamic_cp: a micro-batch of one group cannot be cut for a multiple") {
  for (const auto& [batch, ranks, limit, multiple] : {std::tuple{lengths{5000, 100}, 2, 4096, 2},
                                                      {lengths{6144, 2048}, 2, 4096, 2},
                                                      {lengths{1, 1}, 1, 2, 2},
                                                      {lengths{4000} + repeat(100, 8), 16, 4096, 4},
                                                      {lengths{1}, 1, 1, 2}}) {
    auto p = dyncp_test::reference_problem(batch, ranks, 1, limit);
    p.limits.micro_batch_multiple = multiple;
    CAPTURE(dyncp_test::describe(p));
    const auto made = run<dyncp::default_dynamic_cp>(p);
    REQUIRE_FALSE(made);
    CHECK(made.error().code == dyncp::errc::not_found);
  }
}

TEST_CASE("default_dynamic_cp: micro-batches of several groups are cut at a boundary") {
  auto p = dyncp_test::reference_problem(repeat(100, 9), 16, 1, 4096);
  p.limits.micro_batch_multiple = 4;
  const auto made = run<dyncp::default_dynamic_cp>(p);
  REQUIRE(made);
  CHECK(made->num_micro_batches() == 4);
  CHECK(dyncp::validate(*made, p).empty());
  p.limits.no_idle_ranks = true;
  CHECK(run<dyncp::default_dynamic_cp>(p));
}

TEST_CASE("default_dynamic_cp: ranks that are no power of two end in a plan or a typed error") {
  // Six ranks: 4 and 2, where the original has process groups of 1, 2 and 6.
  const auto six = dyncp_test::reference_problem({100, 90}, 6, 1, 100);
  CHECK(sizes(run<dyncp::default_dynamic_cp>(six)->micro_batches[0]) ==
        std::vector<std::int32_t>{4, 2});
  // An index error there: the groups cannot double to ten ranks.
  auto ten = dyncp_test::reference_problem({425, 357, 1636, 499}, 10, 1, 4096);
  CHECK(run<dyncp::default_dynamic_cp>(ten).error().code == dyncp::errc::not_found);
  ten.parallel.cp_sizes = {1, 2, 4, 8, 10};
  CHECK(sizes(run<dyncp::default_dynamic_cp>(ten)->micro_batches[0]) ==
        std::vector<std::int32_t>{10});
  // Endless loops there.
  for (const auto& [batch, ranks, multiple] :
       {std::tuple{lengths{100, 90, 80}, 6, 2}, {lengths{240, 269, 306}, 24, 4}}) {
    auto p = dyncp_test::reference_problem(batch, ranks, 1, 4096);
    p.limits.micro_batch_multiple = multiple;
    const auto made = run<dyncp::default_dynamic_cp>(p);
    if (made) {
      CHECK(dyncp::validate(*made, p).empty());
    } else {
      CHECK(made.error().code == dyncp::errc::not_found);
    }
  }
  // The need is rounded past the ranks: an assertion there.
  auto fourteen = dyncp_test::reference_problem({200000}, 14, 1, 16384);
  CHECK(run<dyncp::default_dynamic_cp>(fourteen).error().code == dyncp::errc::sequence_too_long);
  fourteen.parallel.cp_sizes = {1, 2, 4, 8, 14};
  CHECK(run<dyncp::default_dynamic_cp>(fourteen).error().code == dyncp::errc::not_found);
}

TEST_CASE("default_dynamic_cp: a sequence cap holds, which the original accepts and ignores") {
  auto p = dyncp_test::reference_problem(repeat(100, 64), 8, 1, 4096);
  p.limits.max_sequences_per_pack = 2;
  const auto made = run<dyncp::default_dynamic_cp>(p);
  REQUIRE(made);
  CHECK(dyncp::validate(*made, p).empty());
  CHECK(made->num_micro_batches() == 4);
}

TEST_CASE("default_dynamic_cp: longest first leaves holes: three packs where two would do") {
  const auto p = dyncp_test::reference_problem({5, 4, 4, 3, 2, 2}, 1, 1, 10);
  const auto made = run<dyncp::default_dynamic_cp>(p);
  REQUIRE(made);
  CHECK(pack_tokens(*made, p) == lengths{9, 9, 2});  // 5+3+2 and 4+4+2 would do
}

TEST_CASE("verl: the count ignores what balance needs: sevens under a cap of eight") {
  const auto p = static_problem(repeat(7, 8), 1, 1, 8);
  const auto made = run<dyncp::verl>(p);
  REQUIRE(made);
  CHECK(made->num_micro_batches() == 7);
  const lengths t = pack_tokens(*made, p);
  CHECK(*std::max_element(t.begin(), t.end()) == 14);
  const auto found = dyncp::validate(*made, p);
  REQUIRE(found.size() == 1);
  CHECK(found[0].kind == dyncp::violation_kind::over_limit);
  const auto capped = run<dyncp::verl_capped>(p);
  REQUIRE(capped);
  CHECK(capped->num_micro_batches() == 8);
  CHECK(dyncp::validate(*capped, p).empty());
}

TEST_CASE("verl: balance by work breaks the token cap: 34000 under 32768") {
  const auto p = static_problem(lengths{30000} + repeat(2000, 17), 1, 1, 32768);
  const auto made = run<dyncp::verl>(p);
  REQUIRE(made);
  lengths t = pack_tokens(*made, p);
  std::sort(t.begin(), t.end());
  CHECK(t == lengths{30000, 34000});
  CHECK_FALSE(dyncp::validate(*made, p).empty());
  CHECK(dyncp::validate(*run<dyncp::verl_capped>(p), p).empty());
}

TEST_CASE("verl: a pack of four under a limit of three") {
  const auto p = static_problem({2, 2, 2}, 1, 1, 3);
  const lengths t = pack_tokens(*run<dyncp::verl>(p), p);
  CHECK(*std::max_element(t.begin(), t.end()) == 4);
}

TEST_CASE("verl: all lanes run as many micro-batches") {
  const auto p = static_problem(repeat(95, 5) + repeat(20, 5), 2, 1, 100);
  const auto made = run<dyncp::verl>(p);
  REQUIRE(made);
  for (const dyncp::micro_batch& mb : made->micro_batches) CHECK(mb.packs.size() == 2);
}

TEST_CASE("verl: counts are rounded up to the multiple, never down") {
  auto p = static_problem(repeat(5, 6), 1, 1, 8);
  p.limits.micro_batch_multiple = 3;
  CHECK(run<dyncp::verl>(p)->num_micro_batches() == 6);
  // More micro-batches than sequences: an assertion there.
  auto q = static_problem(repeat(7, 5), 1, 1, 8);
  q.limits.micro_batch_multiple = 4;
  CHECK(run<dyncp::verl>(q).error().code == dyncp::errc::not_found);
}

TEST_CASE("verl: a batch that does not divide by dp is refused") {
  CHECK(run<dyncp::verl>(static_problem({1}, 2, 1, 10)).error().code == dyncp::errc::not_found);
  CHECK(run<dyncp::verl>(static_problem({1, 1, 1}, 2, 1, 10)).error().code ==
        dyncp::errc::not_found);
}

TEST_CASE("relax: the CP size follows from the longest sequence and the number of them") {
  struct row {
    std::int64_t longest, budget;
    std::int32_t wide;
    std::size_t count;
    std::int32_t expected;
  };
  for (const row& r : {row{6000, 8192, 8, 3, 4},
                       {100, 8192, 8, 1, 8},
                       {100, 8192, 4, 3, 2},
                       {30000, 8192, 8, 8, 4},
                       {30000, 32768, 8, 8, 1},
                       {512, 1024, 8, 2, 4}}) {
    CAPTURE(r.longest);
    CAPTURE(r.wide);
    const auto p =
        static_problem(lengths{r.longest} + repeat(100, r.count - 1), r.wide, r.wide, r.budget);
    const auto made = run<dyncp::relax>(p);
    REQUIRE(made);
    REQUIRE(made->num_micro_batches() == 1);
    CHECK(made->micro_batches[0].packs[0].ranks.size == r.expected);
    CHECK(made->micro_batches[0].packs.size() == static_cast<std::size_t>(r.wide / r.expected));
  }
}

TEST_CASE("relax: one sequence of the whole capacity and two short ones") {
  const auto p = static_problem({8192, 100, 100}, 4, 4, 2048);
  const auto made = run<dyncp::relax>(p);
  REQUIRE(made);
  REQUIRE(made->num_micro_batches() == 2);  // by rising longest sequence
  CHECK(sizes(made->micro_batches[0]) == std::vector<std::int32_t>{2, 2});
  CHECK(sizes(made->micro_batches[1]) == std::vector<std::int32_t>{4});
}

TEST_CASE("relax: nine equal sequences on four sub-groups are 3 2 2 2") {
  const auto p = static_problem(repeat(10, 9), 4, 4, 30);
  const auto made = run<dyncp::relax>(p);
  REQUIRE(made);
  lengths t = pack_tokens(*made, p);
  std::sort(t.rbegin(), t.rend());
  CHECK(t == lengths{30, 20, 20, 20});
}

TEST_CASE("relax: sub-groups may exceed the budget, the repaired form's do not") {
  for (const auto& [batch, wide, loads] :
       {std::tuple{repeat(60, 6), 4, lengths{120, 120, 60, 60}},
        {lengths{150, 120, 120, 120, 120, 150}, 8, lengths{240, 240, 150, 150}}}) {
    const auto p = static_problem(batch, wide, wide, 100);
    const auto made = run<dyncp::relax>(p);
    REQUIRE(made);
    lengths t = pack_tokens(*made, p);
    std::sort(t.rbegin(), t.rend());
    CHECK(t == loads);
    const auto found = dyncp::validate(*made, p);
    REQUIRE_FALSE(found.empty());
    CHECK(found[0].kind == dyncp::violation_kind::over_limit);
    CHECK(dyncp::validate(*run<dyncp::relax_capped>(p), p).empty());
  }
}

TEST_CASE("relax: long sequences of two lanes meet in one micro-batch") {
  const auto p = static_problem({30000, 1000, 2000, 1000, 30000, 1000}, 8, 4, 8192);
  const auto made = run<dyncp::relax>(p);
  REQUIRE(made);
  int wide = 0;
  for (const dyncp::micro_batch& mb : made->micro_batches) {
    for (std::size_t i = 1; i < mb.packs.size(); ++i) {
      CHECK(mb.packs[i].ranks.size == mb.packs[0].ranks.size);
    }
    wide += mb.packs[0].ranks.size == 4 ? 1 : 0;
  }
  CHECK(wide == 1);
}

TEST_CASE("wlb_llm: outliers wait until every pack gets one") {
  auto p = static_problem({150, 10, 20}, 2, 1, 200);
  p.limits.micro_batches = 1;
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  dyncp::wlb_llm_stream stream({100});
  const auto first = stream.next(p, cost);
  REQUIRE(first);
  CHECK(first->waiting == 1);
  CHECK(first->batch.size() == 2);
  p.sequences = {{3, 160}, {4, 30}};
  const auto second = stream.next(p, cost);
  REQUIRE(second);
  CHECK(second->waiting == 0);
  dyncp::problem out = p;
  out.sequences = second->batch;
  const lengths t = pack_tokens(second->plan, out);
  CHECK(t == lengths{160, 180});  // the 30 joins the lighter pack
}

TEST_CASE("wlb_llm: by work where there is room, else by tokens") {
  // The 90 is the heaviest; tens fill the other pack until it is heavier or full.
  const auto p = static_problem(lengths{90} + repeat(10, 10), 2, 1, 100);
  const auto made = run<dyncp::wlb_llm>(p);
  REQUIRE(made);
  CHECK(pack_tokens(*made, p) == lengths{90, 100});
}

TEST_CASE("padded_bshd: rows of the longest, gbs / dp / mbs micro-batches") {
  auto p = static_problem({30, 7, 12, 40, 5, 6, 7, 8}, 4, 2, 50);
  p.padding.zigzag = true;
  const auto made = run(p, dyncp::padded_bshd{2, 0});
  REQUIRE(made);
  CHECK(made->num_micro_batches() == 2);
  for (const dyncp::micro_batch& mb : made->micro_batches) {
    REQUIRE(mb.packs.size() == 2);
    for (const dyncp::pack& pk : mb.packs) {
      const dyncp::load l = dyncp::pack_load(pk, p.sequences, made->padding);
      CHECK(l == dyncp::load{80, 2 * 40 * 40, 2});
    }
  }
  CHECK(dyncp::validate(*made, p).empty());
  CHECK(run(p, dyncp::padded_bshd{3, 0}).error().code == dyncp::errc::infeasible);
  CHECK(run(p, dyncp::padded_bshd{1, 101}).error().code == dyncp::errc::sequence_too_long);
  const auto fixed = run(p, dyncp::padded_bshd{1, 64});
  REQUIRE(fixed);
  CHECK(dyncp::pack_load(fixed->micro_batches[0].packs[0], p.sequences, fixed->padding).tokens ==
        64);
}

TEST_CASE("three_stage: a sequence over the workload target gets more ranks, the limit holds") {
  auto p = dyncp_test::reference_problem(lengths{60000} + repeat(1000, 60), 8, 1, 16384);
  p.limits.micro_batches = 2;
  const auto made = run<dyncp::three_stage>(p);
  REQUIRE(made);
  CHECK(dyncp::validate(*made, p).empty());
  CHECK(made->micro_batches[0].packs[0].ranks == dyncp::rank_range{0, 8});
  CHECK(made->micro_batches[0].packs[0].sequences[0] == 0);
}

TEST_CASE("three_stage_2959: long sequences take the first slots, short ones single ranks") {
  auto p = dyncp_test::reference_problem(lengths{60000} + repeat(1000, 100), 4, 2, 65536);
  p.limits.micro_batches = 4;
  const auto made = run<dyncp::three_stage_2959>(p);
  REQUIRE(made);
  CHECK(dyncp::validate(*made, p).empty());
  REQUIRE(sizes(made->micro_batches[0]) == std::vector<std::int32_t>{4});
  CHECK(made->micro_batches[0].packs[0].sequences[0] == 0);
  for (std::size_t j = 1; j < 4; ++j) {
    CHECK(sizes(made->micro_batches[j]) == std::vector<std::int32_t>{1, 1, 1, 1});
  }
}

TEST_CASE("flexsp: levels add the fewest tokens") {
  const lengths values{9, 8, 8, 4, 4, 1};
  CHECK(dyncp::detail::round_up_to_levels(values, 4) == values);
  CHECK(dyncp::detail::round_up_to_levels(values, 3) == lengths{9, 9, 9, 4, 4, 1});
  CHECK(dyncp::detail::round_up_to_levels(values, 2) == lengths{9, 9, 9, 4, 4, 4});
  CHECK(dyncp::detail::round_up_to_levels(values, 1) == lengths{9, 9, 9, 9, 9, 9});
}

TEST_CASE("flexsp: groups of several sizes share a micro-batch") {
  auto p = dyncp_test::reference_problem(lengths{3000} + repeat(2000, 6), 8, 1, 2000);
  p.limits.micro_batches = 1;
  const auto made = run<dyncp::flexsp>(p);
  REQUIRE(made);
  CHECK(dyncp::validate(*made, p).empty());
  CHECK(sizes(made->micro_batches[0]) == std::vector<std::int32_t>{2, 1, 1, 1, 1, 1, 1});
}

TEST_CASE("fewer sequences than lanes are idle lanes, or an error where none may idle") {
  auto p = static_problem({5}, 4, 1, 10);
  for (const bool none_idle : {false, true}) {
    p.limits.no_idle_ranks = none_idle;
    dyncp_test::for_each_baseline([&]<class Packer>() {
      CAPTURE(Packer::name);
      const auto made = run<Packer>(p);
      if (made) {
        CHECK(dyncp::validate(*made, p).empty());
      } else {
        CHECK(made.error().code == dyncp::errc::not_found);
      }
    });
  }
}

TEST_CASE("a batch too large for #2959's pairwise steps is refused, not waited for") {
  auto p = dyncp_test::reference_problem(repeat(10, 1000), 1 << 20, 4, 100);
  CHECK(run<dyncp::three_stage_2959>(p).error().code == dyncp::errc::unsupported);
}

TEST_CASE("many distinct lengths are rounded before levels are chosen") {
  lengths values;
  for (std::int64_t v = 200000; v > 0; --v) values.push_back(v);
  const lengths levels = dyncp::detail::round_up_to_levels(values, 16);
  REQUIRE(levels.size() == values.size());
  std::int64_t added = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK_FALSE(levels[i] < values[i]);
    added += levels[i] - values[i];
  }
  // Equal steps add half a step each, 200000 / 16 / 2; the first rounding at most 1/4096 more.
  CHECK(added <= 200000LL * (200000 / 32 + 200000 / 4096));
}

TEST_CASE("micro-batches that a packer lacks are empty ones in front, where 1F1B loses least") {
  auto p = static_problem({20000, 15000, 18000, 30000, 9000, 40000}, 1, 1, 40000);
  p.parallel.pp = 4;
  p.limits.micro_batches = 16;
  const auto made = run(p, dyncp::packing_only{});
  REQUIRE(made);
  REQUIRE(made->num_micro_batches() == 16);
  CHECK(made->micro_batches.front().packs.empty());
  CHECK_FALSE(made->micro_batches.back().packs.empty());
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const auto time = [&](const dyncp::plan& plan) {
    return dyncp::event_simulator{}.makespan(dyncp::price_plan(plan, p, cost), {4, 1});
  };
  dyncp::plan bare = *made;
  std::erase_if(bare.micro_batches, [](const dyncp::micro_batch& mb) { return mb.packs.empty(); });
  dyncp::plan behind = bare;
  behind.micro_batches.resize(16);
  CHECK(time(*made) == time(bare));
  CHECK(time(*made) < time(behind));
}

TEST_CASE("default_dynamic_cp refuses batches that it would compare for hours") {
  const auto larger = static_problem(repeat(1000, 400000), 4096, 1, 1000);
  const auto refused = run<dyncp::default_dynamic_cp>(larger);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == dyncp::errc::unsupported);
}
