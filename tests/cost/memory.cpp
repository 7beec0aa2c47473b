// SPDX-License-Identifier: Apache-2.0
#include "support/random.hpp"

#include <dyncp/cost/memory.hpp>
#include <dyncp/problem/presets.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>

using dyncp::memory_options;
using dyncp::recomputation;

namespace {

const dyncp::model_spec llama = *dyncp::find_model("reference-13b");
const dyncp::cluster_spec cluster = *dyncp::find_cluster("reference-13b");

dyncp::parallel_spec layout(std::int32_t ranks, std::int32_t pp, std::int32_t tp = 1) {
  dyncp::parallel_spec p;
  p.ranks = ranks;
  p.pp = pp;
  p.tp = tp;
  return p;
}

double per_token(const dyncp::model_spec& m, recomputation r, std::int32_t tp = 1,
                 const memory_options& o = {}) {
  return dyncp::activation_bytes_per_token(m, tp, r, o);
}

}  // namespace

TEST_CASE("activations of Llama-13B: 165 KB a token and layer, 117 KB selective, 10 KB full") {
  // 12h + 4k + 6f, 8h + 4k + 4f, 2h with h = k = 5120, f = 13824.
  CHECK(per_token(llama, recomputation::none) == 164864.0);
  CHECK(per_token(llama, recomputation::selective) == 116736.0);
  CHECK(per_token(llama, recomputation::full) == 10240.0);
  for (const std::int32_t tp : {2, 4, 8}) {
    CHECK(per_token(llama, recomputation::none, tp) == 164864.0 / tp);
    CHECK(per_token(llama, recomputation::full, tp) == 10240.0 / tp);
  }
}

TEST_CASE("what sequence parallelism leaves whole without it") {
  // Width h: 4h of the 12h bytes' 6h values; 8h = 40960 bytes stay on each GPU.
  const memory_options whole{.sequence_parallel = false};
  CHECK(per_token(llama, recomputation::none, 4, whole) == 40960.0 + (164864.0 - 40960.0) / 4);
  CHECK(per_token(llama, recomputation::full, 4, whole) == 10240.0);
}

TEST_CASE("GQA, plain MLPs, experts and fp32 count") {
  dyncp::model_spec m = llama;
  m.kv_hidden = 640;
  CHECK(per_token(m, recomputation::none) == 164864.0 - 4 * (5120 - 640));
  m = llama;
  m.gated_mlp = false;  // 2f values instead of 3f; 1f when the product is computed again
  CHECK(per_token(m, recomputation::none) == 164864.0 - 2 * 13824);
  CHECK(per_token(m, recomputation::selective) == 116736.0 - 2 * 13824);
  m = llama;
  m.dtype_bytes = 4;
  CHECK(per_token(m, recomputation::none) == 2 * 164864.0);
  m = llama;
  m.experts = 8;
  m.experts_per_token = 2;  // a second MLP of 6f bytes, and the inputs of both
  CHECK(per_token(m, recomputation::none) == 164864.0 + 6 * 13824 + 2 * 2 * 5120);
}

TEST_CASE("logits: V * (2 + 4) bytes a token over tp") {
  dyncp::model_spec m = llama;
  CHECK(dyncp::logits_bytes_per_token(m, 1) == 0.0);
  m.vocabulary = 32000;
  CHECK(dyncp::logits_bytes_per_token(m, 1) == 192000.0);
  CHECK(dyncp::logits_bytes_per_token(m, 8) == 24000.0);
}

TEST_CASE("states of a stage: 2 + 4 bytes a weight and 12 over the ranks") {
  // 5 layers of 317,194,240 weights at 6 + 12/8 bytes.
  CHECK(dyncp::stage_memory(llama, layout(8, 8), 0).state_bytes == 11894784000.0);
  CHECK(dyncp::stage_memory(llama, layout(1, 8), 0).state_bytes == 28547481600.0);
  CHECK(dyncp::stage_memory(llama, layout(8, 8), 0, {.sharded_optimizer = false}).state_bytes ==
        28547481600.0);
  CHECK(dyncp::stage_memory(llama, layout(8, 8, 2), 0).state_bytes == 5947392000.0);

  dyncp::model_spec m = llama;
  m.vocabulary = 32000;  // 163,840,000 weights of embedding on stage 0, of head on stage 7
  const double table = 163840000.0 * 7.5;
  CHECK(dyncp::stage_memory(m, layout(8, 8), 0).state_bytes == 11894784000.0 + table);
  CHECK(dyncp::stage_memory(m, layout(8, 8), 3).state_bytes == 11894784000.0);
  CHECK(dyncp::stage_memory(m, layout(8, 8), 7).state_bytes == 11894784000.0 + table);
  CHECK(dyncp::stage_memory(m, layout(8, 1), 0).state_bytes == 8 * 11894784000.0 + 2 * table);
  CHECK(dyncp::stage_memory(m, layout(8, 8), 0).logits_bytes_per_token == 0.0);
  CHECK(dyncp::stage_memory(m, layout(8, 8), 7).logits_bytes_per_token == 192000.0);
}

TEST_CASE("kept and working bytes of a stage under each recomputation") {
  dyncp::model_spec m = llama;
  const auto stage = [&](recomputation r) {
    m.recompute = r;
    return dyncp::stage_memory(m, layout(8, 8), 0);
  };
  CHECK(stage(recomputation::full).kept_bytes_per_token == 51200.0);
  CHECK(stage(recomputation::full).working_bytes_per_token == 154624.0);
  CHECK(stage(recomputation::selective).kept_bytes_per_token == 583680.0);
  CHECK(stage(recomputation::selective).working_bytes_per_token == 48128.0);
  CHECK(stage(recomputation::none).kept_bytes_per_token == 824320.0);
  CHECK(stage(recomputation::none).working_bytes_per_token == 0.0);
}

TEST_CASE("80 GiB for Llama-13B on 8 stages, by hand") {
  // (80 GiB - 11,894,784,000 - 16384 * 154,624) / 51,200, and without the largest micro-batch
  // known: the same over 51,200 + 154,624.
  CHECK(*dyncp::max_inflight_tokens_for(80, llama, cluster, layout(8, 8), 16384) == 1395921);
  CHECK(*dyncp::max_inflight_tokens_for(80, llama, cluster, layout(8, 8)) == 359552);
}

TEST_CASE("states over the memory are an error with both numbers") {
  const auto bad = dyncp::max_inflight_tokens_for(80, llama, cluster, layout(1, 1));
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == dyncp::errc::infeasible);
  // 40 * 317,194,240 * 18 bytes are 212.70 GiB.
  CHECK(bad.error().what.find("212.70 GiB") != std::string::npos);
  CHECK(bad.error().what.find("80.00 GiB") != std::string::npos);
  CHECK(bad.error().value == 217800);
  CHECK(bad.error().limit == 81920);
  CHECK(bad.error().hint.find("--pp") != std::string::npos);
  for (const double gib : {0.0, -1.0}) {
    CHECK(dyncp::max_inflight_tokens_for(gib, llama, cluster, layout(8, 8)).error().code ==
          dyncp::errc::invalid_argument);
  }
}

TEST_CASE("the budget is the most tokens that fit, on both ends of the pipeline") {
  const std::uint64_t seed = dyncp_test::seed_or(23);
  CAPTURE(seed);
  dyncp_test::random rng(seed);
  int fitted = 0;
  const std::int64_t rounds = dyncp_test::count_or(3000);
  for (std::int64_t round = 0; round < rounds; ++round) {
    dyncp::model_spec m = llama;
    m.layers = static_cast<std::int32_t>(rng.between(4, 80));
    m.recompute = static_cast<recomputation>(rng.between(0, 2));
    m.vocabulary = rng.one_in(2) ? rng.between(1000, 150000) : 0;
    m.gated_mlp = rng.one_in(2);
    const auto p = layout(static_cast<std::int32_t>(rng.between(1, 64)),
                          static_cast<std::int32_t>(rng.between(1, 8)),
                          static_cast<std::int32_t>(rng.between(1, 4)));
    const std::int64_t limit = rng.one_in(3) ? 0 : rng.between(100, 40000);
    const double gib = 20.0 + 100.0 * rng.unit();
    const auto budget = dyncp::max_inflight_tokens_for(gib, m, cluster, p, limit);
    // A stage with `tokens` in flight, of which the largest micro-batch runs. The last stage of
    // several turns each micro-batch round and holds no other.
    const auto bytes = [&](std::int32_t s, double tokens) {
      const auto stage = dyncp::stage_memory(m, p, s);
      const double running = limit > 0 ? std::min(tokens, static_cast<double>(limit)) : tokens;
      const double held = s > 0 ? running : tokens;
      return stage.state_bytes + stage.kept_bytes_per_token * held +
             (stage.working_bytes_per_token + stage.logits_bytes_per_token) * running;
    };
    const auto fits = [&](double tokens) {
      return std::max(bytes(0, tokens), bytes(p.pp - 1, tokens)) <= gib * 1073741824.0;
    };
    CAPTURE(round);
    REQUIRE(budget.has_value() == fits(1));
    if (!budget) continue;
    ++fitted;
    CHECK(fits(static_cast<double>(*budget)));
    CHECK((*budget == dyncp::max_pack_tokens || !fits(static_cast<double>(*budget) + 1)));
    const auto less =
        dyncp::max_inflight_tokens_for(gib, m, cluster, p, limit, {.reserved_gib = 1});
    CHECK((!less || *less <= *budget));
  }
  CHECK(4 * fitted > rounds);
}
