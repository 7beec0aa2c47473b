// SPDX-License-Identifier: Apache-2.0
// Which sequences no plan can hold: those, and only those, that the planner refuses when it is
// given nothing else.
#include "trainer/batches.hpp"

#include <dyncp/trainer/unfit.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

using namespace dyncp_test;
using dyncp::sequence;

namespace {

/// True if the planner finds a plan for the sequences of `batch` that stay together with `i`.
bool plannable(dyncp::problem job, const std::vector<sequence>& batch, std::size_t i) {
  for (const sequence& s : batch) {
    const bool with_it = batch[i].atom >= 0 ? s.atom == batch[i].atom : s.id == batch[i].id;
    if (with_it) job.sequences.push_back(s);
  }
  return planner_of(job).plan(job).has_value();
}

}  // namespace

TEST_CASE("what is unfit is what the planner refuses alone") {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    dyncp_test::random rng(seed);
    const auto ranks = static_cast<std::int32_t>(rng.between(1, 9));
    dyncp::problem job = small_job(ranks, rng.between(16, 60));
    if (ranks > 1 && rng.one_in(3)) job.parallel.max_cp = 2;
    if (rng.one_in(3)) job.padding.shard_multiple = 8;
    const std::int64_t room = job.limits.max_tokens_per_rank * ranks;
    std::vector<sequence> batch;
    for (std::int64_t i = 0; i < 8; ++i) {
      const std::int64_t atom = rng.one_in(3) ? rng.between(0, 2) : -1;
      batch.push_back({i, rng.between(-1, room + room / 4), atom});
    }
    const std::vector<bool> unfit = dyncp::unfit_sequences(job, batch);
    REQUIRE(unfit.size() == batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      INFO("seed " << seed << ", " << batch[i].length << " tokens, atom " << batch[i].atom);
      CHECK(unfit[i] == !plannable(job, batch, i));
    }
  }
}

TEST_CASE("by hand: 4 ranks of 100, zigzag") {
  const dyncp::problem job = small_job(4);
  // 400 tokens fill four ranks; 401 are padded to 408. A pair of 200 and 201 goes together.
  const std::vector<sequence> batch = {{0, 400, -1}, {1, 401, -1}, {2, 0, -1}, {3, 1, -1},
                                       {4, 200, 7},  {5, 201, 7},  {6, 200, 8}, {7, 200, 8}};
  CHECK(dyncp::unfit_sequences(job, batch) ==
        std::vector<bool>{false, true, true, false, true, true, false, false});
  CHECK(dyncp::unfit_sequences(job, {}).empty());
}
