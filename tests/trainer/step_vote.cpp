// SPDX-License-Identifier: Apache-2.0
// Where ranks meet after failures, and what their votes come to.
#include "trainer/batches.hpp"

#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/trainer/step_vote.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

using namespace dyncp_test;
using dyncp::errc;
using dyncp::step_vote;

namespace {

step_vote at(std::int64_t iteration, std::int64_t lowest, std::int64_t unread,
             std::int64_t batch_size = 8) {
  step_vote v;
  v.iteration = iteration;
  v.lowest = lowest;
  v.unread = unread;
  v.terms.batch_size = batch_size;
  return v;
}

}  // namespace

TEST_CASE("ranks meet at the earliest iteration that one of them needs") {
  // Rank 1 was yielded iteration 4 and can go back to it; rank 2 lacks the lengths of 5.
  const std::vector<step_vote> votes = {at(4, 3, 6), at(5, 4, 7), at(4, 3, 5)};
  const auto place = dyncp::meeting_place(votes);
  REQUIRE(place);
  CHECK(place->iteration == 4);
  CHECK(place->unread == 5);
  CHECK(dyncp::meeting_place(std::vector<step_vote>{at(9, 9, 9)})->iteration == 9);
}

TEST_CASE("ranks that cannot meet are told why") {
  const auto apart = dyncp::meeting_place(std::vector<step_vote>{at(4, 3, 4), at(6, 5, 6)});
  REQUIRE(!apart);
  CHECK(apart.error().code == errc::mismatch);
  CHECK(apart.error().value == 4);
  CHECK(apart.error().limit == 5);
  const auto sizes = dyncp::meeting_place(std::vector<step_vote>{at(4, 4, 4, 8), at(4, 4, 4, 7)});
  REQUIRE(!sizes);
  CHECK(sizes.error().code == errc::mismatch);
  CHECK(sizes.error().what.find("global_batch_size is 7 on rank 1 and 8 on rank 0") !=
        std::string::npos);
}

TEST_CASE("lengths are not taken for a vote: all ranks are told whose they were") {
  for (const std::int32_t odd : {0, 2}) {
    std::mutex mutex;
    std::vector<std::string> heard;
    const auto results = run_pool({.ranks = 3}, [&](thread_pool& pool) -> dyncp::result<void> {
      auto all = pool.channel(pool.everyone());
      step_vote mine = at(4, 4, 5);
      // The words of a rank that gathers lengths, in a message of just that size.
      if (pool.rank() == odd) mine.tag = dyncp::lengths_tag;
      const auto votes = dyncp::gather_votes(all, mine);
      if (votes) return failed("not all of them were votes");
      const std::lock_guard lock(mutex);
      CHECK(votes.error().code == errc::mismatch);
      heard.push_back(votes.error().what);
      return {};
    });
    CHECK(complaints(results) == "");
    const std::string expected =
        "rank " + std::to_string(odd) + " sent something else than a vote";
    CHECK(heard == std::vector<std::string>(3, expected));
  }
}

TEST_CASE("votes: a failure before a difference, iterations before digests, the same on all") {
  struct what {
    std::int64_t iteration;
    std::uint64_t digest;
    bool fails;
  };
  struct outcome {
    std::vector<what> ranks;
    errc code;
    const char* text;
  };
  const std::vector<outcome> outcomes = {
      {{{3, 1, false}, {3, 2, true}, {4, 3, false}}, errc::io_error, "rank 1: no disk"},
      {{{3, 1, true}, {3, 1, true}, {3, 1, false}}, errc::io_error, "rank 0: no disk"},
      {{{3, 1, false}, {3, 2, false}, {4, 3, false}}, errc::mismatch, "rank 1 has digest 2"},
      {{{3, 1, false}, {3, 1, false}, {4, 1, false}}, errc::mismatch, "rank 2 is at iteration 4"},
  };
  for (const outcome& o : outcomes) {
    std::mutex mutex;
    std::vector<std::string> heard;
    const auto results = run_pool({.ranks = 3}, [&](thread_pool& pool) -> dyncp::result<void> {
      const what& mine = o.ranks[static_cast<std::size_t>(pool.rank())];
      const dyncp::error failure = dyncp::make_error(errc::io_error, "no disk");
      auto all = pool.channel(pool.everyone());
      const auto done = dyncp::agree_on_step(all, mine.iteration, mine.digest,
                                             mine.fails ? &failure : nullptr);
      if (done) return failed("votes that differ were taken for equal");
      const std::lock_guard lock(mutex);
      CHECK(done.error().code == o.code);
      heard.push_back(done.error().what);
      return {};
    });
    CHECK(complaints(results) == "");
    REQUIRE(heard.size() == 3);
    CHECK(heard[0].find(o.text) != std::string::npos);
    CHECK(heard[1] == heard[0]);
    CHECK(heard[2] == heard[0]);
  }
}
