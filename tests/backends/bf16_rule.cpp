// SPDX-License-Identifier: Apache-2.0
#include "support/bf16_attention.hpp"
#include "support/local_ring.hpp"

#include <dyncp/cpu/blocked_attention.hpp>
#include <dyncp/cpu/plain_attention.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

using longs = std::vector<std::int64_t>;

/// Errors of the ring in bfloat16, its results rounded to bfloat16 as they are handed out, and
/// those of a plain computation.
struct both_errors {
  ring_errors ring;
  ring_errors plain;
};

template <class Kernel>
both_errors measure(Kernel& kernel, const longs& lengths, std::int32_t cp,
                    const attention_shape& shape, attention_mask mask, std::uint64_t seed) {
  dyncp_test::random rng(seed);
  std::vector<dense_sequence> sequences;
  ring_outcome plain;
  for (const std::int64_t length : lengths) {
    sequences.push_back(random_sequence<bfloat16>(length, length, shape, mask, rng));
    const auto& s = sequences.back();
    plain.sequences.push_back(
        bf16_attention(s.q, s.k, s.v, s.dout, shape.scale, mask == attention_mask::causal));
  }
  const padding_rule rule{.zigzag = true};
  const auto pack = pack_layout::make(lengths, layout_kind::zigzag, cp, rule).value();
  auto ring = run_local_ring<bfloat16>(kernel, pack.view(), pack.view(), shape, mask, sequences);
  CHECK(ring.padding_clean);
  for (auto& s : ring.sequences) {
    s.out = round_bf16(std::move(s.out));
    s.dq = round_bf16(std::move(s.dq));
    s.dk = round_bf16(std::move(s.dk));
    s.dv = round_bf16(std::move(s.dv));
  }
  return {errors_of(ring, sequences), errors_of(plain, sequences)};
}

template <class Kernel>
void check_rule(const longs& lengths, std::int32_t cp, const attention_shape& shape,
                attention_mask mask) {
  Kernel kernel;
  const auto [ring, plain] = measure(kernel, lengths, cp, shape, mask, 11);
  CAPTURE(cp);
  CAPTURE(lengths.size());
  CHECK(ring.out <= 2 * plain.out);
  CHECK(ring.lse <= 2 * plain.lse);
  CHECK(ring.dq <= 2 * plain.dq);
  CHECK(ring.dk <= 2 * plain.dk);
  CHECK(ring.dv <= 2 * plain.dv);
}

}  // namespace

TEST_CASE("bfloat16: at most twice the error of a plain bfloat16 computation, at every ring size") {
  const longs packs[] = {{128}, {37, 51, 40}, {5, 0, 7}, {90, 17}};
  for (const longs& lengths : packs) {
    for (const std::int32_t cp : {1, 2, 4, 8}) {
      for (const attention_mask mask : {attention_mask::causal, attention_mask::full}) {
        const attention_shape shape{4, 2, 32, 24, default_scale(32)};
        check_rule<cpu::plain_attention>(lengths, cp, shape, mask);
        check_rule<cpu::blocked_attention>(lengths, cp, shape, mask);
      }
    }
  }
}

TEST_CASE("bfloat16 outputs have the error of their own rounding, at every ring size") {
  cpu::blocked_attention kernel;
  const attention_shape shape{2, 1, 64, 64, default_scale(64)};
  for (const std::int32_t cp : {1, 8, 32}) {
    const auto errors = measure(kernel, {512}, cp, shape, attention_mask::causal, 12).ring;
    CAPTURE(cp);
    CHECK(errors.out <= 2.0e-3);
    CHECK(errors.out >= 1.0e-3);
    CHECK(errors.lse <= 1.0e-6);
  }
}
