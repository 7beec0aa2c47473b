// SPDX-License-Identifier: Apache-2.0
// Lengths that nobody knows beforehand, probed over MPI: every process runs this program. The laws
// are those of trainer/length_probe.cpp, which runs on threads.
#include "trainer/batches.hpp"

#include <dyncp/mpi/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/trainer/data_iterator.hpp>
#include <dyncp/trainer/lone_channel.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp_test;

namespace {

struct mpi_session {
  mpi_session() { MPI_Init(nullptr, nullptr); }
  ~mpi_session() { MPI_Finalize(); }
} const session;

using backend = dyncp::mpi::backend;
using pool_type = dyncp::group_pool<backend>;

constexpr std::int64_t samples = 42;

std::vector<std::int64_t> test_lengths() { return some_lengths(samples, 180, 21); }

template <class F>
void with_pool(F f) {
  auto made = backend::create(MPI_COMM_WORLD);
  REQUIRE(made);
  auto pool = pool_type::create(*made, {});
  REQUIRE(pool);
  f(*pool);
}

/// What a rank saw of its steps; sums over ranks say that nothing was lost or came twice.
struct seen {
  std::vector<std::int64_t> probed = std::vector<std::int64_t>(samples, 0);
  std::vector<std::int64_t> tokens = std::vector<std::int64_t>(samples, 0);  // by local share
  std::int64_t sent = 0;
  std::int64_t received = 0;
  std::int64_t steps = 0;
};

/// Takes one step in: samples are unchanged, and each rank of a group has them whole.
template <class Step>
void take(seen& out, const Step& step, const std::vector<std::int64_t>& lengths) {
  CHECK(step.iteration() == out.steps);
  ++out.steps;
  out.sent += step.costs().rerouted_bytes;
  out.received += step.costs().received_bytes;
  for (std::int32_t m = 0; m < step.num_micro_batches(); ++m) {
    const auto mb = step.micro_batch(m);
    for (std::size_t i = 0; i < mb.samples.size(); ++i) {
      const std::int64_t id = mb.params->sequence_ids[i];
      const auto at = static_cast<std::size_t>(id);
      CHECK(mb.samples[i] == make_sample({id, lengths[at], -1}));
      // Counted by the first rank of its group.
      if (mb.params->group.index == 0) out.tokens[at] += lengths[at];
    }
  }
}

void check_sums(pool_type& pool, seen& mine, const std::vector<std::int64_t>& lengths,
                std::int64_t steps) {
  auto all = pool.channel(pool.everyone());
  std::vector<std::int64_t> bytes = {mine.sent, mine.received};
  for (auto* sums : {&mine.probed, &mine.tokens, &bytes}) {
    REQUIRE(dyncp::all_reduce(all, std::span<std::int64_t>(*sums), dyncp::reduction::sum));
  }
  CHECK(mine.probed == std::vector<std::int64_t>(samples, 1));
  CHECK(mine.tokens == lengths);
  CHECK(bytes[0] == bytes[1]);
  CHECK(bytes[0] > 0);
  CHECK(mine.steps == steps);
}

}  // namespace

TEST_CASE("each sample is probed once, arrives whole, and is planned as if its length were known") {
  const auto lengths = test_lengths();
  for (const std::int64_t batch : {8, 5}) {  // with 5 shares differ by rank
    for (const std::int32_t ahead : {0, 2}) {
      INFO("batch " << batch << " ahead " << ahead);
      with_pool([&](pool_type& pool) {
        const std::int32_t rank = pool.rank();
        const dyncp::problem job = small_job(pool.ranks());
        const auto group_of = [&](dyncp::rank_range ranks) { return pool.group(ranks); };
        seen mine;
        auto batches = dyncp::make_probed_iterator(
            shard_of(lengths, rank, pool.ranks()), planner_of(job), job,
            {.global_batch_size = batch, .ahead = ahead}, [&](const token_sample& s) {
              ++mine.probed[static_cast<std::size_t>(s.front())];
              return probe_sample(s);
            });
        auto known = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                               {.global_batch_size = batch, .rank = rank});
        dyncp::lone_channel alone;
        for (;;) {
          auto step = batches.next(pool);
          REQUIRE_MESSAGE(step.has_value(), (step ? "" : step.error().message()));
          auto expected = known.next(alone, group_of);
          REQUIRE(expected);
          REQUIRE(step->has_value() == expected->has_value());
          if (!*step) break;
          CHECK((*step)->metadata().digest == (*expected)->metadata().digest);
          take(mine, **step, lengths);
        }
        check_sums(pool, mine, lengths, (samples + batch - 1) / batch);
      });
    }
  }
}

TEST_CASE("a probe that throws on one rank: the same error on all, and no sample is lost") {
  const auto lengths = test_lengths();
  with_pool([&](pool_type& pool) {
    const dyncp::problem job = small_job(pool.ranks());
    seen mine;
    bool thrown = false;
    auto batches = dyncp::make_probed_iterator(
        shard_of(lengths, pool.rank(), pool.ranks()), planner_of(job), job,
        {.global_batch_size = 8, .ahead = 0}, [&](const token_sample& s) {
          if (s.front() == 13 && !thrown) {
            thrown = true;
            throw std::runtime_error("a torn page");
          }
          ++mine.probed[static_cast<std::size_t>(s.front())];
          return probe_sample(s);
        });
    std::int64_t failures = 0;
    for (;;) {
      auto step = batches.next(pool);
      if (!step) {
        REQUIRE(++failures == 1);
        CHECK(mine.steps == 1);
        CHECK(step.error().code == dyncp::errc::callback_failed);
        CHECK_MESSAGE(step.error().what.find("a torn page") != std::string::npos,
                      step.error().what);
        continue;
      }
      if (!*step) break;
      take(mine, **step, lengths);
    }
    CHECK(failures == 1);
    check_sums(pool, mine, lengths, 6);
  });
}
