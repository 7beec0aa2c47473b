// SPDX-License-Identifier: Apache-2.0
#include "reference_cost.hpp"
#include "support/random.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

using dyncp::analytic_cost;
using dyncp::link;
using dyncp::load;
using dyncp::op_cost;

namespace {

struct job {
  dyncp::model_spec model = *dyncp::find_model("reference-13b");
  dyncp::cluster_spec cluster = *dyncp::find_cluster("reference-13b");
  dyncp::parallel_spec parallel;

  job() { parallel.ranks = 64, parallel.pp = 8; }
  [[nodiscard]] analytic_cost cost() const { return {model, cluster, parallel}; }
};

constexpr double tick = 1.0 / 1099511627776.0;

// Equal to 1e-12 and a tick.
void check_seconds(dyncp::ticks got, long double expected) {
  CHECK(std::fabs(static_cast<double>(dyncp::to_seconds(got) - expected)) <=
        1e-12 * static_cast<double>(expected) + tick);
}

void check_op(const op_cost& got, double forward, double backward) {
  check_seconds(got.forward, forward);
  check_seconds(got.backward, backward);
}

job random_job(dyncp_test::random& rng) {
  job j;
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return static_cast<std::int32_t>(rng.between(low, high));
  };
  j.model.layers = pick(1, 90);
  j.model.hidden = 64 * pick(1, 200);
  j.model.query_hidden = 64 * pick(1, 200);
  j.model.kv_hidden = rng.one_in(2) ? j.model.query_hidden : 64 * pick(1, 20);
  j.model.ffn = pick(1, 40000);
  j.model.gated_mlp = rng.one_in(2);
  if (rng.one_in(3)) {
    j.model.experts = pick(2, 64);
    j.model.experts_per_token = pick(1, 2);
  }
  if (rng.one_in(2)) j.model.vocabulary = pick(1000, 200000);
  j.model.dtype_bytes = rng.one_in(3) ? 4 : 2;
  j.model.mask = rng.one_in(3) ? dyncp::attention_mask::full : dyncp::attention_mask::causal;
  j.model.recompute = static_cast<dyncp::recomputation>(rng.between(0, 2));
  const double overlaps[] = {0.0, 0.5, 1.0};
  j.cluster.ring_overlap = overlaps[rng.between(0, 2)];
  if (rng.one_in(2)) j.cluster.linear_half_tokens = 400;
  if (rng.one_in(2)) j.cluster.attention_half_tokens = 300;
  if (rng.one_in(2)) j.cluster.launch_s = 5e-5;
  if (rng.one_in(2)) j.cluster.fixed_s = 0;
  j.cluster.backward_linear = rng.one_in(2) ? 2.0 : 2.7;
  j.cluster.backward_attention = rng.one_in(2) ? 2.0 : 2.77;
  j.cluster.backward_ring_bytes = rng.one_in(2) ? 2.0 : 3.0;
  j.parallel.pp = pick(1, 16);
  j.parallel.vpp = rng.one_in(3) ? pick(2, 4) : 1;
  j.parallel.tp = pick(1, 8);
  return j;
}

load random_load(dyncp_test::random& rng) {
  load l;
  l.count = rng.between(1, 5);
  for (std::int64_t i = 0; i < l.count; ++i) {
    const std::int64_t s = rng.one_in(3) ? rng.between(1, 200000) : rng.between(1, 4000);
    l.tokens += s;
    l.squares += s * s;
  }
  return l;
}

}  // namespace

TEST_CASE("reference-13b by hand: exact fractions worked out apart, 17 digits") {
  const analytic_cost cost = job{}.cost();
  // (tokens, squares, count), ranks, link -> F, B in seconds
  check_op(cost.cost({16384, 268435456, 1}, 1, link::nvlink, 0), 0.11510296449706667,
           0.34430889349119997);
  check_op(cost.cost({16384, 16777216, 16}, 4, link::nvlink, 0), 0.025707370299733332,
           0.075972110899200002);
  check_op(cost.cost({65536, 4294967296, 1}, 8, link::nvlink, 0), 0.099283168290133339,
           0.29684950487040002);
  check_op(cost.cost({65536, 4294967296, 1}, 16, link::network, 0), 0.15170090036906667,
           0.45260270110720002);
  check_op(cost.cost({30000, 300000000, 3}, 16, link::network, 0), 0.070132319999999998,
           0.20789695999999999);
  check_op(cost.cost({1, 1, 1}, 1, link::nvlink, 0), 0.0010052866730666666, 0.0020158600192);
}

TEST_CASE("the parts of the forward by hand") {
  const analytic_cost cost = job{}.cost();
  const dyncp::cost_parts wide = cost.forward_parts({65536, 4294967296, 1}, 16, link::network, 0);
  CHECK(wide.linear_s == doctest::Approx(0.021653793450666668).epsilon(1e-13));
  CHECK(wide.attention_s == doctest::Approx(0.027487790694400001).epsilon(1e-13));
  CHECK(wide.exposed_s == doctest::Approx(0.101559316224).epsilon(1e-13));
  CHECK(wide.fixed_s == 1e-3);
  // One document of 64K hides its ring inside a node; sixteen of 1K on four ranks do not.
  CHECK(cost.forward_parts({65536, 4294967296, 1}, 8, link::nvlink, 0).exposed_s == 0.0);
  CHECK(cost.forward_parts({16384, 16777216, 16}, 4, link::nvlink, 0).exposed_s ==
        doctest::Approx(0.0026240801194666666).epsilon(1e-13));
}

TEST_CASE("any model, cluster and layout: the published formula in long double") {
  const std::uint64_t seed = dyncp_test::seed_or(13);
  CAPTURE(seed);
  dyncp_test::random rng(seed);
  for (std::int64_t round = 0; round < dyncp_test::count_or(4000); ++round) {
    const job j = random_job(rng);
    const load l = random_load(rng);
    const auto c = static_cast<std::int32_t>(rng.between(1, 33));
    const link k = rng.one_in(2) ? link::nvlink : link::network;
    const analytic_cost cost = j.cost();
    const bool two_classes = j.model.vocabulary > 0 && j.parallel.pp * j.parallel.vpp > 1;
    REQUIRE(cost.stage_classes() == (two_classes ? 2 : 1));
    for (std::int32_t stage = 0; stage < cost.stage_classes(); ++stage) {
      const bool head = j.model.vocabulary > 0 && stage == cost.stage_classes() - 1;
      const auto expected = dyncp_test::reference_of(j.model, j.cluster, j.parallel, l.tokens,
                                                     l.squares, c, k == link::network, head);
      CAPTURE(round);
      CAPTURE(c);
      const op_cost got = cost.cost(l, c, k, stage);
      check_seconds(got.forward, expected.forward);
      check_seconds(got.backward, expected.backward);
      const dyncp::cost_parts f = cost.forward_parts(l, c, k, stage);
      const dyncp::cost_parts b = cost.backward_parts(l, c, k, stage);
      CHECK(f.total_s() == doctest::Approx(static_cast<double>(expected.forward)).epsilon(1e-12));
      CHECK(b.total_s() == doctest::Approx(static_cast<double>(expected.backward)).epsilon(1e-12));
      CHECK(f.exposed_s == doctest::Approx(static_cast<double>(expected.exposed)).epsilon(1e-9));
      CHECK(f.exposed_s >= 0.0);
      CHECK(b.exposed_s >= 0.0);
      CHECK(got.transfer == 0);
    }
  }
}

TEST_CASE("overlap 0 pays every hop, 1 what attention does not hide, 0.5 the mean of both") {
  job j;
  const load l{65536, 4294967296, 1};
  j.cluster.ring_overlap = 0.0;
  const double all = j.cost().forward_parts(l, 8, link::network, 0).exposed_s;
  // 5 layers * 7 hops of 20 us + 2*5120*2*65536/8 bytes over 50 GB/s.
  CHECK(all == doctest::Approx(5 * 7 * (20e-6 + 167772160.0 / 50e9)).epsilon(1e-13));
  j.cluster.ring_overlap = 1.0;
  const double rest = j.cost().forward_parts(l, 8, link::network, 0).exposed_s;
  j.cluster.ring_overlap = 0.5;
  const double half = j.cost().forward_parts(l, 8, link::network, 0).exposed_s;
  CHECK(half == doctest::Approx((all + rest) / 2).epsilon(1e-12));
  CHECK(rest < half);
}

TEST_CASE(
    "backward is 3 forwards under full recomputation when only matrices and attention count") {
  job j;
  j.cluster.fixed_s = 0;
  const load l{8192, 8192 * 8192, 1};
  const op_cost full = j.cost().cost(l, 1, link::nvlink, 0);
  CHECK(dyncp::to_seconds(full.backward) ==
        doctest::Approx(3 * dyncp::to_seconds(full.forward)).epsilon(1e-11));
  j.model.recompute = dyncp::recomputation::none;
  const op_cost none = j.cost().cost(l, 1, link::nvlink, 0);
  CHECK(none.forward == full.forward);
  CHECK(std::abs(none.backward - 2 * none.forward) <= 2);
  j.model.recompute = dyncp::recomputation::selective;
  const double attention = j.cost().forward_parts(l, 1, link::nvlink, 0).attention_s;
  CHECK(dyncp::to_seconds(j.cost().cost(l, 1, link::nvlink, 0).backward) ==
        doctest::Approx(dyncp::to_seconds(none.backward) + attention).epsilon(1e-11));
}

TEST_CASE("a full mask doubles attention, GQA of 8 heads in 64 makes rings an eighth") {
  job j;
  const load l{4096, 4096 * 4096, 1};
  const auto causal = j.cost().forward_parts(l, 8, link::network, 0);
  j.model.mask = dyncp::attention_mask::full;
  CHECK(j.cost().forward_parts(l, 8, link::network, 0).attention_s ==
        doctest::Approx(2 * causal.attention_s).epsilon(1e-13));
  j = job{};
  j.cluster.ring_overlap = 0;
  j.cluster.network_latency_s = 0;
  const double whole = j.cost().forward_parts(l, 8, link::network, 0).exposed_s;
  j.model.kv_hidden = j.model.query_hidden / 8;
  CHECK(j.cost().forward_parts(l, 8, link::network, 0).exposed_s ==
        doctest::Approx(whole / 8).epsilon(1e-13));
}

TEST_CASE("the head adds 2*h*V FLOPs a token to the last stage alone") {
  job j;
  j.model.vocabulary = 32000;
  const analytic_cost cost = j.cost();
  REQUIRE(cost.stage_classes() == 2);
  CHECK(cost.bottleneck_class() == 1);
  for (std::int32_t s = 0; s < 7; ++s) CHECK(cost.stage_class(s) == 0);
  CHECK(cost.stage_class(7) == 1);
  const load l{1000, 1000 * 1000, 1};
  const double without = cost.forward_parts(l, 1, link::nvlink, 0).linear_s;
  const double with = cost.forward_parts(l, 1, link::nvlink, 1).linear_s;
  CHECK(without == doctest::Approx(5 * 2 * 317194240.0 * 1000 / 600e12).epsilon(1e-13));
  // 327.68 MFLOP a token: half a layer of 634.4, as published for a vocabulary of 32K.
  CHECK(with - without == doctest::Approx(327680000.0 * 1000 / 600e12).epsilon(1e-10));
  CHECK((with - without) / (without / 5) == doctest::Approx(0.5165).epsilon(1e-3));
}

TEST_CASE("one stage holds the head with all layers, and is one class") {
  job j;
  j.model.vocabulary = 32000;
  j.parallel.pp = 1;
  CHECK(j.cost().stage_classes() == 1);
  CHECK(j.cost().bottleneck_class() == 0);
  CHECK(j.cost().forward_parts({1000, 1, 1}, 1, link::nvlink, 0).linear_s ==
        doctest::Approx((40 * 2 * 317194240.0 + 327680000.0) * 1000 / 600e12).epsilon(1e-12));
}

TEST_CASE("virtual stages share the layers; fixed time is paid for each") {
  job j;
  const load l{4096, 4096 * 4096, 1};
  const auto one = j.cost().forward_parts(l, 1, link::nvlink, 0);
  j.parallel.vpp = 2;
  const auto half = j.cost().forward_parts(l, 1, link::nvlink, 0);
  CHECK(2 * half.linear_s == doctest::Approx(one.linear_s).epsilon(1e-13));
  CHECK(2 * half.attention_s == doctest::Approx(one.attention_s).epsilon(1e-13));
  CHECK(half.fixed_s == one.fixed_s);
}

TEST_CASE("the efficiency of n tokens is n/(n + n0)") {
  job j;
  const load l{400, 400 * 400, 1};
  const auto full = j.cost().forward_parts(l, 1, link::nvlink, 0);
  j.cluster.linear_half_tokens = 400;
  j.cluster.attention_half_tokens = 1200;
  const auto less = j.cost().forward_parts(l, 1, link::nvlink, 0);
  CHECK(less.linear_s == doctest::Approx(2 * full.linear_s).epsilon(1e-13));
  CHECK(less.attention_s == doctest::Approx(4 * full.attention_s).epsilon(1e-13));
}

TEST_CASE("activations between stages: h * dtype bytes a token, divided by c and tp") {
  job j;
  const load l{32768, 1, 1};
  CHECK(j.cost().cost(l, 4, link::nvlink, 0).transfer == 0);
  j.cluster.stage_bytes_per_s = 50e9;
  j.cluster.stage_latency_s = 30e-6;
  check_seconds(j.cost().cost(l, 4, link::nvlink, 0).transfer, 30e-6L + 8192.0L * 10240 / 50e9L);
  j.parallel.tp = 2;
  check_seconds(j.cost().cost(l, 4, link::nvlink, 0).transfer, 30e-6L + 8192.0L * 5120 / 50e9L);
}

TEST_CASE("a cost beyond 2^20 s is capped there") {
  job j;
  j.cluster.attention_flops_per_s = 1;
  const std::int64_t n = dyncp::max_pack_tokens;
  const op_cost cost = j.cost().cost({n, n * n, 1}, 1, link::nvlink, 0);
  CHECK(cost.forward == std::int64_t{1} << 60);
  CHECK(cost.backward == std::int64_t{1} << 60);
}

TEST_CASE("more work never costs less; faster hardware and more overlap never cost more") {
  const std::uint64_t seed = dyncp_test::seed_or(29);
  CAPTURE(seed);
  dyncp_test::random rng(seed);
  const auto dear = [](const op_cost& a, const op_cost& b) {  // a costs at least b
    return a.forward >= b.forward && a.backward >= b.backward && a.transfer >= b.transfer;
  };
  for (std::int64_t round = 0; round < dyncp_test::count_or(3000); ++round) {
    CAPTURE(round);
    job j = random_job(rng);
    j.cluster.stage_bytes_per_s = rng.one_in(2) ? 25e9 : 0;
    const load l = random_load(rng);
    const auto c = static_cast<std::int32_t>(rng.between(1, 16));
    const link k = rng.one_in(2) ? link::nvlink : link::network;
    const op_cost base = j.cost().cost(l, c, k, 0);
    REQUIRE(base.forward > 0);
    REQUIRE(base.backward > 0);

    load more = l;
    more.tokens += rng.between(1, 5000);
    more.squares += rng.between(1, 9000000);
    // A ring hop is hidden under attention, so tokens and squares must grow together in this law.
    if (more.squares * l.tokens >= l.squares * more.tokens || j.cluster.ring_overlap == 0) {
      CHECK(dear(j.cost().cost(more, c, k, 0), base));
    }
    CHECK(dear(j.cost().cost(l, c, link::network, 0), j.cost().cost(l, c, link::nvlink, 0)));

    job better = j;
    better.cluster.linear_flops_per_s *= 1.5;
    CHECK(dear(base, better.cost().cost(l, c, k, 0)));
    better = j;
    better.cluster.nvlink_bytes_per_s *= 2;
    better.cluster.network_bytes_per_s *= 2;
    CHECK(dear(base, better.cost().cost(l, c, k, 0)));
    better = j;
    better.cluster.ring_overlap = 1.0;
    CHECK(dear(base, better.cost().cost(l, c, k, 0)));
    better = j;
    better.cluster.fixed_s = 0;
    better.cluster.launch_s = 0;
    CHECK(dear(base, better.cost().cost(l, c, k, 0)));
    better = j;
    better.model.recompute = dyncp::recomputation::none;
    CHECK(dear(base, better.cost().cost(l, c, k, 0)));
    // Attention that runs faster exposes at most what it saves.
    better = j;
    better.cluster.attention_flops_per_s *= 1.5;
    const op_cost quick = better.cost().cost(l, c, k, 0);
    CHECK(quick.forward <= base.forward + 1);
    CHECK(quick.backward <= base.backward + 2);
  }
}

TEST_CASE("matrix and attention time of a pack fall as 1/c and 1/tp") {
  const std::uint64_t seed = dyncp_test::seed_or(31);
  dyncp_test::random rng(seed);
  for (int round = 0; round < 300; ++round) {
    job j = random_job(rng);
    j.cluster.linear_half_tokens = 0;
    j.cluster.attention_half_tokens = 0;
    const load l = random_load(rng);
    const auto one = j.cost().forward_parts(l, 1, link::nvlink, 0);
    CHECK(one.exposed_s == 0.0);
    for (const std::int32_t c : {2, 3, 8}) {
      const auto wide = j.cost().forward_parts(l, c, link::nvlink, 0);
      CHECK(c * wide.linear_s == doctest::Approx(one.linear_s).epsilon(1e-12));
      CHECK(c * wide.attention_s == doctest::Approx(one.attention_s).epsilon(1e-12));
    }
    job split = j;
    split.parallel.tp = 2 * j.parallel.tp;
    CHECK(2 * split.cost().forward_parts(l, 1, link::nvlink, 0).linear_s ==
          doctest::Approx(one.linear_s).epsilon(1e-12));
  }
}

TEST_CASE("a group's link: inside a node, or across") {
  using dyncp::link_of;
  CHECK(link_of({0, 8}, 8) == link::nvlink);
  CHECK(link_of({8, 8}, 8) == link::nvlink);
  CHECK(link_of({4, 8}, 8) == link::network);  // unaligned: over two nodes
  CHECK(link_of({0, 16}, 8) == link::network);
  CHECK(link_of({6, 2}, 8) == link::nvlink);
  CHECK(link_of({7, 2}, 8) == link::network);
  CHECK(link_of({7, 1}, 8) == link::nvlink);
  CHECK(link_of({0, 2}, 1) == link::network);  // tp fills the node
}

TEST_CASE("gradient all-reduce by hand") {
  // 2(R-1)/R * layers/pp * 317,194,240 * 4 bytes over 450 GB/s, or min(450, 8*50) across nodes.
  const auto seconds = [](std::int32_t ranks, std::int32_t pp, std::int32_t tp) {
    job j;
    j.parallel.ranks = ranks;
    j.parallel.pp = pp;
    j.parallel.tp = tp;
    return dyncp::all_reduce_s(j.model, j.cluster, j.parallel);
  };
  CHECK(seconds(1, 8, 1) == 0.0);
  CHECK(seconds(8, 8, 1) == doctest::Approx(0.024670663111111112).epsilon(1e-13));
  CHECK(seconds(9, 8, 1) == doctest::Approx(0.028195043555555556).epsilon(1e-13));
  CHECK(seconds(64, 4, 1) == doctest::Approx(0.062447615999999997).epsilon(1e-13));
  // Two ranks of tp 4 fill a node; each GPU then holds a quarter of the weights.
  CHECK(seconds(2, 8, 4) == doctest::Approx(5 * 317194240.0 * 4 / 4 / 450e9).epsilon(1e-13));
  CHECK(seconds(3, 8, 4) ==
        doctest::Approx(4.0 / 3 * 5 * 317194240.0 * 4 / 4 / 400e9).epsilon(1e-13));
}
