// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/plan/digest.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

namespace {

std::uint64_t of_words(int count) {
  dyncp::word_digest d;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
    d.add(i * 0x9E3779B97F4A7C15);
  }
  return d.value();
}

dyncp::problem small_problem() {
  dyncp::problem p = dyncp_test::reference_problem({60000, 7}, 8, 2, 16384);
  p.sequences[0].id = 10;
  p.sequences[1] = {.id = 11, .length = 7, .atom = 3};
  p.parallel.cp_sizes = {1, 2, 8};
  p.limits.uniform_cp = true;
  p.padding.zigzag = true;
  return p;
}

dyncp::plan small_plan() {
  dyncp::plan p{8, 16384, {.zigzag = true}, {}};
  p.micro_batches = {{{}}, {{{{4, 2}, {1}}}}};
  p.micro_batches[0].packs = {{{0, 8}, {0}}};
  p.micro_batches[0].packs[0].ranks = {0, 8};
  return p;
}

// A cost model with parameters that no spec holds.
struct own_cost : dyncp::analytic_cost {
  using analytic_cost::analytic_cost;
  double slope = 1.5;
  [[nodiscard]] std::vector<std::uint64_t> digest_words() const {
    return {std::bit_cast<std::uint64_t>(slope), 3};
  }
};

}  // namespace

// The expected numbers are those of the xxhash package of Python, over struct.pack of the words.

TEST_CASE("XXH64 of whole words, from none to a thousand") {
  CHECK(of_words(0) == 0xef46db3751d8e999);
  CHECK(of_words(1) == 0x34c96acdcadb1bbb);
  CHECK(of_words(2) == 0x9e2eaf2ace81681e);
  CHECK(of_words(3) == 0x40c9c675cd48cc96);
  CHECK(of_words(4) == 0x989d9082fb244405);
  CHECK(of_words(5) == 0x84424fcf8d3f3c1a);
  CHECK(of_words(7) == 0x4731f87cf0c012e1);
  CHECK(of_words(8) == 0xdb9141c643e3308d);
  CHECK(of_words(9) == 0x8c69d51e301182d7);
  CHECK(of_words(31) == 0x442e137fb803edc5);
  CHECK(of_words(32) == 0xc38bce1382775438);
  CHECK(of_words(1000) == 0x6d824550b50ece3e);
}

TEST_CASE("integers in two's complement, doubles by their bits, at compile time too") {
  constexpr std::uint64_t value = [] {
    dyncp::word_digest d;
    d.add(std::int64_t{-1});
    d.add(std::int32_t{5});
    d.add(INT64_MIN);
    d.add(true);
    d.add(false);
    d.add(1.5);
    d.add(-0.0);
    d.add(1e-300);
    return d.value();
  }();
  static_assert(value == 0x820090ff08a6951f);
  CHECK(value == 0x820090ff08a6951f);
}

TEST_CASE("a value can be read between words") {
  dyncp::word_digest d;
  for (int n = 0; n <= 9; ++n) {
    CHECK(d.value() == of_words(n));
    d.add(static_cast<std::uint64_t>(n) * 0x9E3779B97F4A7C15);
  }
}

TEST_CASE("the canonical words of a problem and a plan, listed apart in Python") {
  // problem: tag, 2 sequences (10, 60000, -1), (11, 7, 3), reference-13b model and cluster, layout
  // 8 2 1 1 1 1 0 with sizes 1 2 8, limits 16384 0 0 0 1 0 1, padding 1 1 1 1
  CHECK(dyncp::digest(small_problem()) == 0x6a40db4772c8f36e);
  // plan: tag, 8 ranks, limit 16384, padding, 2 micro-batches: 1 pack (0, 8, [0]), 1 (4, 2, [1])
  CHECK(dyncp::digest(small_plan()) == 0xbc52bfc56e2eb543);
  CHECK(dyncp::digest(small_problem(), small_plan()) == 0x373f645fa92588ee);
  const dyncp::problem p = small_problem();
  const own_cost cost(p.model, p.cluster, p.parallel);
  CHECK(dyncp::digest(cost) == 0x435c231281d3b234);
  CHECK(dyncp::digest(p, cost, small_plan()) == 0xd8f4c8a136214bad);
  static_assert(dyncp::digestible_cost<own_cost>);
}

TEST_CASE("every field of a problem changes its digest; names do not") {
  using dyncp::problem;
  const std::vector<std::function<void(problem&)>> changes = {
      [](problem& p) { p.sequences[0].id = 12; },
      [](problem& p) { p.sequences[0].length = 60001; },
      [](problem& p) { p.sequences[1].atom = -1; },
      [](problem& p) { std::swap(p.sequences[0], p.sequences[1]); },
      [](problem& p) { p.sequences.pop_back(); },
      [](problem& p) { p.model.layers += 1; },
      [](problem& p) { p.model.hidden += 1; },
      [](problem& p) { p.model.ffn += 1; },
      [](problem& p) { p.model.query_hidden += 1; },
      [](problem& p) { p.model.kv_hidden += 1; },
      [](problem& p) { p.model.gated_mlp = false; },
      [](problem& p) { p.model.experts = 8; },
      [](problem& p) { p.model.experts_per_token = 2; },
      [](problem& p) { p.model.vocabulary = 32000; },
      [](problem& p) { p.model.dtype_bytes = 4; },
      [](problem& p) { p.model.mask = dyncp::attention_mask::full; },
      [](problem& p) { p.model.recompute = dyncp::recomputation::none; },
      [](problem& p) { p.cluster.gpus_per_node = 4; },
      [](problem& p) { p.cluster.linear_flops_per_s *= 1.0 + 1e-15; },
      [](problem& p) { p.cluster.linear_half_tokens = 400; },
      [](problem& p) { p.cluster.attention_flops_per_s += 1; },
      [](problem& p) { p.cluster.attention_half_tokens = 1; },
      [](problem& p) { p.cluster.nvlink_bytes_per_s += 1; },
      [](problem& p) { p.cluster.nvlink_latency_s *= 2; },
      [](problem& p) { p.cluster.network_bytes_per_s += 1; },
      [](problem& p) { p.cluster.network_latency_s *= 2; },
      [](problem& p) { p.cluster.ring_overlap = 0.5; },
      [](problem& p) { p.cluster.fixed_s *= 2; },
      [](problem& p) { p.cluster.launch_s = 1e-6; },
      [](problem& p) { p.cluster.backward_linear = 2.1; },
      [](problem& p) { p.cluster.backward_attention = 2.5; },
      [](problem& p) { p.cluster.backward_ring_bytes = 3; },
      [](problem& p) { p.cluster.stage_bytes_per_s = 1; },
      [](problem& p) { p.cluster.stage_latency_s = 1; },
      [](problem& p) { p.cluster.memory_gib = 141; },
      [](problem& p) { p.parallel.ranks = 16; },
      [](problem& p) { p.parallel.pp = 4; },
      [](problem& p) { p.parallel.vpp = 2; },
      [](problem& p) { p.parallel.tp = 2; },
      [](problem& p) { p.parallel.static_cp = 2; },
      [](problem& p) { p.parallel.min_cp = 2; },
      [](problem& p) { p.parallel.max_cp = 8; },
      [](problem& p) {
        p.parallel.cp_sizes = {1, 8};
      },
      [](problem& p) { p.limits.max_tokens_per_rank += 1; },
      [](problem& p) { p.limits.max_inflight_tokens = 1; },
      [](problem& p) { p.limits.max_sequences_per_pack = 1; },
      [](problem& p) { p.limits.micro_batches = 1; },
      [](problem& p) { p.limits.micro_batch_multiple = 2; },
      [](problem& p) { p.limits.no_idle_ranks = true; },
      [](problem& p) { p.limits.uniform_cp = false; },
      [](problem& p) { p.padding.zigzag = false; },
      [](problem& p) { p.padding.sequence_parallel = 2; },
      [](problem& p) { p.padding.multiple = 2; },
      [](problem& p) { p.padding.shard_multiple = 2; },
  };
  std::set<std::uint64_t> seen = {dyncp::digest(small_problem())};
  for (const auto& change : changes) {
    dyncp::problem p = small_problem();
    change(p);
    CHECK(seen.insert(dyncp::digest(p)).second);
  }
  dyncp::problem renamed = small_problem();
  renamed.model.name = "another";
  renamed.cluster.name = "another";
  CHECK(dyncp::digest(renamed) == dyncp::digest(small_problem()));
}

TEST_CASE("every part of a plan changes its digest") {
  using dyncp::plan;
  const std::vector<std::function<void(plan&)>> changes = {
      [](plan& p) { p.num_ranks = 9; },
      [](plan& p) { p.max_tokens_per_rank = 1; },
      [](plan& p) { p.padding.zigzag = false; },
      [](plan& p) { p.micro_batches[1].packs[0].ranks.begin = 6; },
      [](plan& p) { p.micro_batches[1].packs[0].ranks.size = 1; },
      [](plan& p) { p.micro_batches[1].packs[0].sequences = {0}; },
      [](plan& p) {
        p.micro_batches[1].packs[0].sequences = {1, 0};
      },
      [](plan& p) { p.micro_batches[1].packs[0].sequences.clear(); },
      [](plan& p) { p.micro_batches[1].packs.clear(); },
      [](plan& p) { p.micro_batches.emplace_back(); },
      [](plan& p) { std::swap(p.micro_batches[0], p.micro_batches[1]); },
  };
  std::set<std::uint64_t> seen = {dyncp::digest(small_plan())};
  for (const auto& change : changes) {
    plan p = small_plan();
    change(p);
    CHECK(seen.insert(dyncp::digest(p)).second);
  }
}

TEST_CASE("three ranks, one length altered: the digests differ on that rank (OpenPipe/ART#840)") {
  const dyncp::problem mine = dyncp_test::reference_problem({7441, 11949, 12075}, 4, 2, 8192);
  dyncp::problem other = mine;
  other.sequences[2].length = 12076;
  const auto plan_of = [](const dyncp::problem& p) {
    return *dyncp::dynamic_cp{}.pack(p, dyncp::analytic_cost(p.model, p.cluster, p.parallel));
  };
  const std::uint64_t first = dyncp::digest(mine, plan_of(mine));
  CHECK(dyncp::digest(mine, plan_of(mine)) == first);
  CHECK(dyncp::digest(other, plan_of(other)) != first);
  // Even where the plans happen to be equal, the inputs are not.
  CHECK(dyncp::digest(other, plan_of(mine)) != first);
}

TEST_CASE("50,000 problems of one digit's difference have 50,000 digests") {
  dyncp::problem p = small_problem();
  std::set<std::uint64_t> seen;
  for (std::int64_t length = 1; length <= 50000; ++length) {
    p.sequences[1].length = length;
    seen.insert(dyncp::digest(p));
  }
  CHECK(seen.size() == 50000);
}
