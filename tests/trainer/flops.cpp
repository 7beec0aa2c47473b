// SPDX-License-Identifier: Apache-2.0
#include <dyncp/trainer/flops.hpp>

#include <dyncp/thd/bucket.hpp>
#include <dyncp/thd/pack_layout.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace dyncp;

namespace {

using longs = std::vector<std::int64_t>;

model_spec tiny() {
  model_spec m;
  m.layers = 2;
  m.hidden = 4;
  m.ffn = 8;
  m.query_hidden = 4;
  m.kv_hidden = 2;
  m.gated_mlp = true;
  m.vocabulary = 10;
  m.recompute = recomputation::none;
  return m;
}

}  // namespace

TEST_CASE("Megatron-LM#5342: 4 x 2048 in a pack of 8192 has 16,777,216 squares, not 67,108,864") {
  const auto pack =
      pack_layout::make(longs{2048, 2048, 2048, 2048}, layout_kind::zigzag, 1, {}).value();
  const length_sums sums = real_sums(pack.view());
  CHECK(sums.tokens == 8192);
  CHECK(sums.squares == 16777216);
  CHECK(sums.count == 4);
  CHECK(sums.longest == 2048);
}

TEST_CASE("sums are those of real lengths, whatever the padding, tail and bucket") {
  const padding_rule rule{.zigzag = true, .sequence_parallel = 2, .shard_multiple = 64};
  const auto pack = pack_layout::make(longs{5, 3, 7}, layout_kind::zigzag, 4, rule).value();
  CHECK(pack.tokens() > 15);
  CHECK(real_sums(pack.view()).tokens == 15);
  CHECK(real_sums(pack.view()).squares == 83);
  const auto cu = to_bucket({{0, 5, 8}, {0, 8, 12}}, {6, 20}, tail_policy::dummy_sequence,
                            layout_kind::zigzag, 2)
                      .value();
  const auto fitted = pack_layout::adopt(cu, 20, layout_kind::zigzag, 2).value();
  CHECK(real_sums(fitted.view()).squares == 34);
  CHECK(real_sums(fitted.view()).count == 2);
}

TEST_CASE("Megatron-LM#5560: 64 sequences of 131072 tokens: 1,099,511,627,776 squares, exactly") {
  const auto pack =
      pack_layout::make(longs(64, 131072), layout_kind::zigzag, 8, {.zigzag = true}).value();
  CHECK(real_sums(pack.view()).squares == 1099511627776);
}

TEST_CASE("FLOPs of a small model, by hand") {
  // W = 4 (4 + 2 2) + 4 4 + 3 4 8 = 144 weights a layer; A = 2 4 causal; head 2 4 10.
  const length_sums sums{10, 60, 2, 6};
  const double linear = 2 * 2 * 144.0 * 10;
  const double attention = 2 * 8.0 * 60;
  const double head = 80.0 * 10;
  const model_spec m = tiny();
  const double model = 3 * (linear + attention + head);
  CHECK(training_flops(m, sums).model == model);
  CHECK(training_flops(m, sums).hardware == model + attention / 2);
  model_spec again = m;
  again.recompute = recomputation::full;
  CHECK(training_flops(again, sums).model == model);
  CHECK(training_flops(again, sums).hardware == model + 1.5 * attention + linear);
  again.recompute = recomputation::selective;
  CHECK(training_flops(again, sums).hardware == model + 1.5 * attention);
  model_spec full = m;
  full.mask = attention_mask::full;
  CHECK(training_flops(full, sums).model == model + 3 * attention);
}

TEST_CASE("FLOPs add up over packs") {
  const model_spec m = tiny();
  const auto a = training_flops(m, {10, 60, 2, 6});
  const auto b = training_flops(m, {7, 49, 1, 7});
  const auto both = training_flops(m, {17, 109, 3, 7});
  CHECK(both.model == a.model + b.model);
  CHECK(both.hardware == a.hardware + b.hardware);
}
