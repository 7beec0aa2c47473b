// SPDX-License-Identifier: Apache-2.0
#include "support/random.hpp"

#include <dyncp/plan/inflight.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

using dyncp::peak_inflight;
using dyncp::pipeline;

namespace {

std::vector<std::int64_t> equal(std::int32_t micro_batches, std::int64_t tokens) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(micro_batches), tokens);
}

// Sums what lies between forward and backward anew after each operation.
std::int64_t naive_peak(const std::vector<std::int64_t>& held, std::int32_t ranks, pipeline pipe,
                        std::int32_t stage) {
  const auto m = static_cast<std::int32_t>(held.size()) / ranks;
  std::int64_t peak = 0;
  for (std::int32_t r = 0; r < ranks; ++r) {
    std::set<std::pair<std::int32_t, std::int32_t>> live;
    for (const dyncp::operation op : dyncp::stage_order(pipe, stage, m)) {
      if (op.backward) {
        live.erase({op.micro_batch, op.chunk});
      } else {
        live.insert({op.micro_batch, op.chunk});
      }
      std::int64_t now = 0;
      for (const auto& [j, chunk] : live) now += held[static_cast<std::size_t>(j * ranks + r)];
      peak = std::max(peak, now);
    }
  }
  return peak;
}

}  // namespace

TEST_CASE("stage i of 1F1B holds min(M, p - i) equal micro-batches") {
  for (std::int32_t p = 1; p <= 8; ++p) {
    for (std::int32_t m = 1; m <= 12; ++m) {
      for (std::int32_t s = 0; s < p; ++s) {
        CHECK(peak_inflight(equal(m, 100), 1, {p, 1}, s) == 100 * std::min(m, p - s));
      }
    }
  }
}

TEST_CASE("stage 0 of interleaved 1F1B holds (V-1)p + 2(p-1) + 1 chunks") {
  for (std::int32_t p = 2; p <= 6; ++p) {
    for (std::int32_t v = 2; v <= 4; ++v) {
      const std::int32_t chunks = (v - 1) * p + 2 * (p - 1) + 1;
      CHECK(peak_inflight(equal(4 * p, 10), 1, {p, v}, 0) == 10 * chunks);
      CHECK(peak_inflight(equal(p, 10), 1, {p, v}, 0) == 10 * p * v);  // all forwards first
    }
  }
}

TEST_CASE("unequal micro-batches: a sliding window, not stages * the largest") {
  // Three stages hold up to three in a row: 1+9+1, 9+1+1, 1+1+5, 1+5+8 = 14.
  const std::vector<std::int64_t> held = {1, 9, 1, 1, 5, 8};
  CHECK(peak_inflight(held, 1, {3, 1}, 0) == 14);
  CHECK(peak_inflight(held, 1, {3, 1}, 1) == 13);  // 5 + 8
  CHECK(peak_inflight(held, 1, {3, 1}, 2) == 9);
}

TEST_CASE("random holdings agree with sums taken anew") {
  const std::uint64_t seed = dyncp_test::seed_or(41);
  CAPTURE(seed);
  dyncp_test::random rng(seed);
  for (std::int64_t round = 0; round < dyncp_test::count_or(1500); ++round) {
    const auto p = static_cast<std::int32_t>(rng.between(1, 5));
    const auto v = static_cast<std::int32_t>(rng.between(1, 3));
    const auto m = static_cast<std::int32_t>(v > 1 ? p * rng.between(1, 3) : rng.between(1, 12));
    const auto ranks = static_cast<std::int32_t>(rng.between(1, 3));
    std::vector<std::int64_t> held;
    for (std::int32_t i = 0; i < m * ranks; ++i) {
      held.push_back(rng.one_in(4) ? 0 : rng.between(1, 1000));
    }
    for (std::int32_t s = 0; s < p; ++s) {
      CAPTURE(round);
      CHECK(peak_inflight(held, ranks, {p, v}, s) == naive_peak(held, ranks, {p, v}, s));
      if (s > 0 && v == 1) {
        CHECK(peak_inflight(held, ranks, {p, v}, s) <= peak_inflight(held, ranks, {p, v}, s - 1));
      }
    }
  }
}

TEST_CASE("tokens of a rank are its pack's over c, rounded up, padding included") {
  const auto batch = *dyncp::make_batch(std::vector<std::int64_t>{5, 3, 9});
  dyncp::plan p;
  p.num_ranks = 4;
  p.max_tokens_per_rank = 100;
  p.micro_batches = {{{{{0, 2}, {0, 1}}, {{3, 1}, {2}}}}, {}};
  const auto held = dyncp::tokens_by_rank<std::int64_t>(
      p, batch, [](std::int64_t t, std::int32_t c) { return (t + c - 1) / c; });
  CHECK(held == std::vector<std::int64_t>{4, 4, 0, 9, 0, 0, 0, 0});
  p.padding.zigzag = true;  // [5, 3] -> [8, 4] on two ranks
  const auto padded = dyncp::tokens_by_rank<std::int64_t>(
      p, batch, [](std::int64_t t, std::int32_t c) { return (t + c - 1) / c; });
  CHECK(padded == std::vector<std::int64_t>{6, 6, 0, 9, 0, 0, 0, 0});
  CHECK(dyncp::peak_inflight_tokens(p, batch, {2, 1}) == 9);
  // Two chunks of two micro-batches are in flight, the second without work: 2 * 9/2 tokens.
  CHECK(dyncp::peak_inflight_tokens(p, batch, {2, 2}) == 9);
  p.micro_batches.clear();
  CHECK(dyncp::peak_inflight_tokens(p, batch, {2, 1}) == 0);
}
