// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any text is read as a plan file and checked, or refused with an error.
#include <dyncp/io/json.hpp>
#include <dyncp/plan/validate.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto document =
      dyncp::parse_plan(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!document) return 0;
  dyncp::problem job;
  for (const std::int64_t length : document->seqlens) job.sequences.push_back({0, length});
  job.parallel.ranks = document->plan.num_ranks;
  job.limits.max_tokens_per_rank = document->plan.max_tokens_per_rank;
  (void)dyncp::validate(document->plan, job);
  return 0;
}
