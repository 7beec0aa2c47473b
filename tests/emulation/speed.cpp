// SPDX-License-Identifier: Apache-2.0
// The table of tests/gpu, at small sizes: every kernel of it runs, and what it counts is right. The
// speeds are those of the emulator.
#include "emulation/machine.hpp"
#include "gpu/table.hpp"

#include <dyncp/cuda/device.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

TEST_CASE("each line of the table, once") {
  const machine m;
  auto gpu = cuda::device::open({}).value();
  speed_table table(gpu, {.dim = 64,
                          .q_heads = 2,
                          .group = 2,
                          .short_tokens = 40,
                          .long_tokens = 130,
                          .pack_tokens = 64,
                          .rows = 20480,
                          .row_bytes = 128,
                          .launches = 5,
                          .samples = 1,
                          .sample_s = 0});
  const auto lines = table.run();
  REQUIRE_MESSAGE(lines.has_value(), (lines ? "" : lines.error().message()));
  const auto count = [&](const std::string& what) {
    return std::count_if(lines->begin(), lines->end(),
                         [&](const speed& line) { return line.what == what; });
  };
  CHECK(count("attention forward") == 5);
  CHECK(count("attention backward") == 5);
  CHECK(count("attention backward, any order") == 5);
  for (const char* const what : {"copy on the device", "split", "merge", "second chunks taken"}) {
    CHECK(count(what) == 2);
  }
  for (const char* const what : {"merge of partials", "delta", "cast to bfloat16",
                                 "launch, on the host", "launch, until done"}) {
    CHECK(count(what) == 1);
  }
  CHECK(lines->size() == 28);
  double copy = 0;
  for (const speed& line : *lines) {
    CAPTURE(line.what);
    CHECK(std::isfinite(line.value));
    CHECK(line.value > 0);
    if (line.what == "copy on the device") {
      copy = line.value;
      CHECK_MESSAGE(line.of.starts_with("1 MiB in rows of "), line.of);  // whatever the width
    }
    // Split and merge are measured against the copy of as many bytes before them.
    if (line.what == "split" || line.what == "merge") CHECK(line.goal == 0.85 * copy);
    if (line.of == "1 x 130 tokens, heads 2:2") CHECK(line.goal > 0);
  }
  CHECK_MESSAGE(m.fault().empty(), m.fault());
  CHECK(gpu.memory_in_use() == 0);
}

TEST_CASE("pairs under the causal mask, counted one by one; mixed lengths fill the pack") {
  double pairs = 0;
  for (const int n : {1, 5, 130}) {
    for (int query = 0; query < n; ++query) {
      for (int key = 0; key < n; ++key) pairs += key <= query ? 1 : 0;
    }
  }
  CHECK(speed_table::causal_pairs({1, 5, 130}) == pairs);
  for (const std::int32_t tokens : {1, 64, 32768}) {
    const auto lengths = speed_table::mixed_lengths(tokens);
    CHECK(std::accumulate(lengths.begin(), lengths.end(), 0) == tokens);
    CHECK(*std::min_element(lengths.begin(), lengths.end()) >= 1);
  }
  const auto lengths = speed_table::mixed_lengths(32768);
  CHECK(*std::max_element(lengths.begin(), lengths.end()) >= 4096);
  CHECK(*std::min_element(lengths.begin(), lengths.end()) <= 256);
}
