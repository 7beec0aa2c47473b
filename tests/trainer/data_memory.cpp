// SPDX-License-Identifier: Apache-2.0
// Samples for which there is no memory: a rank that cannot take or send them says so before others
// wait for it.
#include "trainer/batches.hpp"

#include <dyncp/trainer/data_iterator.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <string>
#include <vector>

using namespace dyncp_test;

namespace {

/// More than any test means to have: refused, also where a system would promise it.
constexpr std::size_t too_much = std::size_t{1} << 38;

}  // namespace

// As those of the system, for less. Not inlined, or compilers take malloc and delete for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const memory = size < too_much ? std::malloc(size == 0 ? 1 : size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

/// Says that one sample has 2^40 bytes.
struct huge_codec {
  std::int64_t huge = -1;
  dyncp::plain_codec plain;
  std::int64_t bytes(const token_sample& s) const {
    return s.front() == huge ? dyncp::max_sample_bytes : plain.bytes(s);
  }
  void pack(const token_sample& s, std::byte* to) const { plain.pack(s, to); }
  dyncp::result<token_sample> unpack(std::span<const std::byte> from) const {
    return plain.unpack(from);
  }
};

}  // namespace

TEST_CASE("a sample that no memory holds fails the step on all ranks; without it they go on") {
  constexpr std::int32_t ranks = 4;
  const std::vector<std::int64_t> lengths(16, 90);
  const dyncp::problem job = small_job(ranks);
  for (const std::int64_t huge : {0, 5, 15}) {
    for (const std::int32_t ahead : {0, 1}) {
      INFO("sample " << huge << " ahead " << ahead);
      std::mutex mutex;
      std::set<std::string> told;
      std::set<std::int64_t> seen;
      const auto results = run_pool({.ranks = ranks},
                                    [&](thread_pool& pool) -> dyncp::result<void> {
        auto batches = dyncp::make_probed_iterator(
            shard_of(lengths, pool.rank(), ranks), planner_of(job), job,
            {.global_batch_size = 4, .ahead = ahead}, probe_sample, huge_codec{huge, {}});
        for (int errors = 0; errors < 2;) {
          auto step = batches.next(pool);
          if (!step) {
            ++errors;
            if (step.error().code != dyncp::errc::out_of_memory) return step.error();
            const std::lock_guard lock(mutex);
            told.insert(step.error().message());
            batches.discard(huge);
            continue;
          }
          if (!*step) return {};
          const std::lock_guard lock(mutex);
          for (std::int32_t i = 0; i < (*step)->layout().num_sequences(); ++i) {
            seen.insert((*step)->layout().id(i));
          }
        }
        return failed("it fails for good");
      });
      CHECK(complaints(results) == "");
      CHECK(told.size() == 1);
      CHECK(seen.size() == 15);
      CHECK(seen.count(huge) == 0);
    }
  }
}
