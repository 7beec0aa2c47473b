// SPDX-License-Identifier: Apache-2.0
// The attention kernels of the CUDA library, in the emulator or on a GPU, against dense attention
// in double.
#include "emulation/attention_case.hpp"

#include "emulation/machine.hpp"
#include "emulation/sanitizers.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

constexpr attention_mask causal = attention_mask::causal;
constexpr attention_mask full = attention_mask::full;
constexpr bool sanitized = dyncp_emulation::address_sanitizer || dyncp_emulation::thread_sanitizer;

attention_shape shape_of(std::int32_t q_heads, std::int32_t kv_heads, std::int32_t dim) {
  return {q_heads, kv_heads, dim, dim, default_scale(dim)};
}

/// Segments one after the other, a row of padding between them.
std::vector<attention_segment> chain(const std::vector<std::pair<int, int>>& lengths) {
  std::vector<attention_segment> segments;
  std::int32_t q = 1;
  std::int32_t kv = 0;
  for (const auto& [queries, keys] : lengths) {
    segments.push_back({q, queries, kv, keys});
    q += queries + 1;
    kv += keys + (keys % 3 == 0 ? 2 : 0);
  }
  return segments;
}

template <class T>
attention_case<T> run_case(const attention_shape& shape, attention_mask mask,
                           const std::vector<attention_segment>& segments, std::uint64_t seed = 1,
                           cuda::attention_options options = {}, double size = 1.0) {
  attention_case<T> c(shape, mask, segments, 7, size);
  const machine m({.seed = seed, .live_blocks = 1 + static_cast<std::uint32_t>(seed % 5)});
  {
    cuda_kernel kernel(options);
    c.run(kernel);
  }
  REQUIRE_MESSAGE(m.fault().empty(), m.fault());
  return c;
}

template <class T>
void check_case(const attention_shape& shape, attention_mask mask,
                const std::vector<attention_segment>& segments) {
  for (const bool deterministic : {true, false}) {
    CAPTURE(deterministic);
    check_rule(run_case<T>(shape, mask, segments, deterministic ? 1 : 2,
                           {.deterministic = deterministic}));
  }
}

}  // namespace

TEST_CASE("bfloat16: all pairs of up to 9 queries and 9 keys, in one call") {
  std::vector<std::pair<int, int>> pairs;
  for (int q = 0; q < 10; ++q) {
    for (int kv = 0; kv < 10; ++kv) pairs.push_back({q, kv});
  }
  check_rule(run_case<bfloat16>(shape_of(2, 1, 64), full, chain(pairs)));
}

TEST_CASE("bfloat16: causal sequences of 0 to 33 tokens, in one call") {
  std::vector<std::pair<int, int>> lengths;
  for (int n = 0; n < 34; ++n) lengths.push_back({n, n});
  check_rule(run_case<bfloat16>(shape_of(2, 2, 64), causal, chain(lengths)));
}

TEST_CASE("lengths around the tiles: 64 queries, 64 and 128 keys, 128 queries") {
  const std::vector<std::pair<int, int>> around = {
      {63, 63}, {64, 64}, {65, 65}, {127, 127}, {129, 129}};
  check_case<bfloat16>(shape_of(1, 1, 64), causal, chain(around));
  check_case<bfloat16>(shape_of(2, 1, 128), causal, chain({{191, 191}, {64, 64}}));
  if (sanitized) return;
  check_case<bfloat16>(shape_of(1, 1, 128), full,
                       chain({{1, 129}, {129, 1}, {65, 128}, {128, 63}}));
  check_case<float16>(shape_of(2, 2, 64), causal, chain(around));
  check_case<float16>(shape_of(1, 1, 128), full, chain({{66, 130}, {130, 66}}));
}

TEST_CASE(
    "the four shapes of a ring on a slot of 2 x 48 rows and one of 2 x 5, and grouped heads") {
  const std::int32_t c = 48;
  const std::vector<attention_segment> diagonal{{0, 2 * c, 0, 2 * c}, {100, 9, 100, 9}};
  const std::vector<attention_segment> front{{0, 2 * c, 0, c}, {100, 9, 100, 5}};
  const std::vector<attention_segment> back{{c, c, 0, 2 * c}, {105, 4, 100, 10}};
  const std::vector<attention_segment> all{{0, 2 * c, 0, 2 * c - 5}, {100, 9, 100, 3}};
  for (const auto& shape : {shape_of(4, 2, 64), shape_of(3, 1, 128)}) {
    check_case<bfloat16>(shape, causal, diagonal);
    check_case<bfloat16>(shape, full, front);
    if (sanitized) return;
    check_case<bfloat16>(shape, full, back);
    check_case<bfloat16>(shape, full, all);
  }
}

TEST_CASE("a ring over packs, at every ring size, without a fabric") {
  for (const attention_mask mask : {causal, full}) {
    for (const std::int32_t cp : {1, 2, 4, 8}) {
      if (sanitized && cp > 2) continue;
      CAPTURE(cp);
      const std::vector<std::int64_t> lengths = {70, 0, 13, 1, 38};
      const attention_shape shape = shape_of(2, 1, 64);
      dyncp_test::random rng(5);
      std::vector<dense_sequence> sequences;
      ring_outcome plain;
      for (const std::int64_t length : lengths) {
        sequences.push_back(random_sequence<bfloat16>(length, length, shape, mask, rng));
        const auto& s = sequences.back();
        plain.sequences.push_back(
            bf16_attention(s.q, s.k, s.v, s.dout, shape.scale, mask == causal));
      }
      const padding_rule rule{.zigzag = true};
      const auto pack = pack_layout::make(lengths, layout_kind::zigzag, cp, rule).value();
      const machine m;
      cuda_kernel kernel;
      const auto ring =
          run_local_ring<bfloat16>(kernel, pack.view(), pack.view(), shape, mask, sequences);
      CHECK(ring.padding_clean);
      const auto got = errors_of(ring, sequences);
      const auto limit = errors_of(plain, sequences);
      CHECK(got.out <= 2 * limit.out);
      CHECK(got.lse <= 2 * limit.lse);
      CHECK(got.dq <= 2 * limit.dq);
      CHECK(got.dk <= 2 * limit.dk);
      CHECK(got.dv <= 2 * limit.dv);
    }
  }
}

TEST_CASE("results repeat bit for bit, whatever the order of blocks, warps and lanes") {
  const auto segments = chain({{200, 200}, {70, 70}, {3, 3}});
  for (const attention_mask mask : {causal, full}) {
    const auto first = run_case<bfloat16>(shape_of(2, 1, 64), mask, segments, 1);
    for (std::uint64_t seed = 2; seed <= (sanitized ? 3 : 7); ++seed) {
      const auto again = run_case<bfloat16>(shape_of(2, 1, 64), mask, segments, seed);
      CHECK(again.out.values == first.out.values);
      CHECK(again.lse.values == first.lse.values);
      CHECK(again.dq.values == first.dq.values);
      CHECK(again.dk.values == first.dk.values);
      CHECK(again.dv.values == first.dv.values);
    }
  }
}

TEST_CASE("dq in turn for heads that share keys: no block waits for one that has not begun") {
  const attention_shape shape = shape_of(6, 2, 64);
  for (const attention_mask mask : {causal, full}) {
    const auto run = [&](std::uint32_t live_blocks) {
      attention_case<bfloat16> c(shape, mask, chain({{330, 330}, {3, 3}, {140, 140}}), 7);
      const machine m({.seed = live_blocks, .live_blocks = live_blocks});
      cuda_kernel kernel;
      c.run(kernel);
      REQUIRE_MESSAGE(m.fault().empty(), m.fault());
      return c;
    };
    const auto alone = run(1);
    check_rule(alone);
    if (sanitized) return;
    for (const std::uint32_t live_blocks : {3U, 16U}) {
      const auto beside = run(live_blocks);
      CHECK(beside.dq.values == alone.dq.values);
      CHECK(beside.dk.values == alone.dk.values);
      CHECK(beside.dv.values == alone.dv.values);
    }
  }
}

TEST_CASE("in any order dq differs by rounding at most; dk and dv have one owner and do not") {
  const auto segments = chain({{200, 400}});
  const auto fixed = run_case<bfloat16>(shape_of(2, 1, 64), full, segments, 1);
  bool differs = false;
  for (std::uint64_t seed = 2; seed <= 4; ++seed) {
    const auto any =
        run_case<bfloat16>(shape_of(2, 1, 64), full, segments, seed, {.deterministic = false});
    CHECK(any.dk.values == fixed.dk.values);
    CHECK(any.dv.values == fixed.dv.values);
    differs = differs || any.dq.values != fixed.dq.values;
    for (std::size_t i = 0; i < any.dq.values.size(); ++i) {
      CHECK(std::fabs(any.dq.values[i] - fixed.dq.values[i]) <= 2e-6F);
    }
  }
  if (!on_gpu) CHECK(differs);  // a GPU may happen to keep the order
}

TEST_CASE("rows without keys: output 0, log-sum-exp -inf, no gradient") {
  const auto c = run_case<bfloat16>(shape_of(2, 1, 64), full, {{0, 3, 0, 0}, {3, 2, 0, 1}});
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t h = 0; h < 2; ++h) {
      CHECK(c.lse.at(row, h, 0) == -std::numeric_limits<float>::infinity());
      for (std::int64_t x = 0; x < 64; ++x) {
        CHECK(c.out.at(row, h, x) == 0.0F);
        CHECK(c.dq.at(row, h, x) == attention_case<bfloat16>::mark);
      }
    }
  }
  // A row that saw no key in the whole attention, whatever its delta is, adds nothing either.
  attention_case<bfloat16> d(shape_of(1, 1, 64), full, {{0, 2, 0, 2}}, 3);
  const machine m;
  cuda_kernel kernel;
  d.lse.at(0, 0, 0) = -std::numeric_limits<float>::infinity();
  d.lse.at(1, 0, 0) = 1;
  d.delta.at(0, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  d.delta.at(1, 0, 0) = 0;
  kernel.backward<bfloat16>(d.shape, d.mask, d.segments,
                            {d.q.view(), d.k.view(), d.v.view(), d.dout.view(), d.lse.view(),
                             d.delta.view(), d.dq.view(), d.dk.view(), d.dv.view()});
  CHECK(d.dq.at(0, 0, 5) == attention_case<bfloat16>::mark);
  CHECK(d.dq.at(1, 0, 5) != attention_case<bfloat16>::mark);
  for (std::int64_t x = 0; x < 64; ++x) {
    CHECK(std::isfinite(d.dk.at(0, 0, x)));
    CHECK(std::isfinite(d.dv.at(1, 0, x)));
  }
}

TEST_CASE("pytorch#196678: scores far below 0 and a length of 64 more than a tile, no NaN") {
  for (const std::int32_t n : {64, 192}) {
    attention_case<bfloat16> c(shape_of(1, 1, 64), causal, {{0, n, 0, n}}, 3);
    // q . k = -64 * 16 for each pair, scaled -128: exp(128) is infinite in float.
    for (auto& x : c.q.values) x = bfloat16(4.0F);
    for (auto& x : c.k.values) x = bfloat16(-4.0F);
    const machine m;
    cuda_kernel kernel;
    c.run(kernel);
    for (std::int64_t row = 0; row < n; ++row) {
      CHECK(c.lse.at(row, 0, 0) ==
            doctest::Approx(-128.0 + std::log(static_cast<double>(row + 1))).epsilon(1e-6));
    }
    for (const auto* tensor : {&c.dq, &c.dk, &c.dv}) {
      bool finite = true;
      for (const float x : tensor->values) finite = finite && std::isfinite(x);
      CHECK(finite);
    }
  }
}

TEST_CASE("sharp weights: scores of up to some hundred, one key gets all") {
  check_rule(
      run_case<bfloat16>(shape_of(2, 1, 64), causal, chain({{150, 150}, {40, 40}}), 1, {}, 6.0));
}

TEST_CASE("rows beyond the segments are neither read nor written: they are not there") {
  // The arrays end with the last row of the last segment; the page behind is not mapped.
  const std::vector<attention_segment> segments{{0, 5, 0, 5}, {5, 1, 5, 1}};
  const machine m;
  cuda_kernel kernel;
  attention_case<bfloat16> c(shape_of(1, 1, 128), causal, segments, 1);
  c.run(kernel);
  check_rule(c);
  CHECK_MESSAGE(m.fault().empty(), m.fault());
}

TEST_CASE("float: any head size, as the reference on the CPU") {
  for (const auto& [q_heads, kv_heads, qk, v] :
       {std::array{1, 1, 1, 1}, std::array{4, 2, 5, 3}, std::array{6, 1, 32, 24},
        std::array{2, 2, 72, 40}}) {
    const attention_shape shape{q_heads, kv_heads, qk, v, -0.3};
    for (const attention_mask mask : {causal, full}) {
      const auto segments = mask == causal ? chain({{33, 33}, {0, 0}, {1, 1}, {130, 130}})
                                           : chain({{33, 7}, {4, 0}, {0, 9}, {2, 140}});
      attention_case<float> c(shape, mask, segments, 3);
      const machine m;
      cuda_kernel kernel;
      c.run(kernel);
      const auto e = errors_of_case(c, false);
      for (std::size_t f = 0; f < 5; ++f) CHECK(e.kernel[f] <= 2e-5);
      CHECK(c.others_untouched());
    }
  }
}

TEST_CASE("no segment, and segments without rows, launch nothing that does anything") {
  const machine m;
  cuda_kernel kernel;
  attention_case<bfloat16> none(shape_of(1, 1, 64), full, {}, 1);
  none.run(kernel);
  if (!on_gpu) CHECK(m.kernels() == 0);  // a GPU does not count them
  attention_case<bfloat16> empty(shape_of(1, 1, 64), full, {{0, 0, 0, 0}, {0, 0, 0, 4}}, 1);
  empty.run(kernel);
  CHECK(empty.others_untouched());
}

TEST_CASE("what the kernels cannot do is said before anything is queued") {
  const machine m;
  auto d = cuda::device::open({.rank = 2}).value();
  const cuda::attention<bfloat16> halves(d);
  const cuda::attention<float> floats(d);
  CHECK(halves.supports(shape_of(8, 2, 128)));
  CHECK(halves.supports({2, 1, 96, 96, 1.0}).error().code == errc::unsupported);
  CHECK(halves.supports({2, 1, 128, 64, 1.0}).error().code == errc::unsupported);
  CHECK(halves.supports({2, 1, 64, 64, -1.0}).error().code == errc::unsupported);
  CHECK(halves.supports({3, 2, 64, 64, 1.0}).error().code == errc::invalid_argument);
  CHECK(floats.supports({2, 1, 96, 17, -1.0}));

  cuda::attention<bfloat16> kernels(d);
  const auto s = d.make_stream().value();
  auto memory = d.allocate(65536).value();
  auto* const base = static_cast<std::byte*>(memory.data());
  const thd_view<const bfloat16> odd{reinterpret_cast<const bfloat16*>(base + 2), 64};
  const thd_view<const bfloat16> even{reinterpret_cast<const bfloat16*>(base), 64};
  const attention_partial<bfloat16> out{{reinterpret_cast<float*>(base), 64},
                                        {reinterpret_cast<float*>(base), 1}};
  const attention_segment* const table = reinterpret_cast<const attention_segment*>(base);
  const auto refused = kernels.forward(d, s.get(), shape_of(1, 1, 64), {{table, 1}, full, 1, 1},
                                       {even, odd, even}, out);
  REQUIRE(!refused);
  CHECK(refused.error().code == errc::invalid_argument);
  CHECK(refused.error().what.find("rank 2: rows of k") != std::string::npos);
  if (!on_gpu) CHECK(m.kernels() == 0);  // a GPU does not count them
}

#if !defined(DYNCP_TEST_ON_GPU)
TEST_CASE("a GPU with little shared memory is unsupported, not a failed launch") {
  const dyncp_emulation::world w({.capability = 90, .grid = {.shared_limit_bytes = 100 * 1024}});
  auto d = cuda::device::open({}).value();
  const auto refused = cuda::attention<bfloat16>(d).supports(shape_of(1, 1, 128));
  REQUIRE(!refused);
  CHECK(refused.error().code == errc::unsupported);
  CHECK(refused.error().limit == 100 * 1024);
}
#else
TEST_CASE("more blocks than a GPU has processors, in both orders of additions to dq") {
  for (const auto& shape : {shape_of(8, 2, 128), shape_of(16, 16, 64)}) {
    check_case<bfloat16>(shape, causal, chain({{700, 700}, {1, 1}, {300, 300}, {129, 129}}));
    check_case<float16>(shape, full, chain({{300, 500}, {7, 300}, {400, 3}}));
  }
}
TEST_CASE("a pack of a hundred sequences repeats bit for bit, twenty times") {
  std::vector<std::pair<int, int>> lengths;
  for (int i = 0; i < 100; ++i) lengths.push_back({1 + i * 37 % 411, 1 + i * 37 % 411});
  const auto segments = chain(lengths);
  const auto first = run_case<bfloat16>(shape_of(8, 2, 128), causal, segments);
  for (int i = 0; i < 20; ++i) {
    const auto again = run_case<bfloat16>(shape_of(8, 2, 128), causal, segments);
    CHECK(again.out.values == first.out.values);
    CHECK(again.dq.values == first.dq.values);
    CHECK(again.dk.values == first.dk.values);
    CHECK(again.dv.values == first.dv.values);
  }
}
#endif

TEST_CASE("a backward pass allocates once for the largest shape it has seen, or in reserve") {
  const machine m;
  auto d = cuda::device::open({}).value();
  cuda::attention<bfloat16> kernels(d);
  const attention_shape shape = shape_of(4, 1, 64);
  REQUIRE(kernels.reserve(d, shape, 1000, 3));
  const std::int64_t reserved = d.memory_in_use();
  CHECK(reserved > 0);
  REQUIRE(kernels.reserve(d, shape, 500, 7));
  CHECK(d.memory_in_use() == reserved);
  REQUIRE(kernels.reserve(d, shape, 5000, 3));
  CHECK(d.memory_in_use() > reserved);
}
