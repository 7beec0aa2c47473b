// SPDX-License-Identifier: Apache-2.0
#include "support/local_ring.hpp"

#include <dyncp/cpu/blocked_attention.hpp>
#include <dyncp/cpu/plain_attention.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

using longs = std::vector<std::int64_t>;

pack_layout make_pack(const longs& lengths, std::int32_t cp, layout_kind layout) {
  const padding_rule rule{.zigzag = true, .shard_multiple = 3};
  return pack_layout::make(lengths, layout, cp, rule).value();
}

template <class T>
std::vector<dense_sequence> random_pack(const longs& q_lengths, const longs& kv_lengths,
                                        const attention_shape& shape, attention_mask mask,
                                        std::uint64_t seed) {
  dyncp_test::random rng(seed);
  std::vector<dense_sequence> out;
  for (std::size_t s = 0; s < q_lengths.size(); ++s) {
    out.push_back(random_sequence<T>(q_lengths[s], kv_lengths[s], shape, mask, rng));
  }
  return out;
}

/// The error of a ring against the oracle; the padding is checked.
template <class T, class Kernel>
ring_errors ring_error(Kernel& kernel, const longs& lengths, std::int32_t cp, layout_kind layout,
                       const attention_shape& shape, attention_mask mask, std::uint64_t seed) {
  const auto pack = make_pack(lengths, cp, layout);
  const auto sequences = random_pack<T>(lengths, lengths, shape, mask, seed);
  const auto got = run_local_ring<T>(kernel, pack.view(), pack.view(), shape, mask, sequences);
  CHECK(got.padding_clean);
  return errors_of(got, sequences);
}

constexpr attention_mask masks[] = {attention_mask::causal, attention_mask::full};
const attention_shape grouped{4, 2, 6, 3, default_scale(6)};

}  // namespace

TEST_CASE("one sequence of 0 to 40 tokens: plain kernel, double, 1e-12") {
  cpu::plain_attention kernel;
  for (const std::int32_t cp : {1, 2, 3, 4, 8, 16}) {
    for (std::int64_t length = 0; length <= 40; ++length) {
      for (const attention_mask mask : masks) {
        const auto error = ring_error<double>(kernel, {length}, cp, layout_kind::zigzag,
                                              {2, 1, 3, 2, 0.7}, mask, 1);
        CAPTURE(length);
        CAPTURE(cp);
        CHECK(error.worst() <= 1e-12);
      }
    }
  }
}

TEST_CASE("packs of mixed lengths: both kernels, every layout, grouped heads, double, 1e-12") {
  const longs packs[] = {{5, 0, 7},    {4, 8, 6, 10},   {9, 1, 3}, {5, 3}, {16, 24, 0, 0},
                         {37, 51, 40}, {1, 1, 1, 1, 1}, {2},       {0},    {70, 33, 129},
                         {17, 3, 64},  {0, 4}};
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  for (const longs& lengths : packs) {
    for (const std::int32_t cp : {1, 2, 4, 8}) {
      for (const layout_kind layout :
           {layout_kind::zigzag, layout_kind::contiguous, layout_kind::row_split}) {
        for (const attention_mask mask : masks) {
          const auto a = ring_error<double>(plain, lengths, cp, layout, grouped, mask, 2);
          const auto b = ring_error<double>(blocked, lengths, cp, layout, grouped, mask, 2);
          CAPTURE(lengths.size());
          CAPTURE(lengths[0]);
          CAPTURE(cp);
          CHECK(a.worst() <= 1e-12);
          CHECK(b.worst() <= 1e-12);
        }
      }
    }
  }
}

TEST_CASE("long sequences over many tiles: blocked kernel, double, 1e-12") {
  cpu::blocked_attention kernel;
  for (const std::int32_t cp : {1, 2, 3}) {
    for (const attention_mask mask : masks) {
      const auto error = ring_error<double>(kernel, {300, 7, 513}, cp, layout_kind::zigzag,
                                            {2, 1, 16, 8, default_scale(16)}, mask, 3);
      CHECK(error.worst() <= 1e-12);
    }
  }
}

TEST_CASE("TE#1896: head sizes of q/k and v differ: 192 and 128, one key/value head") {
  cpu::blocked_attention kernel;
  const auto error =
      ring_error<double>(kernel, {21, 40}, 2, layout_kind::zigzag,
                         {2, 1, 192, 128, default_scale(192)}, attention_mask::causal, 4);
  CHECK(error.worst() <= 1e-12);
}

TEST_CASE("Megatron-LM#7452: cp x padding x grouped heads x mask, float, 1e-5") {
  cpu::blocked_attention kernel;
  for (const std::int32_t cp : {1, 2, 4}) {
    for (const std::int32_t kv_heads : {1, 2, 4}) {
      for (const attention_mask mask : masks) {
        for (const longs& lengths : {longs{64}, longs{61, 7}, longs{3, 50}}) {
          const auto error = ring_error<float>(kernel, lengths, cp, layout_kind::zigzag,
                                               {4, kv_heads, 16, 16, default_scale(16)}, mask, 5);
          CAPTURE(cp);
          CAPTURE(kv_heads);
          CHECK(error.worst() <= 1e-5);
        }
      }
    }
  }
}

TEST_CASE("RFA#42: the error in float does not grow with the size of the ring") {
  cpu::blocked_attention kernel;
  const attention_shape shape{2, 2, 32, 32, default_scale(32)};
  const auto one =
      ring_error<float>(kernel, {256}, 1, layout_kind::zigzag, shape, attention_mask::causal, 6);
  const auto eight =
      ring_error<float>(kernel, {256}, 8, layout_kind::zigzag, shape, attention_mask::causal, 6);
  CHECK(eight.worst() <= 2 * one.worst());
}

TEST_CASE("cross-attention: queries and keys of their own lengths, some without keys") {
  cpu::plain_attention plain;
  cpu::blocked_attention blocked;
  const longs q_lengths{5, 0, 9, 33, 4};
  const longs kv_lengths{2, 7, 40, 1, 0};
  for (const std::int32_t cp : {1, 2, 4}) {
    const auto q = make_pack(q_lengths, cp, layout_kind::zigzag);
    const auto kv = make_pack(kv_lengths, cp, layout_kind::zigzag);
    const auto sequences =
        random_pack<double>(q_lengths, kv_lengths, grouped, attention_mask::full, 7);
    const auto a = run_local_ring<double>(plain, q.view(), kv.view(), grouped, attention_mask::full,
                                          sequences);
    const auto b = run_local_ring<double>(blocked, q.view(), kv.view(), grouped,
                                          attention_mask::full, sequences);
    CHECK(a.padding_clean);
    CHECK(b.padding_clean);
    CHECK(errors_of(a, sequences).worst() <= 1e-12);
    CHECK(errors_of(b, sequences).worst() <= 1e-12);
    // The last sequence has queries and no keys at all.
    for (const double x : a.sequences[4].lse.values) {
      CHECK(x == -std::numeric_limits<double>::infinity());
    }
    for (const double x : b.sequences[4].out.values) CHECK(x == 0.0);
  }
}

TEST_CASE("NeMo-RL#2105: two sequences in one pack are two sequences apart, bit for bit") {
  cpu::blocked_attention kernel;
  const attention_mask mask = attention_mask::causal;
  const auto both = random_pack<float>({23, 30}, {23, 30}, grouped, mask, 8);
  const auto pack = make_pack({23, 30}, 2, layout_kind::zigzag);
  const auto together =
      run_local_ring<float>(kernel, pack.view(), pack.view(), grouped, mask, both);
  for (std::size_t s = 0; s < 2; ++s) {
    const auto alone = make_pack({s == 0 ? 23 : 30}, 2, layout_kind::zigzag);
    const auto apart =
        run_local_ring<float>(kernel, alone.view(), alone.view(), grouped, mask, {both[s]});
    CHECK(apart.sequences[0].out.values == together.sequences[s].out.values);
    CHECK(apart.sequences[0].lse.values == together.sequences[s].lse.values);
    CHECK(apart.sequences[0].dq.values == together.sequences[s].dq.values);
    CHECK(apart.sequences[0].dk.values == together.sequences[s].dk.values);
    CHECK(apart.sequences[0].dv.values == together.sequences[s].dv.values);
  }
}
