// SPDX-License-Identifier: Apache-2.0
// The metadata message: exact, told alike to every stage and tensor rank, total on any input.
#include "trainer/batches.hpp"

#include <dyncp/trainer/data_iterator.hpp>
#include <dyncp/trainer/share_step.hpp>
#include <dyncp/trainer/step_message.hpp>
#include <dyncp/trainer/step_vote.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp_test;
using dyncp::decode;
using dyncp::encode;
using dyncp::errc;
using dyncp::step_metadata;

namespace {

step_metadata random_step(dyncp_test::random& rng) {
  step_metadata step;
  step.iteration = rng.between(0, std::int64_t{1} << 40);
  step.digest = rng.next();
  step.num_ranks = static_cast<std::int32_t>(rng.between(1, 16));
  step.rank = static_cast<std::int32_t>(rng.between(0, step.num_ranks - 1));
  step.sums.tokens = rng.between(0, std::numeric_limits<std::int64_t>::max());
  step.sums.squares = step.sums.tokens * dyncp::int128{rng.between(0, 1 << 30)};
  step.sums.count = rng.between(0, 1 << 20);
  step.sums.longest = rng.between(0, std::int64_t{1} << 40);
  for (std::int64_t m = rng.between(0, 5); m > 0; --m) {
    dyncp::micro_batch_metadata mb;
    if (!rng.one_in(4)) {
      const auto size = static_cast<std::int32_t>(rng.between(1, step.num_ranks));
      const std::int32_t lowest = std::max(0, step.rank - size + 1);
      const std::int32_t highest = std::min(step.rank, step.num_ranks - size);
      mb.ranks = {static_cast<std::int32_t>(rng.between(lowest, highest)), size};
      std::vector<std::int64_t> lengths;
      for (std::int64_t s = rng.between(0, 6); s > 0; --s) {
        lengths.push_back(rng.between(0, 100));
        mb.sequence_ids.push_back(static_cast<std::int64_t>(rng.next()));
      }
      dyncp::padding_rule rule{.zigzag = true};
      if (rng.one_in(3)) rule.shard_multiple = 8;
      mb.layout = *dyncp::pack_layout::make(lengths, dyncp::layout_kind::zigzag, size, rule);
    }
    step.micro_batches.push_back(std::move(mb));
  }
  return step;
}

}  // namespace

TEST_CASE("a step comes back as it was sent") {
  const std::uint64_t seed = seed_or(31);
  dyncp_test::random rng(seed);
  INFO("seed " << seed);
  for (std::int64_t round = count_or(300); round > 0; --round) {
    const step_metadata step = random_step(rng);
    const auto words = encode(step);
    CHECK(words[0] == static_cast<std::int64_t>(words.size()));
    const auto back = decode(words);
    REQUIRE(back);
    REQUIRE(*back);
    CHECK((*back)->digest == step.digest);
    CHECK((*back)->iteration == step.iteration);
    CHECK((*back)->sums.tokens == step.sums.tokens);
    CHECK((*back)->sums.squares == step.sums.squares);
    REQUIRE((*back)->num_micro_batches() == step.num_micro_batches());
    for (std::size_t m = 0; m < step.micro_batches.size(); ++m) {
      const auto& a = step.micro_batches[m];
      const auto& b = (*back)->micro_batches[m];
      CHECK(a.ranks == b.ranks);
      CHECK(a.layout.cu() == b.layout.cu());
      CHECK(a.layout.tokens() == b.layout.tokens());
      CHECK(a.layout.max_length() == b.layout.max_length());
      CHECK(a.sequence_ids == b.sequence_ids);
    }
    CHECK(encode(**back) == words);
  }
}

// Megatron-LM#5560: cu_seqlens and sums of squares were sent as float32, exact below 2^24.
TEST_CASE("Megatron-LM#5560: offsets over 2^24 and sums of squares over 2^53 survive") {
  step_metadata step;
  step.num_ranks = 1;
  step.sums.squares = dyncp::int128{131072} * 131072 * 64 + 1;
  step.sums.tokens = 16777217;
  dyncp::micro_batch_metadata mb;
  mb.ranks = {0, 1};
  mb.sequence_ids = {9007199254740993};  // 2^53 + 1
  mb.layout = *dyncp::pack_layout::make(std::vector<std::int64_t>{16777217},
                                        dyncp::layout_kind::zigzag, 1, {});
  step.micro_batches.push_back(mb);
  const auto back = decode(encode(step));
  REQUIRE(back);
  CHECK((*back)->sums.squares == dyncp::int128{1099511627777});
  CHECK((*back)->micro_batches[0].layout.cu().real[1] == 16777217);
  CHECK((*back)->micro_batches[0].sequence_ids[0] == 9007199254740993);
}

TEST_CASE("an error and the end travel as messages of the same kind") {
  const auto end = decode(dyncp::encode_end(7));
  REQUIRE(end);
  CHECK(!*end);
  for (const errc code : {errc::mismatch, errc::parse_error, errc::backend_failure}) {
    for (const std::string& text : {std::string(), std::string("x"), std::string("a line; §"),
                                    std::string(800, 'q')}) {
      const dyncp::error sent{code, text, -5, std::int64_t{1} << 60, "do " + text};
      const auto words = dyncp::encode_failure(3, sent);
      const auto got = decode(words);
      REQUIRE(!got);
      CHECK(got.error().code == code);
      CHECK(got.error().what == sent.what);
      CHECK(got.error().hint == sent.hint);
      CHECK(got.error().value == sent.value);
      CHECK(got.error().limit == sent.limit);
    }
  }
}

TEST_CASE("any words are a message or a typed error") {
  const std::uint64_t seed = seed_or(32);
  dyncp_test::random rng(seed);
  INFO("seed " << seed);
  std::int64_t accepted = 0;
  for (std::int64_t round = count_or(4000); round > 0; --round) {
    std::vector<std::int64_t> words = encode(random_step(rng));
    if (rng.one_in(10)) words = dyncp::encode_failure(1, failed("a reason"));
    if (rng.one_in(10)) words = dyncp::encode_end(1);
    const std::int64_t changes = rng.between(1, 3);
    for (std::int64_t c = 0; c < changes && !words.empty(); ++c) {
      const auto at = static_cast<std::size_t>(
          rng.between(0, static_cast<std::int64_t>(words.size()) - 1));
      switch (rng.between(0, 6)) {
        case 0: words[at] = static_cast<std::int64_t>(rng.next()); break;
        case 1: words[at] += rng.between(-2, 2); break;
        case 2: words[at] = std::numeric_limits<std::int64_t>::min(); break;
        case 3: words[at] = std::numeric_limits<std::int64_t>::max(); break;
        case 4: words.resize(at); break;
        case 5: words.insert(words.begin() + static_cast<std::ptrdiff_t>(at), 0); break;
        case 6: words.erase(words.begin() + static_cast<std::ptrdiff_t>(at)); break;
      }
      if (!words.empty() && rng.one_in(2)) words[0] = static_cast<std::int64_t>(words.size());
    }
    const auto got = decode(words);
    if (!got) {
      CHECK(!got.error().what.empty());
      const bool carried = words.size() > 4 && words[2] == 2;
      if (!carried) {
        CHECK(got.error().code == errc::parse_error);
        CHECK(!got.error().hint.empty());
      }
      continue;
    }
    ++accepted;
    // What is accepted is what encode writes.
    if (*got) CHECK(encode(**got) == words);
  }
  CHECK(accepted > 0);
  CHECK(!decode({}));
  for (std::size_t n = 1; n < 20; ++n) {
    CHECK(!decode(std::vector<std::int64_t>(n, 0)));
    CHECK(!decode(std::vector<std::int64_t>(n, static_cast<std::int64_t>(n))));
  }
}

TEST_CASE("the groups of a message are the receiver's own") {
  step_metadata step;
  step.rank = 5;
  step.num_ranks = 8;
  step.micro_batches.resize(3);
  step.micro_batches[0].ranks = {4, 2};
  step.micro_batches[2].ranks = {5, 1};
  for (std::size_t m : {std::size_t{0}, std::size_t{2}}) {
    auto& mb = step.micro_batches[m];
    const std::vector<std::int64_t> both = {8, 8};
    mb.layout = *dyncp::pack_layout::make(both, dyncp::layout_kind::zigzag, mb.ranks.size,
                                          {.zigzag = true});
    mb.sequence_ids = {1, 2};
  }
  const auto back = decode(encode(step));
  REQUIRE(back);
  std::vector<dyncp::rank_range> asked;
  const auto group_of = [&](dyncp::rank_range r) -> dyncp::result<dyncp::group_handle> {
    asked.push_back(r);
    return dyncp::group_handle{77, r, 5 - r.begin, 0};
  };
  const auto first = dyncp::bind(**back, 0, group_of);
  REQUIRE(first);
  REQUIRE(*first);
  CHECK((*first)->group.generation == 77);
  CHECK((*first)->cp_rank() == 1);
  CHECK((*first)->micro_batch == 0);
  const auto idle = dyncp::bind(**back, 1, group_of);
  REQUIRE(idle);
  CHECK(!*idle);
  const auto alone = dyncp::bind(**back, 2, group_of);
  REQUIRE(alone);
  CHECK((*alone)->cp_size() == 1);
  CHECK(asked == std::vector<dyncp::rank_range>{{4, 2}, {5, 1}});
  for (const std::int32_t bad : {-1, 3}) {
    const auto none = dyncp::bind(**back, bad, group_of);
    REQUIRE(!none);
    CHECK(none.error().code == errc::invalid_argument);
  }
  const auto wrong = dyncp::bind(**back, 0, [](dyncp::rank_range) {
    return dyncp::result<dyncp::group_handle>(dyncp::group_handle{1, {5, 1}, 0, -1});
  });
  REQUIRE(!wrong);
  CHECK(wrong.error().code == errc::mismatch);
}

// Megatron-LM#4092, #4150: middle stages lacked cu_seqlens. Here 2 ranks of the DPxCP domain, each
// of pp 4 x tp 2 processes; process = (stage * tp + tensor) * 2 + rank.
TEST_CASE("Megatron-LM#4092, #4150: every stage and tensor rank sees the same metadata") {
  constexpr std::int32_t processes = 16;
  const auto lengths = some_lengths(30, 150, 33);
  const dyncp::problem job = small_job(2, 100, 4);
  std::mutex mutex;
  std::vector<std::vector<std::vector<std::int64_t>>> told(processes);  // by step, as words
  std::vector<char> ends(processes, 0);  // not bool: its bits share a word
  const auto results = run_pool({.ranks = processes}, [&](thread_pool& world)
                                                          -> dyncp::result<void> {
    const std::int32_t rank = world.rank() % 2;
    const std::int32_t tensor = world.rank() / 2 % 2;
    const std::int32_t stage = world.rank() / 4;
    // Exchanges among the processes of one rank, and among the ranks of one stage, by hand.
    struct members {
      thread_pool* world;
      std::vector<std::int32_t> who;
      std::int32_t rank() const {
        return static_cast<std::int32_t>(std::find(who.begin(), who.end(), world->rank()) -
                                         who.begin());
      }
      std::int32_t size() const { return static_cast<std::int32_t>(who.size()); }
      dyncp::result<void> exchange_host(std::span<const dyncp::outgoing> out,
                                        std::span<const dyncp::incoming> in) {
        std::vector<dyncp::outgoing> o(out.begin(), out.end());
        std::vector<dyncp::incoming> i(in.begin(), in.end());
        for (auto& m : o) m.peer = who[static_cast<std::size_t>(m.peer)];
        for (auto& m : i) m.peer = who[static_cast<std::size_t>(m.peer)];
        return world->exchange_host(world->everyone(), o, i);
      }
    };
    members model{&world, {}};
    members domain{&world, {}};
    for (std::int32_t p = 0; p < processes; ++p) {
      if (p % 2 == rank) model.who.push_back(p);
      if (p / 2 == world.rank() / 2) domain.who.push_back(p);
    }
    const auto groups = [&](dyncp::rank_range r) -> dyncp::result<dyncp::group_handle> {
      return dyncp::group_handle{world.generation(), r, rank - r.begin, 0};
    };
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                             {.global_batch_size = 10}, make_sample);
    const auto me = static_cast<std::size_t>(world.rank());
    for (;;) {
      dyncp::result<std::optional<step_metadata>> known = std::optional<step_metadata>{};
      if (stage == 0 && tensor == 0) known = dyncp::metadata_of(batches.next(domain, groups));
      known = dyncp::share_step(model, known, 0);
      if (!known) return std::move(known).error();
      if (!*known) {
        ends[me] = 1;
        return {};
      }
      for (std::int32_t m = 0; m < (*known)->num_micro_batches(); ++m) {
        auto params = dyncp::bind(**known, m, groups);
        if (!params) return std::move(params).error();
      }
      const std::lock_guard lock(mutex);
      told[me].push_back(encode(**known));
    }
  });
  CHECK(complaints(results) == "");
  for (std::size_t p = 0; p < processes; ++p) {
    CHECK(ends[p]);
    REQUIRE(told[p].size() == 3);
    CHECK(told[p] == told[p % 2]);
  }
  for (std::int32_t stage = 0; stage < 4; ++stage) {
    for (std::int32_t tensor = 0; tensor < 2; ++tensor) {
      const dyncp::pipeline_place place{stage, 4, 0, 1, tensor};
      CHECK(place.holds_data() == (tensor == 0 && (stage == 0 || stage == 3)));
    }
  }
}

TEST_CASE("a failure of the rank with the data is the error of all its processes") {
  const auto results = run_pool({.ranks = 6}, [&](thread_pool& pool) -> dyncp::result<void> {
    auto channel = pool.channel(pool.everyone());
    dyncp::result<std::optional<step_metadata>> mine = std::optional<step_metadata>{};
    if (pool.rank() == 2) mine = dyncp::error{errc::infeasible, "no plan", 7, 3, "buy memory"};
    const auto got = dyncp::share_step(channel, mine, 2);
    if (got) return failed("no error came");
    if (got.error().code != errc::infeasible || got.error().what != "no plan" ||
        got.error().value != 7 || got.error().hint != "buy memory") {
      return failed("another error came");
    }
    // And the channel still works.
    return dyncp::barrier(channel);
  });
  CHECK(complaints(results) == "");
}

TEST_CASE("iterators of one's own: the vote alone") {
  for (int what = 0; what < 4; ++what) {
    std::mutex mutex;
    std::set<std::string> errors;
    const auto results = run_pool({.ranks = 5}, [&](thread_pool& pool) -> dyncp::result<void> {
      auto channel = pool.channel(pool.everyone());
      const bool odd = pool.rank() == 3;
      const dyncp::error mine = failed("cannot read");
      const auto agreed = dyncp::agree_on_step(channel, odd && what == 1 ? 8 : 7,
                                               odd && what == 2 ? 43 : 42,
                                               odd && what == 3 ? &mine : nullptr);
      if (agreed.has_value() != (what == 0)) return failed("the vote went wrong");
      const std::lock_guard lock(mutex);
      if (!agreed) errors.insert(agreed.error().message());
      if (!agreed && agreed.error().code != (what == 3 ? errc::invalid_plan : errc::mismatch)) {
        return failed("another code");
      }
      return {};
    });
    CHECK(complaints(results) == "");
    CHECK(errors.size() == (what == 0 ? 0 : 1));
  }
}
