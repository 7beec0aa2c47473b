// SPDX-License-Identifier: Apache-2.0
// Failures that users of other schedulers reported, as inputs with what a right plan makes of them.
// docs/known-failures.md lists them all, those of the runtime and those that cannot occur included.
#include "support/problems.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/planner/planner.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using dyncp::errc;
using dyncp::micro_batch;
using dyncp::pack;
using dyncp::planned;
using dyncp::problem;

namespace {

using lengths = std::vector<std::int64_t>;

problem job(const lengths& seqs, std::int32_t ranks, std::int64_t limit, std::int32_t pp = 1) {
  return dyncp_test::reference_problem(seqs, ranks, pp, limit);
}

template <class Packer = dyncp::dynamic_cp>
dyncp::result<planned> plan_of(const problem& p, Packer packer = {}) {
  return dyncp::planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel), packer}.plan(p);
}

// The plan, which the planner has validated; what the tests look at is counted here anew.
template <class Packer = dyncp::dynamic_cp>
dyncp::plan valid(const problem& p, Packer packer = {}) {
  const auto made = plan_of(p, packer);
  if (!made) FAIL(made.error().message());
  std::vector<int> seen(p.sequences.size(), 0);
  for (const micro_batch& mb : made->plan.micro_batches) {
    std::vector<char> used(static_cast<std::size_t>(p.parallel.ranks), 0);
    for (const pack& pk : mb.packs) {
      REQUIRE_FALSE(pk.sequences.empty());
      std::int64_t tokens = 0;
      for (const std::int32_t i : pk.sequences) {
        ++seen[static_cast<std::size_t>(i)];
        tokens += p.sequences[static_cast<std::size_t>(i)].length;
      }
      REQUIRE(tokens <= p.limits.max_tokens_per_rank * pk.ranks.size);
      REQUIRE(pk.ranks.begin >= 0);
      REQUIRE(pk.ranks.end() <= p.parallel.ranks);
      for (std::int32_t r = pk.ranks.begin; r < pk.ranks.end(); ++r) {
        REQUIRE(used[static_cast<std::size_t>(r)] == 0);
        used[static_cast<std::size_t>(r)] = 1;
      }
    }
  }
  REQUIRE(seen == std::vector<int>(seen.size(), 1));
  return made->plan;
}

std::vector<std::int32_t> sizes_of(const dyncp::plan& p) {
  std::vector<std::int32_t> out;
  for (const micro_batch& mb : p.micro_batches) {
    for (const pack& pk : mb.packs) out.push_back(pk.ranks.size);
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Sequences of each pack of a micro-batch, descending.
std::vector<std::size_t> counts_of(const micro_batch& mb) {
  std::vector<std::size_t> out;
  for (const pack& pk : mb.packs) out.push_back(pk.sequences.size());
  std::sort(out.rbegin(), out.rend());
  return out;
}

// The pack that holds a sequence, and its micro-batch.
struct home {
  std::size_t micro_batch = 0;
  const pack* in = nullptr;
};
home home_of(const dyncp::plan& p, std::int32_t sequence) {
  for (std::size_t j = 0; j < p.micro_batches.size(); ++j) {
    for (const pack& pk : p.micro_batches[j].packs) {
      if (std::count(pk.sequences.begin(), pk.sequences.end(), sequence) > 0) return {j, &pk};
    }
  }
  return {};
}

std::int32_t busy_ranks(const micro_batch& mb) {
  std::int32_t busy = 0;
  for (const pack& pk : mb.packs) busy += pk.ranks.size;
  return busy;
}

// Work is squared tokens over c and nothing else: the measure of quadratic schedulers.
struct quadratic_cost {
  [[nodiscard]] std::int32_t stage_classes() const { return 1; }
  [[nodiscard]] std::int32_t stage_class(std::int32_t) const { return 0; }
  [[nodiscard]] std::int32_t bottleneck_class() const { return 0; }
  [[nodiscard]] dyncp::op_cost cost(const dyncp::load& l, std::int32_t c, dyncp::link,
                                    std::int32_t) const {
    return {std::max<std::int64_t>(1, l.squares / c), 1, 0};
  }
};

}  // namespace

// ---- padding and limits

TEST_CASE("Megatron-LM#4230: shards of a sequence are whole numbers of tokens") {
  problem p = job({6, 10}, 4, 8);
  p.padding.zigzag = true;
  p.parallel.min_cp = 4;
  const dyncp::plan plan = valid(p);
  for (const micro_batch& mb : plan.micro_batches) {
    for (const pack& pk : mb.packs) {
      CHECK(pk.ranks.size == 4);
      for (const std::int32_t i : pk.sequences) {
        // [6, 10] -> [8, 16]: two chunks on each of the four ranks.
        const std::int64_t padded =
            dyncp::sequence_load(p.sequences[static_cast<std::size_t>(i)].length,
                                 dyncp::alignment(plan.padding, 4))
                .tokens;
        CHECK(padded == (i == 0 ? 8 : 16));
      }
    }
  }
}

TEST_CASE("Megatron-LM#2574, NeMo-RL#2110: padded for zigzag and tp before the limit is checked") {
  problem p = job({20}, 2, 16);
  p.parallel.tp = 4;
  p.padding = {.zigzag = true, .sequence_parallel = 4};
  p.parallel.min_cp = 2;
  CHECK(plan_of(p)->statistics.padded_tokens == 32);
  p.limits.max_tokens_per_rank = 15;  // 10 tokens a rank, but 16 padded
  CHECK(plan_of(p).error().code == errc::sequence_too_long);
  p = job({249}, 1, 250);
  p.padding.sequence_parallel = 2;
  CHECK(plan_of(p)->statistics.padded_tokens == 250);
  p.limits.max_tokens_per_rank = 249;
  CHECK(plan_of(p).error().code == errc::sequence_too_long);
}

TEST_CASE(
    "NeMo-RL#2182: packer and executor pad alike, so that no pack exceeds the limit (517 > 502)") {
  // Lengths whose sums fit in 502 padded to 4, and not padded to 8.
  problem p = job({101, 99, 93, 89, 61, 57, 101, 99, 93, 89, 61, 57}, 2, 502);
  p.parallel.min_cp = 2;
  p.padding = {.zigzag = true, .sequence_parallel = 2};
  p.limits.max_tokens_per_rank = 251;
  for (const micro_batch& mb : valid(p).micro_batches) {
    for (const pack& pk : mb.packs) {
      std::int64_t tokens = 0;
      for (const std::int32_t i : pk.sequences) {
        tokens += (p.sequences[static_cast<std::size_t>(i)].length + 7) / 8 * 8;
      }
      CHECK(tokens <= 502);
    }
  }
}

TEST_CASE("NeMo-RL#3380: a capacity that is no multiple of 2c fails no row, its rest is unused") {
  problem p = job({1000, 1001, 4000, 4001}, 4, 1001);
  p.padding.zigzag = true;
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);  // 4001 tokens become 4008 on 4 ranks of 1001
  CHECK(bad.error().code == errc::sequence_too_long);
  CHECK(bad.error().value == 4001);
  CHECK(bad.error().limit == 4004);
  p.sequences.pop_back();
  valid(p);
}

TEST_CASE("Megatron-LM#3791, NeMo-RL#1569: shards are multiples of 128 or 32 tokens") {
  for (const std::int64_t multiple : {128, 32}) {
    problem p = job({1000}, 2, 512);
    p.parallel.min_cp = 2;
    p.padding.shard_multiple = multiple;
    CHECK(plan_of(p)->statistics.padded_tokens == 1024);
    p.limits.max_tokens_per_rank = 511;  // 500 without the tail
    CHECK_FALSE(plan_of(p));
  }
}

TEST_CASE("Megatron-LM dev: padding is for the CP size chosen: 104 tokens, not 1024") {
  problem p = job({100}, 64, 4096);
  p.parallel.tp = 8;
  p.padding = {.zigzag = true, .sequence_parallel = 8};
  const auto made = plan_of(p);
  REQUIRE(made);
  CHECK(sizes_of(made->plan) == std::vector<std::int32_t>{1});
  CHECK(made->statistics.padded_tokens == 104);
}

TEST_CASE(
    "Megatron-LM#5541, #5724, #5535: real and padded tokens are kept apart, the tail counts to the "
    "cap") {
  problem p = job({5, 3}, 2, 8);
  p.parallel.min_cp = 2;
  p.padding = {.zigzag = true, .shard_multiple = 8};
  const auto made = plan_of(p);
  REQUIRE(made);
  CHECK(made->statistics.real_tokens == 8);
  CHECK(made->statistics.real_squares == 34);
  CHECK(made->statistics.padded_tokens == 16);  // [8, 4] and a tail of 4
  CHECK(made->statistics.padded_squares == 80);
  p.limits.max_tokens_per_rank = 7;
  CHECK_FALSE(plan_of(p));
}

TEST_CASE("ROLL#325: each sequence is padded, not only their total") {
  problem p = job({8191, 8193, 8189, 8195}, 4, 8200);
  p.padding.zigzag = true;
  p.parallel.min_cp = 4;
  const auto made = plan_of(p);
  REQUIRE(made);
  // 32768 in all, but 8192 + 8200 + 8192 + 8200 by eights.
  CHECK(made->statistics.padded_tokens == 32784);
}

TEST_CASE(
    "verl, padded lengths of one array: the limit holds for sequences, buckets and tails alike") {
  dyncp_test::random rng(dyncp_test::seed_or(9));
  for (int round = 0; round < 60; ++round) {
    lengths seqs;
    for (std::int64_t n = rng.between(1, 30); n > 0; --n) seqs.push_back(rng.between(1, 700));
    problem p = job(seqs, 4, 512, 2);
    p.parallel.tp = 2;
    p.padding = {.zigzag = true, .sequence_parallel = 2, .multiple = 16, .shard_multiple = 128};
    const dyncp::plan plan = valid(p);
    for (const micro_batch& mb : plan.micro_batches) {
      for (const pack& pk : mb.packs) {
        std::int64_t tokens = 0;
        const std::int64_t align = std::max(16, pk.ranks.size == 1 ? 2 : 4 * pk.ranks.size);
        for (const std::int32_t i : pk.sequences) {
          const std::int64_t length = p.sequences[static_cast<std::size_t>(i)].length;
          tokens += (length + align - 1) / align * align;
        }
        const std::int64_t shard = 128 * pk.ranks.size;
        CHECK((tokens + shard - 1) / shard * shard <= 512 * pk.ranks.size);
      }
    }
  }
}

TEST_CASE("OpenRLHF#1280: 21 tokens over a cap of 20 are an error, 20 fit") {
  const auto bad = plan_of(job({21}, 1, 20));
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::sequence_too_long);
  CHECK(bad.error().value == 21);
  CHECK(bad.error().limit == 20);
  CHECK(bad.error().what.find("sequence 0") != std::string::npos);
  CHECK(valid(job({20}, 1, 20)).num_micro_batches() == 1);
}

TEST_CASE("verl#3415, #571: the budget is a rank's: 16K on two ranks hold 32K") {
  CHECK(sizes_of(valid(job({32768}, 2, 16384))) == std::vector<std::int32_t>{2});
  CHECK_FALSE(plan_of(job({32769}, 2, 16384)));
}

TEST_CASE(
    "Megatron-LM dp_balanced: a sequence over M * cp is an error, not an empty and an oversize "
    "pack") {
  problem p = job({100}, 2, 64);
  p.parallel.max_cp = 1;
  for (const auto& made : {plan_of(p), plan_of(p, dyncp::packing_only{})}) {
    REQUIRE_FALSE(made);
    CHECK(made.error().code == errc::sequence_too_long);
    CHECK(made.error().value == 100);
    CHECK(made.error().limit == 64);
  }
}

TEST_CASE(
    "Megatron-LM dev: a sequence of length 0 is an error that names it, not a domain error of "
    "log") {
  problem p = job({100, 100}, 4, 64);
  p.sequences[0].length = 0;
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::invalid_length);
  CHECK(bad.error().hint.find("--drop-empty") != std::string::npos);
}

TEST_CASE("Megatron-LM GDN, Mamba: a model whose heads allow cp 4 gets no wider group") {
  problem p = job({256, 300, 64, 64, 64}, 16, 64);
  p.parallel.max_cp = 4;
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::sequence_too_long);
  CHECK(bad.error().value == 300);
  CHECK(bad.error().limit == 256);
  p.sequences[1].length = 256;
  CHECK(sizes_of(valid(p)).back() == 4);
}

// ---- counts of micro-batches

TEST_CASE("Megatron-LM#6684: two packs of one sequence can be made of one pack of two") {
  problem p = job({10, 10}, 2, 100);
  const dyncp::plan baseline = valid(p, dyncp::packing_only{});
  REQUIRE(baseline.num_micro_batches() == 1);
  CHECK(counts_of(baseline.micro_batches[0]) == std::vector<std::size_t>{1, 1});
  p.limits.no_idle_ranks = true;
  p.parallel.max_cp = 1;
  const dyncp::plan dynamic = valid(p);
  REQUIRE(dynamic.num_micro_batches() == 1);
  CHECK(counts_of(dynamic.micro_batches[0]) == std::vector<std::size_t>{1, 1});
}

TEST_CASE(
    "Megatron-LM align_sample_id_groups: a micro-batch of one group is split by its sequences") {
  // "no tail microbatch has enough ids to split", although both are feasible.
  problem p = job({5000, 100}, 2, 4096);
  p.limits.micro_batch_multiple = 2;
  CHECK(valid(p).num_micro_batches() == 2);
  p = job({100, 200, 300, 400, 500, 600, 700, 800, 900}, 16, 4096);
  p.limits.micro_batch_multiple = 4;
  CHECK(valid(p).num_micro_batches() % 4 == 0);
  p.limits.no_idle_ranks = true;  // nor is a rank without a pack needed
  const dyncp::plan busy = valid(p);
  CHECK(busy.num_micro_batches() % 4 == 0);
  for (const micro_batch& mb : busy.micro_batches) CHECK(busy_ranks(mb) == 16);
}

TEST_CASE("Megatron-LM align_sample_id_groups: 6 and 24 ranks end (endless loop)") {
  problem p = job({100, 90, 80}, 6, 4096);
  p.limits.micro_batch_multiple = 2;
  CHECK(valid(p).num_micro_batches() % 2 == 0);
  p = job({240, 269, 306}, 24, 4096);
  p.limits.micro_batch_multiple = 4;
  CHECK(valid(p).num_micro_batches() % 4 == 0);
}

TEST_CASE(
    "Megatron-LM#3791, #7146, ModelOpt#1966: every rank runs the same number of micro-batches") {
  // Hybrid CP: counts 2, 2, 1, 1 on four ranks, and a hang of the experts' all-to-all.
  problem p = job({4096, 512, 512, 512, 512, 512, 512}, 4, 1024);
  CHECK(valid(p).num_micro_batches() >= 2);  // 7168 tokens on 4 * 1024
  p.limits.no_idle_ranks = true;
  for (const micro_batch& mb : valid(p).micro_batches) CHECK(busy_ranks(mb) == 4);
  // A smallest CP of EP/TP, as asked for there.
  p.limits.no_idle_ranks = false;
  p.parallel.min_cp = 2;
  CHECK(sizes_of(valid(p)).front() >= 2);
}

TEST_CASE("verl#1617, interleaved 1F1B: five micro-batches become four or eight, never five") {
  problem p = job({9, 9, 9, 9, 9}, 1, 10);
  p.limits.micro_batch_multiple = 4;
  CHECK(valid(p).num_micro_batches() == 8);
  CHECK(valid(p, dyncp::packing_only{}).num_micro_batches() == 8);
  p.limits.max_tokens_per_rank = 18;
  CHECK(valid(p).num_micro_batches() == 4);
  p = job({9, 9, 9, 9, 9}, 1, 10, 4);  // 4 stages of 2 chunks ask for the same
  p.parallel.vpp = 2;
  CHECK(valid(p).num_micro_batches() == 8);
}

TEST_CASE("AReaL: the divisor of the count holds for few sequences") {
  problem p = job({9, 9, 9, 9, 9}, 1, 10);
  p.limits.micro_batch_multiple = 4;
  const dyncp::plan plan = valid(p);
  CHECK(plan.num_micro_batches() == 8);
  // Three micro-batches without a pack, at the head, and none in between.
  for (std::size_t j = 0; j < 3; ++j) CHECK(plan.micro_batches[j].packs.empty());
  for (std::size_t j = 3; j < 8; ++j) CHECK(plan.micro_batches[j].packs.size() == 1);
}

TEST_CASE("OpenRLHF#1287: counts are rounded up, since rounding down exceeds the cap") {
  problem p = job({9, 9, 9, 9, 9, 9, 9}, 1, 10);
  p.limits.micro_batch_multiple = 4;
  CHECK(valid(p).num_micro_batches() == 8);
}

TEST_CASE(
    "verl#6176, #6178, #5511, #5747, #5451: ranks with little work run as many micro-batches") {
  // [95]*5 on one rank and [20]*5 on the other would be 5 and 1 micro-batches of 100 tokens.
  problem p = job({95, 95, 95, 95, 95, 20, 20, 20, 20, 20}, 2, 100);
  p.parallel.max_cp = 1;
  const dyncp::plan plan = valid(p);
  // Planned together, 575 tokens take the two ranks 3 micro-batches: five of 95, one pack of 20s.
  CHECK(plan.num_micro_batches() == 3);
}

TEST_CASE("EasyR1#11004, #11012; slime#1838, #1860: more micro-batches than sequences of a rank") {
  problem p = job({100, 100, 100, 100, 100, 100, 100, 100, 10, 10}, 2, 100);
  p.parallel.max_cp = 1;
  const dyncp::plan plan = valid(p);
  CHECK(plan.num_micro_batches() == 5);
  // Two sequences and three micro-batches: one of them is empty, and flagged as such by having no
  // pack; nothing is concatenated of nothing.
  p = job({5, 5}, 1, 5);
  p.limits.micro_batches = 3;
  const dyncp::plan three = valid(p);
  REQUIRE(three.num_micro_batches() == 3);
  CHECK(three.micro_batches[0].packs.empty());
  CHECK(three.micro_batches[1].packs.size() == 1);
  CHECK(three.micro_batches[2].packs.size() == 1);
}

TEST_CASE("SkyRL#847: three sequences in four micro-batches: the fourth holds no copy of any") {
  problem p = job({7, 7, 7}, 1, 7);
  p.limits.micro_batches = 4;
  const auto made = plan_of(p);
  REQUIRE(made);
  CHECK(made->statistics.sequences == 3);
  CHECK(made->statistics.real_tokens == 21);
  CHECK(made->statistics.idle_slots == 1);
}

TEST_CASE("miles#1356, #969: nine samples on two lanes") {
  problem p = job(lengths(9, 10), 2, 20);
  p.parallel.max_cp = 1;
  CHECK(valid(p).num_micro_batches() == 3);
  CHECK(valid(p, dyncp::packing_only{}).num_micro_batches() == 3);
}

TEST_CASE("tinker-cloud#30: three samples on two ranks are the same number of steps for both") {
  problem p = job({10, 10, 10}, 2, 10);
  p.parallel.max_cp = 1;
  const dyncp::plan plan = valid(p);
  CHECK(plan.num_micro_batches() == 2);
  CHECK(busy_ranks(plan.micro_batches[0]) + busy_ranks(plan.micro_batches[1]) == 3);
}

TEST_CASE("verl#7553, #6735: eight sequences of 7 under a cap of 8 take eight micro-batches") {
  CHECK(valid(job(lengths(8, 7), 1, 8)).num_micro_batches() == 8);
  problem p = job(lengths(8, 7), 1, 8);
  p.limits.micro_batches = 7;  // ceil(56/8)
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);
  CHECK((bad.error().code == errc::infeasible || bad.error().code == errc::not_found));
}

TEST_CASE("NeMo-RL#1773: two sequences of the whole capacity make two packs, none empty") {
  const dyncp::plan plan = valid(job({10, 10}, 1, 10));
  CHECK(plan.num_micro_batches() == 2);
}

TEST_CASE("SkyRL#2109: two bins of 12 hold 5 4 4 4 3 2 2, where a modified first-fit takes three") {
  problem p = job({5, 4, 4, 4, 3, 2, 2}, 1, 12);
  p.limits.micro_batches = 2;
  CHECK(valid(p).num_micro_batches() == 2);
}

TEST_CASE(
    "Megatron-LM#5154: no holes: the least number of micro-batches is reached on tight batches") {
  struct tight {
    lengths seqs;
    std::int32_t ranks;
    std::int64_t limit;
    std::int32_t micro_batches;
  };
  const tight cases[] = {
      {{6, 6, 4, 4}, 2, 10, 1},
      {{8, 7, 6, 5, 4, 3, 2, 1}, 2, 18, 1},      // 8+7+3 and 6+5+4+2+1
      {{20, 10, 10, 5, 5, 5, 5}, 4, 15, 1},      // 60 tokens, all room taken
      {{40, 20, 20, 10, 10, 10, 10}, 4, 10, 3},  // 4 ranks, 2 + 2, 1 + 1 + 1 + 1
      {{9, 8, 7, 3, 2, 1}, 3, 10, 1},            // 9+1, 8+2, 7+3
      {{9, 8, 7, 3, 2, 1, 9, 8, 7, 3, 2, 1}, 3, 10, 2},
  };
  for (const tight& t : cases) {
    problem p = job(t.seqs, t.ranks, t.limit);
    p.limits.micro_batches = t.micro_batches;
    CAPTURE(dyncp_test::describe(p));
    CHECK(valid(p).num_micro_batches() == t.micro_batches);
  }
}

// ---- CP sizes and groups

TEST_CASE("Megatron-LM dev groups: sizes come from the allowed set, also on 6 ranks") {
  problem p = job({100, 90}, 6, 30);
  for (const std::int32_t c : sizes_of(valid(p))) CHECK((c == 1 || c == 2 || c == 4));
  p.parallel.cp_sizes = {1, 2, 6};
  for (const std::int32_t c : sizes_of(valid(p))) CHECK((c == 1 || c == 2 || c == 6));
  CHECK(sizes_of(valid(p)).back() == 6);
}

TEST_CASE("Megatron-LM#5154: ten ranks and four short sequences (IndexError)") {
  problem p = job({425, 357, 1636, 499}, 10, 4096);
  valid(p);
  p.limits.no_idle_ranks = true;
  for (const micro_batch& mb : valid(p).micro_batches) CHECK(busy_ranks(mb) == 10);
}

TEST_CASE("Megatron-LM dev: min-cp 3 is refused before planning") {
  problem p = job({100}, 8, 4096);
  p.parallel.min_cp = 3;
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::invalid_argument);
  CHECK(bad.error().value == 3);
}

TEST_CASE("Megatron-LM dev: 600 tokens on 6 ranks of 100: the full group, if it is allowed") {
  problem p = job({600}, 6, 100);
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);  // powers of two end at 4
  CHECK(bad.error().code == errc::sequence_too_long);
  CHECK(bad.error().limit == 400);
  p.parallel.cp_sizes = {1, 2, 4, 6};
  CHECK(sizes_of(valid(p)) == std::vector<std::int32_t>{6});
}

TEST_CASE("Megatron-LM#2000: groups start at multiples of their size, within the ranks") {
  dyncp_test::random rng(dyncp_test::seed_or(23));
  for (int round = 0; round < 60; ++round) {
    lengths seqs;
    for (std::int64_t n = rng.between(1, 25); n > 0; --n) seqs.push_back(rng.between(1, 64));
    const problem p = job(seqs, 8, 8, 2);
    for (const micro_batch& mb : valid(p).micro_batches) {
      for (const pack& pk : mb.packs) {
        CHECK(dyncp::is_power_of_two(pk.ranks.size));
        CHECK(pk.ranks.begin % pk.ranks.size == 0);
      }
    }
  }
}

TEST_CASE("Megatron-LM#2000: one sequence on four ranks") {
  problem p = job({10}, 4, 4096);
  valid(p);
  p.limits.no_idle_ranks = true;
  CHECK(sizes_of(valid(p)) == std::vector<std::int32_t>{4});
  p.parallel.max_cp = 2;
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::infeasible);
}

TEST_CASE("Megatron-LM#5154: idle ranks between groups are filled, not only those at the end") {
  // Sizes 4, 1 and 2 on 8 ranks leave a hole wherever they lie.
  problem p = job({40, 10, 20, 3, 3}, 8, 10);
  p.limits.no_idle_ranks = true;
  for (const micro_batch& mb : valid(p).micro_batches) CHECK(busy_ranks(mb) == 8);
}

TEST_CASE("Megatron-LM#5679: a group of four on six ranks has four ranks") {
  const problem p = job({400, 400, 50}, 6, 100);
  for (const micro_batch& mb : valid(p).micro_batches) {
    for (const pack& pk : mb.packs) {
      if (pk.sequences.front() < 2) CHECK(pk.ranks == dyncp::rank_range{0, 4});
    }
  }
}

TEST_CASE("verl#5869: fewer sequences than ranks: the CP size is set all the same") {
  const dyncp::plan plan = valid(job({8192, 100, 100}, 4, 2048));
  CHECK(home_of(plan, 0).in->ranks.size == 4);
}

TEST_CASE("verl#5869: two sequences cover eight ranks with groups of four or more") {
  problem p = job({512, 512}, 8, 4096);
  p.limits.no_idle_ranks = true;
  const dyncp::plan plan = valid(p);
  for (const std::int32_t c : sizes_of(plan)) CHECK(c >= 4);
  for (const micro_batch& mb : plan.micro_batches) CHECK(busy_ranks(mb) == 8);
}

TEST_CASE("verl#6786: nine equal sequences on four ranks are 3 2 2 2, never 3 3 3 0") {
  struct split {
    std::size_t n;
    std::int32_t ranks;
    std::vector<std::size_t> counts;
  };
  const split cases[] = {{9, 4, {3, 2, 2, 2}},
                         {5, 4, {2, 1, 1, 1}},
                         {9, 8, {2, 1, 1, 1, 1, 1, 1, 1}},
                         {10, 8, {2, 2, 1, 1, 1, 1, 1, 1}}};
  for (const split& s : cases) {
    problem p = job(lengths(s.n, 10), s.ranks, 1000);
    p.parallel.max_cp = 1;
    p.limits.micro_batches = 1;
    p.limits.no_idle_ranks = true;
    CHECK(counts_of(valid(p).micro_batches[0]) == s.counts);
  }
}

TEST_CASE("NeMo-RL#748, #718: three sequences on four ranks") {
  problem p = job({10, 10, 10}, 4, 100);
  valid(p);
  p.limits.no_idle_ranks = true;
  for (const micro_batch& mb : valid(p).micro_batches) CHECK(busy_ranks(mb) == 4);
  p.parallel.max_cp = 1;
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::infeasible);
  CHECK(bad.error().hint.find("idle") != std::string::npos);
}

TEST_CASE("Megatron-LM#5483, Bridge#6127: a short batch at the end is planned like any other") {
  const problem p = job({3000, 20, 100}, 8, 1024);
  const dyncp::planner planner{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
  const auto first = planner.plan(p);
  REQUIRE(first);
  // Nothing is kept between batches.
  REQUIRE(planner.plan(job(lengths(50, 500), 8, 1024)));
  CHECK(planner.plan(p)->plan == first->plan);
}

TEST_CASE("Megatron-LM dev: the CP size of the sequence that binds is raised (73.1M -> 45M)") {
  lengths seqs(65, 1000);
  seqs[0] = 16384;
  const problem p = job(seqs, 8, 4096);
  const auto made = dyncp::planner{quadratic_cost{}}.plan(p);
  REQUIRE(made);
  // The long one is 16384^2/8 = 33.6M of work a rank, all together 41.6M.
  std::int64_t by_micro_batch = 0;
  for (const micro_batch& mb : made->plan.micro_batches) {
    std::int64_t worst = 0;
    for (const pack& pk : mb.packs) {
      std::int64_t squares = 0;
      for (const std::int32_t i : pk.sequences) {
        squares += seqs[static_cast<std::size_t>(i)] * seqs[static_cast<std::size_t>(i)];
      }
      worst = std::max(worst, squares / pk.ranks.size);
    }
    by_micro_batch += worst;
  }
  CHECK(by_micro_batch <= 45000000);
  CHECK(home_of(made->plan, 0).in->ranks.size == 8);
}

TEST_CASE("Relax: long sequences of two ranks meet in one micro-batch") {
  // Maxima 1k 2k 30k and 30k 1k 1k, matched in order, make two of three micro-batches long.
  problem p = job({1000, 2000, 30000, 30000, 1000, 1000}, 2, 30000, 4);
  p.parallel.max_cp = 1;
  const dyncp::plan plan = valid(p);
  CHECK(home_of(plan, 2).micro_batch == home_of(plan, 3).micro_batch);
}

TEST_CASE("Relax: every group's budget is checked after ranks were divided") {
  const problem p = job({900, 700, 500, 300, 200, 100, 90, 80}, 4, 256, 2);
  for (const micro_batch& mb : valid(p).micro_batches) {
    for (const pack& pk : mb.packs) {
      std::int64_t tokens = 0;
      for (const std::int32_t i : pk.sequences) {
        tokens += p.sequences[static_cast<std::size_t>(i)].length;
      }
      CHECK(tokens <= 256 * pk.ranks.size);
    }
  }
}

// ---- caps, atoms and balance

TEST_CASE("Megatron-LM dev: the cap on sequences holds for every packer (40 in a pack)") {
  problem p = job(lengths(100, 5), 2, 4096);
  p.limits.max_sequences_per_pack = 16;
  for (const dyncp::plan& plan : {valid(p), valid(p, dyncp::packing_only{})}) {
    for (const micro_batch& mb : plan.micro_batches) CHECK(counts_of(mb).front() <= 16);
  }
}

TEST_CASE("NeMo-RL#719: preference pairs stay in one pack") {
  problem p = job({50, 60, 10, 90}, 2, 110);
  p.parallel.max_cp = 1;
  p.sequences[0].atom = 1;
  p.sequences[1].atom = 1;
  p.sequences[2].atom = 2;
  p.sequences[3].atom = 2;
  const dyncp::plan plan = valid(p);
  CHECK(home_of(plan, 0).in == home_of(plan, 1).in);
  CHECK(home_of(plan, 2).in == home_of(plan, 3).in);
  p.limits.max_tokens_per_rank = 109;  // a pair of 110 fits nowhere
  const auto bad = plan_of(p);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::infeasible);
  CHECK(bad.error().value == 110);
  CHECK(bad.error().limit == 109);
}

TEST_CASE("verl: balance by work never breaks the token limit: 30000 and 17 of 2000, cap 32768") {
  lengths seqs(18, 2000);
  seqs[0] = 30000;
  problem p = job(seqs, 2, 32768);
  p.parallel.max_cp = 1;
  const dyncp::plan plan = valid(p);  // a partition by work alone makes a pack of 34000
  CHECK(home_of(plan, 0).in->sequences.size() <= 2);
}

TEST_CASE("miles#1938, slime#2017: the cap holds where all tokens need all room") {
  problem p = job({10, 10, 10, 10, 6, 6, 4, 4}, 2, 10, 2);
  p.parallel.max_cp = 1;
  p.limits.micro_batches = 3;
  valid(p);
}

TEST_CASE("verl#5110: work beyond 2^31 does not overflow") {
  const auto made = plan_of(job({1 << 20, 1 << 20, 1 << 19, 100000}, 8, 1 << 18, 4));
  REQUIRE(made);
  CHECK(made->statistics.real_squares == 2483901162496);  // 2 * 2^40 + 2^38 + 10^10
  CHECK(made->statistics.makespan_s > 1.0);
}

TEST_CASE("Megatron-LM#2054, verl#2452: equal tokens are not equal work") {
  // {1024} against {512, 512}: attention 2 : 1; the model puts work, not tokens, on the ranks.
  const problem p = job({1024}, 1, 4096);
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const auto one = cost.forward_parts({1024, 1024 * 1024, 1}, 1, dyncp::link::nvlink, 0);
  const auto two = cost.forward_parts({1024, 2 * 512 * 512, 2}, 1, dyncp::link::nvlink, 0);
  CHECK(one.attention_s == doctest::Approx(2 * two.attention_s));
  CHECK(one.linear_s == two.linear_s);
  // Quadratic work: 32 with nothing beside it, the rest on the other rank.
  problem q = job({32, 16, 16, 16, 16}, 2, 64);
  q.parallel.max_cp = 1;
  q.limits.micro_batches = 1;
  const auto made = dyncp::planner{quadratic_cost{}}.plan(q);
  REQUIRE(made);
  CHECK(home_of(made->plan, 0).in->sequences.size() == 1);
}

// ---- sums and reports

TEST_CASE("Megatron-LM#906, #673, verl#5983: every plan counts each token once: 10 + 6 are 16") {
  for (const std::int32_t cp : {1, 2, 4}) {
    problem p = job({10, 6}, 4, 16);
    p.parallel.min_cp = cp;
    const auto made = plan_of(p);
    REQUIRE(made);
    CHECK(made->statistics.real_tokens == 16);
    CHECK(made->statistics.sequences == 2);
  }
}

TEST_CASE("verl#5869, AReaL#627: 40 tokens on a pair of ranks are 40, not 80 or 160") {
  problem p = job({40}, 4, 20);
  p.parallel.min_cp = 2;
  p.parallel.max_cp = 2;
  const auto made = plan_of(p);
  REQUIRE(made);
  CHECK(made->statistics.real_tokens == 40);
  REQUIRE(made->statistics.cp_mix.size() == 1);
  CHECK(made->statistics.cp_mix[0].tokens == 40);
}

TEST_CASE("ISEEKYAN/Megatron-LM#140: token sums do not depend on the number of micro-batches") {
  for (const std::int32_t m : {1, 4}) {
    problem p = job({7, 5, 3, 1}, 1, 16);
    p.limits.micro_batches = m;
    const auto made = plan_of(p);
    REQUIRE(made);
    CHECK(made->statistics.micro_batches == m);
    CHECK(made->statistics.real_tokens == 16);
    CHECK(made->statistics.real_squares == 84);
  }
}

TEST_CASE(
    "Megatron-LM#5342, Bridge#1636: FLOPs come from real documents, not from the pack or padding") {
  problem p = job({2048, 2048, 2048, 2048}, 1, 8192);
  p.limits.micro_batches = 1;
  const auto packed = plan_of(p);
  REQUIRE(packed);
  CHECK(packed->statistics.real_squares == 16777216);  // not 8192^2 = 67,108,864
  // 3 * 40 * (2 * 317,194,240 * 8192 + 10,240 * 16,777,216) FLOPs in one iteration.
  const double flops = 120 * (2 * 317194240.0 * 8192 + 10240 * 16777216.0);
  CHECK(packed->statistics.model_tflops_per_gpu * packed->statistics.iteration_s * 1e12 ==
        doctest::Approx(flops));
  p.padding.multiple = 4096;
  p.limits.max_tokens_per_rank = 16384;
  const auto padded = plan_of(p);
  REQUIRE(padded);
  CHECK(padded->statistics.real_squares == 16777216);
  CHECK(padded->statistics.padded_squares == 67108864);
  CHECK(padded->statistics.model_tflops_per_gpu * padded->statistics.iteration_s * 1e12 ==
        doctest::Approx(flops));
}

TEST_CASE("Megatron-LM#5560: sums stay integers: 16777217 tokens, squares of 64 times 131072") {
  const auto odd = plan_of(job({16777217}, 8, 1 << 22));
  REQUIRE(odd);
  CHECK(odd->statistics.real_tokens == 16777217);
  const auto many = plan_of(job(lengths(64, 131072), 8, 1 << 17, 4));
  REQUIRE(many);
  CHECK(many->statistics.real_squares == 1099511627776);
}

TEST_CASE("SkyRL#1019, Bridge: the planner is a function of plain lengths, the same on all ranks") {
  const int on_rank_0[] = {300, 20, 7000, 512};
  const std::vector<std::uint16_t> on_rank_1 = {300, 20, 7000, 512};
  problem a = job({1}, 4, 2048);
  problem b = a;
  a.sequences = dyncp::make_batch(on_rank_0).value();
  b.sequences = dyncp::make_batch(on_rank_1).value();
  CHECK(valid(a) == valid(b));
}

TEST_CASE("verl#6280, SkyRL#1477: a plan can be used again for a second pass over the same batch") {
  problem p = job({300, 20, 7000, 512, 90, 90}, 4, 2048);
  const auto made = plan_of(p);
  REQUIRE(made);
  // The log-probability pass has no backward to pay for, and takes the training plan as it is.
  p.model.recompute = dyncp::recomputation::none;
  const dyncp::planner again{dyncp::analytic_cost(p.model, p.cluster, p.parallel)};
  const auto same = again.evaluate(p, made->plan);
  REQUIRE(same);
  CHECK(same->plan == made->plan);
  CHECK(same->statistics.makespan_s < made->statistics.makespan_s);
}
