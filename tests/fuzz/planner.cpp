// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes make a problem; the planner answers with a valid plan or a typed error.
#include "support/problems.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/planner/planner.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 16) return 0;
  std::uint64_t seed = 0;
  std::memcpy(&seed, data, sizeof seed);
  dyncp_test::random rng(seed);
  dyncp::problem job = dyncp_test::random_problem(rng);
  // The bytes overwrite what the generator would never choose.
  const auto word = [&](std::size_t at) {
    std::int64_t value = 0;
    std::memcpy(&value, data + at % (size - 7), sizeof value);
    return value;
  };
  switch (data[8] % 8) {
    case 0: job.limits.max_tokens_per_rank = word(9); break;
    case 1: job.sequences[0].length = word(9); break;
    case 2: job.limits.max_inflight_tokens = word(9); break;
    case 3: job.parallel.min_cp = static_cast<std::int32_t>(word(9) % 100); break;
    case 4: job.padding.multiple = word(9) % 5000; break;
    case 5: job.limits.micro_batches = static_cast<std::int32_t>(word(9) % 200); break;
    case 6: job.parallel.ranks = static_cast<std::int32_t>(word(9) % 70); break;
    default: break;
  }
  if (!dyncp::check(job)) return 0;
  const dyncp::planner planner{dyncp::analytic_cost(job.model, job.cluster, job.parallel)};
  const auto made = planner.plan(job);
  if (!made && made.error().code == dyncp::errc::invalid_plan) std::abort();
  return 0;
}
