// SPDX-License-Identifier: Apache-2.0
#include "support/problems.hpp"

#include <dyncp/plan/validate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

using dyncp::violation;
using dyncp::violation_kind;

namespace {

struct job {
  dyncp::problem prob;
  dyncp::plan plan;
};

// Four ranks, two stages, 8 tokens a rank: [16] on ranks 0-1, [8] on 2, [4 4] on 3; then [2] on
// all.
job valid_job() {
  job j;
  j.prob = dyncp_test::reference_problem({16, 8, 4, 4, 2}, 4, 2, 8);
  j.plan = {4, 8, {}, {}};
  j.plan.micro_batches = {{{{{0, 2}, {0}}, {{2, 1}, {1}}, {{3, 1}, {2, 3}}}},
                          {std::vector<dyncp::pack>{{{0, 4}, {4}}}}};
  return j;
}

dyncp::pack& pack_of(job& j, std::size_t micro_batch, std::size_t group) {
  return j.plan.micro_batches[micro_batch].packs[group];
}

// The one violation of a plan that breaks one promise once.
violation only(const job& j, violation_kind kind) {
  const std::vector<violation> found = dyncp::validate(j.plan, j.prob);
  REQUIRE(found.size() == 1);
  CAPTURE(found[0].message);
  CHECK(to_string(found[0].kind) == to_string(kind));
  CHECK_FALSE(found[0].message.empty());
  const auto as_error = dyncp::check(j.plan, j.prob);
  REQUIRE_FALSE(as_error);
  CHECK(as_error.error().code == dyncp::errc::invalid_plan);
  CHECK(as_error.error().what.starts_with(to_string(kind)));
  CHECK(as_error.error().what.find(found[0].message) != std::string::npos);
  return found[0];
}

void at(const violation& v, std::int32_t micro_batch, std::int32_t group, std::int64_t value,
        std::int64_t limit) {
  CHECK(v.micro_batch == micro_batch);
  CHECK(v.group == group);
  CHECK(v.value == value);
  CHECK(v.limit == limit);
}

}  // namespace

TEST_CASE("a plan that keeps every promise") {
  const job j = valid_job();
  CHECK(dyncp::validate(j.plan, j.prob).empty());
  CHECK(dyncp::check(j.plan, j.prob));
}

TEST_CASE("groups may come in any order, and ranks may be idle") {
  job j = valid_job();
  std::swap(pack_of(j, 0, 0), pack_of(j, 0, 2));
  pack_of(j, 1, 0).ranks = {2, 1};
  CHECK(dyncp::validate(j.plan, j.prob).empty());
}

TEST_CASE("missing_sample") {
  job j = valid_job();
  pack_of(j, 0, 2).sequences = {2};
  const violation v = only(j, violation_kind::missing_sample);
  CHECK(v.sequence == 3);
  CHECK(v.message.find("sequence 3 (length 4)") != std::string::npos);
}

TEST_CASE("duplicate_sample: in another micro-batch, or twice in one pack") {
  job j = valid_job();
  pack_of(j, 1, 0).sequences = {4, 2};
  CHECK(only(j, violation_kind::duplicate_sample).sequence == 2);
  j = valid_job();
  pack_of(j, 1, 0).sequences = {4, 4};
  const violation v = only(j, violation_kind::duplicate_sample);
  at(v, 1, 0, 4, 1);
}

TEST_CASE("unknown_sample: past the end, negative, at the ends of int32") {
  for (const std::int32_t index : {5, -1, INT32_MAX, INT32_MIN}) {
    job j = valid_job();
    pack_of(j, 1, 0).sequences.push_back(index);
    at(only(j, violation_kind::unknown_sample), 1, 0, index, 4);
  }
}

TEST_CASE("rank_out_of_range: beyond the last rank, before the first, empty or huge") {
  for (const dyncp::rank_range r : {dyncp::rank_range{4, 4},
                                    {4, 1},
                                    {-4, 4},
                                    {-1, 1},
                                    {0, 0},
                                    {0, -1},
                                    {0, INT32_MAX},
                                    {INT32_MAX, INT32_MAX},
                                    {INT32_MIN, 1},
                                    {0, INT32_MIN},
                                    {INT32_MAX, INT32_MIN}}) {
    job j = valid_job();
    pack_of(j, 1, 0).ranks = r;
    const violation v = only(j, violation_kind::rank_out_of_range);
    at(v, 1, 0, std::int64_t{r.begin} + r.size, 4);
  }
}

TEST_CASE("rank_overlap: the shared rank is named") {
  job j = valid_job();
  pack_of(j, 0, 1).ranks = {1, 1};
  at(only(j, violation_kind::rank_overlap), 0, 1, 1, 1);
}

TEST_CASE("not_power_of_two: a group of three, where no set was given") {
  job j = valid_job();
  pack_of(j, 1, 0).ranks = {0, 3};
  at(only(j, violation_kind::not_power_of_two), 1, 0, 3, 0);
  j.prob.parallel.cp_sizes = {1, 2, 3};  // an allowed size, which need not be aligned
  CHECK(dyncp::validate(j.plan, j.prob).empty());
  pack_of(j, 1, 0).ranks = {1, 3};
  CHECK(dyncp::validate(j.plan, j.prob).empty());
}

TEST_CASE("size_not_allowed: beyond max-cp, below min-cp, outside the set") {
  job j = valid_job();
  j.prob.parallel.max_cp = 2;
  at(only(j, violation_kind::size_not_allowed), 1, 0, 4, 0);
  j = valid_job();
  j.prob.parallel.cp_sizes = {1, 2, 3};
  at(only(j, violation_kind::size_not_allowed), 1, 0, 4, 0);
  j = valid_job();
  j.prob = dyncp_test::reference_problem({16, 2}, 4, 2, 8);
  j.prob.parallel.min_cp = 2;
  j.plan.micro_batches = {{{{{0, 2}, {0}}, {{2, 1}, {1}}}}};
  at(only(j, violation_kind::size_not_allowed), 0, 1, 1, 0);
}

TEST_CASE("unaligned: two ranks from rank 1 (Megatron-LM#2000: no such communicator)") {
  job j = valid_job();
  pack_of(j, 1, 0).ranks = {1, 2};
  at(only(j, violation_kind::unaligned), 1, 0, 1, 2);
}

TEST_CASE("empty_pack") {
  job j = valid_job();
  j.plan.micro_batches.push_back({{{{0, 1}, {}}}});
  at(only(j, violation_kind::empty_pack), 2, 0, 0, 1);
}

TEST_CASE("an empty micro-batch is none: it runs nothing") {
  job j = valid_job();
  j.plan.micro_batches.emplace_back();
  CHECK(dyncp::validate(j.plan, j.prob).empty());
}

TEST_CASE("over_limit: a token over, by the padded lengths") {
  job j = valid_job();
  j.plan.max_tokens_per_rank = 7;  // breaks all three packs of the first micro-batch
  CHECK(dyncp::validate(j.plan, j.prob).size() == 3);
  j = valid_job();
  j.prob.sequences[1].length = 9;
  at(only(j, violation_kind::over_limit), 0, 1, 9, 8);
  j = valid_job();
  j.prob.sequences[0].length = 17;  // 8.5 tokens a rank
  at(only(j, violation_kind::over_limit), 0, 0, 9, 8);
  // Fits without padding; zigzag makes [15] on two ranks 16, [13] on four ranks 16 of 2*4.
  j = valid_job();
  j.plan.padding.zigzag = true;
  j.prob.sequences[0].length = 15;
  CHECK(dyncp::validate(j.plan, j.prob).empty());
  j.plan.padding.multiple = 9;  // lcm(4, 9) = 36 on the two ranks; 9, 9, 18 on single ones; 72
  CHECK(dyncp::validate(j.plan, j.prob).size() == 4);
  // A tail: shards of 3 tokens make 8 tokens on one rank 9.
  j = valid_job();
  j.plan.padding.shard_multiple = 3;
  CHECK(dyncp::validate(j.plan, j.prob).size() == 3);
}

TEST_CASE("over_pack_tokens: cu_seqlens are int32") {
  job j;
  const std::int64_t half = std::int64_t{1} << 30;
  j.prob = dyncp_test::reference_problem({half, half - 1}, 2, 2, std::int64_t{1} << 40);
  j.plan = {2, std::int64_t{1} << 40, {}, {{{{{0, 2}, {0, 1}}}}}};
  j.plan.micro_batches = {{{{{0, 2}, {0, 1}}}}};
  CHECK(dyncp::validate(j.plan, j.prob).empty());  // 2^31 - 1
  j.prob.sequences[1].length = half;
  at(only(j, violation_kind::over_pack_tokens), 0, 0, 0, (std::int64_t{1} << 31) - 1);
  // 2^40 tokens a sequence do not overflow the sum either.
  j.prob.sequences.assign(9, {.id = 0, .length = std::int64_t{1} << 40});
  j.plan.micro_batches[0].packs[0].sequences = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  only(j, violation_kind::over_pack_tokens);
}

TEST_CASE("over_sequence_cap (Megatron-LM dev: 40 in a pack)") {
  job j = valid_job();
  j.prob.limits.max_sequences_per_pack = 1;
  at(only(j, violation_kind::over_sequence_cap), 0, 2, 2, 1);
  j.prob.limits.max_sequences_per_pack = 2;
  CHECK(dyncp::validate(j.plan, j.prob).empty());
}

TEST_CASE("over_inflight: the window of the first stage") {
  job j = valid_job();  // ranks 0-3 hold 8, 8, 8, 8 and then 1 token; two stages hold both
  j.prob.limits.max_inflight_tokens = 9;
  CHECK(dyncp::validate(j.plan, j.prob).empty());
  j.prob.limits.max_inflight_tokens = 8;
  at(only(j, violation_kind::over_inflight), -1, -1, 9, 8);
  j.prob.parallel.pp = 1;
  CHECK(dyncp::validate(j.plan, j.prob).empty());
}

TEST_CASE("split_atom: a preference pair in two packs (NeMo-RL#719)") {
  job j = valid_job();
  j.prob.sequences[2].atom = 5;
  j.prob.sequences[3].atom = 5;
  CHECK(dyncp::validate(j.plan, j.prob).empty());
  pack_of(j, 0, 2).sequences = {2};
  pack_of(j, 1, 0).sequences = {3, 4};
  const violation v = only(j, violation_kind::split_atom);
  CHECK(v.sequence == 3);
  CHECK(v.value == 5);
}

TEST_CASE("wrong_micro_batches: not the fixed number, not a multiple") {
  job j = valid_job();
  j.prob.limits.micro_batches = 3;
  at(only(j, violation_kind::wrong_micro_batches), -1, -1, 2, 3);
  j = valid_job();
  j.prob.limits.micro_batch_multiple = 3;
  at(only(j, violation_kind::wrong_micro_batches), -1, -1, 2, 3);
  j = valid_job();
  j.prob.parallel.pp = 4;
  CHECK(dyncp::validate(j.plan, j.prob).empty());
  j.prob.parallel.vpp = 2;  // interleaving runs groups of 4
  at(only(j, violation_kind::wrong_micro_batches), -1, -1, 2, 4);
}

TEST_CASE("idle_rank: how many of the ranks have work") {
  job j = valid_job();
  j.prob.limits.no_idle_ranks = true;
  CHECK(dyncp::validate(j.plan, j.prob).empty());
  pack_of(j, 1, 0).ranks = {0, 2};
  at(only(j, violation_kind::idle_rank), 1, -1, 2, 4);
}

TEST_CASE("mixed_cp: two sizes where one was asked for") {
  job j = valid_job();
  j.prob.limits.uniform_cp = true;
  CHECK(dyncp::validate(j.plan, j.prob).size() == 2);  // both single ranks beside the pair
  pack_of(j, 0, 2).ranks = {2, 2};
  pack_of(j, 0, 1).sequences = {4};
  pack_of(j, 0, 1).ranks = {0, 1};
  j.plan.micro_batches[1].packs[0].sequences = {1};
  j.plan.micro_batches[0].packs.erase(j.plan.micro_batches[0].packs.begin());
  j.plan.micro_batches.push_back({{{{0, 2}, {0}}}});
  at(only(j, violation_kind::mixed_cp), 0, 1, 2, 1);
}

TEST_CASE("wrong_padding: a multiple that is none, or over what alignments can hold") {
  constexpr std::int64_t wide = std::int64_t{1} << 62;
  for (const dyncp::padding_rule& rule :
       {dyncp::padding_rule{.multiple = 0}, {.shard_multiple = 0}, {.sequence_parallel = 0},
        {.zigzag = true, .multiple = wide + 1}, {.shard_multiple = wide}, {.multiple = -1},
        {.sequence_parallel = 4097}}) {
    job j = valid_job();
    j.plan.padding = rule;
    const auto found = dyncp::validate(j.plan, j.prob);
    REQUIRE(found.size() == 1);
    CHECK(found[0].kind == violation_kind::wrong_padding);
    CHECK(dyncp::check(j.plan, j.prob).error().code == dyncp::errc::invalid_plan);
  }
}

TEST_CASE("every kind has a name of its own") {
  std::vector<std::string_view> names;
  for (int k = 0; k <= static_cast<int>(violation_kind::wrong_padding); ++k) {
    names.push_back(to_string(static_cast<violation_kind>(k)));
    CHECK(names.back() != "unknown");
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}

TEST_CASE("a plan without micro-batches misses every sequence; one without ranks holds none") {
  job j = valid_job();
  j.plan.micro_batches.clear();
  CHECK(dyncp::validate(j.plan, j.prob).size() == 5);
  j = valid_job();
  for (const std::int32_t ranks : {0, -1, INT32_MIN}) {
    j.plan.num_ranks = ranks;
    const auto found = dyncp::validate(j.plan, j.prob);
    REQUIRE(found.size() > 1);
    CHECK(found[0].kind == violation_kind::wrong_job);
    for (std::size_t i = 1; i < found.size(); ++i) {
      CHECK(found[i].kind == violation_kind::rank_out_of_range);
    }
  }
}
