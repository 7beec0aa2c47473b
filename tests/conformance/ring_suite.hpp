// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/ring_case.hpp"
#include "conformance/runner.hpp"
#include "support/random.hpp"

#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>
#include <dyncp/core/int_math.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// Ring attention against dense attention in double. Each entry of `ring_failures` is an input on
// which a published implementation failed, named by the report, with others of its kind.

namespace dyncp_test {

inline constexpr dyncp::attention_mask both_masks[] = {dyncp::attention_mask::causal,
                                                       dyncp::attention_mask::full};

/// A micro-batch of one pack on the first `cp` ranks; the others are idle.
inline std::vector<pack_case> one_pack(std::int32_t cp, std::vector<std::int64_t> lengths) {
  return {{{0, cp}, std::move(lengths)}};
}

struct named_case {
  std::string name;
  std::int32_t cp = 1;  ///< ranks that it needs
  ring_case input;
};

// Scores of these inputs are sums of few integers, exact in every order.
inline double far_apart(tensor which, std::int64_t id, std::int64_t position, std::int64_t head,
                        std::int64_t c) {
  switch (which) {
    case tensor::q: return 1;
    case tensor::k: return position < 8 ? -400 : 450;  // exp(850) overflows in double
    default: return hashed(which, id, position, head, c);
  }
}
inline double near_even(tensor which, std::int64_t id, std::int64_t position, std::int64_t head,
                        std::int64_t c) {
  switch (which) {
    case tensor::q: return 1;
    case tensor::k: return position < 8 ? 0 : -18;  // log(1 + exp(-18)) loses digits
    default: return hashed(which, id, position, head, c);
  }
}
inline double far_below(tensor which, std::int64_t id, std::int64_t position, std::int64_t head,
                        std::int64_t c) {
  switch (which) {
    case tensor::q: return -200;
    case tensor::k: return 300 + static_cast<double>(position % 2) / 256;  // scores near -6e4
    default: return hashed(which, id, position, head, c);
  }
}
inline double very_negative(tensor which, std::int64_t id, std::int64_t position, std::int64_t head,
                            std::int64_t c) {
  switch (which) {
    case tensor::q: return c == 0 ? -2e4 : 0;
    case tensor::k: return c == 0 ? 1 : 0;
    case tensor::v: return position == 0 ? 1 : 100;
    default: return hashed(which, id, position, head, c);
  }
}
inline double hundred_below(tensor which, std::int64_t id, std::int64_t position, std::int64_t head,
                            std::int64_t c) {
  switch (which) {
    case tensor::q: return 10;
    case tensor::k: return -10 + static_cast<double>(position % 3) / 64;
    default: return hashed(which, id, position, head, c);
  }
}
inline double large_values(tensor which, std::int64_t id, std::int64_t position, std::int64_t head,
                           std::int64_t c) {
  return (which == tensor::v ? 1e6 : 4) * hashed(which, id, position, head, c);
}

/// The inputs of failures that others reported, and their kinds.
inline std::vector<named_case> ring_failures() {
  std::vector<named_case> cases;
  const auto add = [&cases](std::string name, std::int32_t cp, std::vector<std::int64_t> lengths,
                            const std::function<void(ring_case&)>& change = {}) {
    for (dyncp::attention_mask mask : both_masks) {
      named_case n{name, cp, {}};
      n.input.mask = mask;
      n.input.micro_batches = {one_pack(cp, lengths)};
      if (change) change(n.input);
      if (n.input.mask != mask) continue;  // the case has a mask of its own
      cases.push_back(std::move(n));
    }
  };
  const auto small = [](ring_case& c) { c.shape = {1, 1, 2, 3, 0.5}; };
  const auto scalar =
      [](double (*value)(tensor, std::int64_t, std::int64_t, std::int64_t, std::int64_t)) {
        return [value](ring_case& c) {
          c.shape = {1, 1, 1, 2, 1.0};
          c.value = value;
        };
      };

  // Counts by clamping each half, never length / cp.
  add("TransformerEngine#3331: tail padding of 698 in 704 on 4 ranks", 4, {698}, small);
  add("TransformerEngine#1929: 7 tokens on 2 ranks", 2, {7});
  for (std::int32_t cp : {2, 3, 4, 8}) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t length = 1; length <= 4 * cp + 1; ++length) lengths.push_back(length);
    add("TransformerEngine#1929 and kind: every length up to two chunks and one, together", cp,
        lengths);
  }
  add("TransformerEngine#1368: unequal lengths in one pack", 2, {4, 8, 6, 10});
  add("TransformerEngine#1368 and kind: unequal lengths in one pack", 4, {1, 40, 2, 3, 17, 8});
  // The second half of a rank is all padding: 9 in 12 gives halves of 3 and 0 on rank 0.
  add("TransformerEngine#2186: a half of nothing but padding", 2, {9});
  for (std::int32_t cp : {2, 4, 8}) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t chunk : {1, 2, 3, 5}) lengths.push_back(chunk * (2 * cp - 1));
    add("TransformerEngine#2186 and kind: last chunks empty", cp, lengths);
  }
  add("TransformerEngine#1012: 5 tokens in 8 rows", 2, {5});
  add("TransformerEngine#1012 and kind: padding by a multiple", 2, {5, 1, 11},
      [](ring_case& c) { c.padding.multiple = 16; });
  add("TransformerEngine#1012 and kind: rows behind the last sequence", 4, {5, 9},
      [](ring_case& c) { c.padding.shard_multiple = 32; });
  add("Megatron-LM#3282: zero-length places behind the sequences", 4, {16, 24, 0, 0});
  add("Megatron-LM#3282 and kind: zero-length places anywhere", 2, {0, 3, 0, 0, 7, 0});
  add("flash-attention#1155: queries of 0, 1, 0, 1", 2, {0, 1, 0, 1});
  add("flash-attention#1155: keys of 0, 3, 0, 5", 2, {0, 3, 0, 5});
  add("cudnn-frontend#943: zero-length sequences first", 4, {0, 0, 4});
  add("flash-attention#2562: no token at all", 2, {0, 0});
  add("ISEEKYAN/Megatron-LM#111: 5 and 3 on 2 ranks", 2, {5, 3});
  add("EasyContext#47: an odd share, 2999 tokens on 4 ranks", 4, {2999}, [](ring_case& c) {
    c.shape = {1, 1, 1, 1, 0.5};
  });
  // Ranks without a token.
  for (std::int32_t cp : {2, 4, 8, 16}) {
    add("verl#6001 and kind: fewer tokens than chunks", cp, {1});
    add("verl#6001 and kind: fewer tokens than chunks", cp, {2, 1, 3});
  }
  add("verl#4656: 2 tokens, sequence parallel 2, 2 ranks", 2, {2},
      [](ring_case& c) { c.padding.sequence_parallel = 2; });
  add("flash-attention#978: full mask, one token, keys of an empty rank", 2, {1});
  for (std::int32_t cp : {2, 4, 8}) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t length = 1; length < 2 * cp; ++length) lengths.push_back(length);
    add("flash-attention#978 and kind: keys of empty ranks", cp, lengths);
  }
  // Shapes of heads.
  add("TransformerEngine#1896: q/k heads of 192, v heads of 128", 2, {9, 4}, [](ring_case& c) {
    c.shape = {2, 2, 192, 128, 0.07};
  });
  add("TransformerEngine#1896 and kind: v wider than q/k", 4, {19, 4}, [](ring_case& c) {
    c.shape = {2, 1, 3, 11, 0.4};
  });
  for (auto [heads, kv] : {std::pair(8, 8), std::pair(8, 2), std::pair(8, 1), std::pair(6, 3)}) {
    add("Megatron-LM#7452: grouped queries with padding and CP", 4, {13, 2, 7},
        [heads = heads, kv = kv](ring_case& c) {
          c.shape = {heads, kv, 4, 4, 0.5};
        });
  }
  // Numbers.
  add("TransformerEngine#716: log-sum-exps 850 apart", 2, {16, 11}, scalar(far_apart));
  add("TransformerEngine#716 and kind: on 4 ranks", 4, {16, 31}, scalar(far_apart));
  add("TransformerEngine#1401: log-sum-exps 18 apart", 2, {16}, scalar(near_even));
  add("TransformerEngine#1401 and kind: on 4 ranks", 4, {16, 23}, scalar(near_even));
  add("flashinfer#4401: scores near -60000", 2, {9, 3}, scalar(far_below));
  add("flashinfer#4401 and kind: with empty ranks", 8, {9, 3}, scalar(far_below));
  add("ohdearquant/lattice#361: a masked key must not beat a score of -20000", 2, {2},
      [](ring_case& c) {
        c.shape = {1, 1, 2, 1, 1.0};
        c.value = very_negative;
        c.mask = dyncp::attention_mask::causal;
      });
  add("TransformerEngine#2344: 192 tokens, scores of -100", 4, {192}, scalar(hundred_below));
  add("cudnn-frontend#624 and kind: values of a million beside poisoned padding", 4, {7, 1, 9},
      [](ring_case& c) { c.value = large_values; });
  // Memory.
  add("TransformerEngine#2825: rows of the caller lie apart", 2, {7, 12},
      [](ring_case& c) { c.strided = true; });
  add("TransformerEngine#2825 and kind: apart, with kept keys", 4, {7, 12}, [](ring_case& c) {
    c.strided = true;
    c.kept_kv = true;
  });
  for (std::int32_t cp : {2, 3, 4, 8}) {
    add("values right behind keys, sent as they lie", cp, {7, 12, 40},
        [](ring_case& c) { c.adjacent_kv = true; });
    add("the last hop's keys kept for the backward pass", cp, {7, 12, 40}, [](ring_case& c) {
      c.kept_kv = true;
      c.adjacent_kv = true;
    });
  }
  // Other layouts: every causal ring is right, only zigzag is balanced.
  for (std::int32_t cp : {2, 3, 4, 8}) {
    add("slime#1871: contiguous shares", cp, {8, 1, 0, 23, 5}, [cp](ring_case& c) {
      c.layout = dyncp::layout_kind::contiguous;
      c.padding = {.multiple = cp};
    });
    add("contiguous rows of the whole pack", cp, {8, 1, 0, 23, 5}, [](ring_case& c) {
      c.layout = dyncp::layout_kind::row_split;
      c.padding = {.shard_multiple = 2};
    });
  }
  return cases;
}

/// Those that need at most the runner's ranks, or exactly `cp` of them.
template <class Runner>
void check_ring_failures(Runner& runner, std::int32_t cp = 0) {
  for (const named_case& n : ring_failures()) {
    if (n.cp > runner.ranks() || (cp > 0 && n.cp != cp)) continue;
    INFO(n.name << ", " << n.cp << " ranks, mask " << static_cast<int>(n.input.mask));
    check_ring(runner, n.input);
  }
}

/// Megatron-LM#6821: static CP 1, a run-time group of 2; and the reverse order of passes, with
/// every group size in one batch and ranks that are idle.
template <class Runner>
void check_mixed_groups(Runner& runner) {
  const std::int32_t n = runner.ranks();
  for (dyncp::attention_mask mask : both_masks) {
    for (auto strategy : {dyncp::pool_strategy::logical, dyncp::pool_strategy::split}) {
      ring_case c;
      c.mask = mask;
      c.pool.strategy = strategy;
      c.ring.verify = true;
      c.shape = {2, 1, 4, 2, 0.5};
      for (std::int32_t cp = 1; cp <= n; cp *= 2) {
        if (n % cp != 0) break;
        std::vector<pack_case> packs;
        for (std::int32_t begin = 0; begin < n; begin += cp) {
          packs.push_back({{begin, cp}, {7 + begin, 3, 2 * begin}});
        }
        c.micro_batches.push_back(packs);
      }
      // Sizes that shrink along the ranks, 1/2, 1/4, ..., 1, 1, as planners make them.
      std::vector<pack_case> packs;
      std::int32_t begin = 0;
      for (std::int32_t cp = n / 2; cp >= 1; cp /= 2) {
        if (begin % cp != 0) continue;
        packs.push_back({{begin, cp}, {5 * cp + 1, cp}});
        begin += cp;
      }
      c.micro_batches.push_back(packs);
      // A lone group at the end, the others idle.
      c.micro_batches.push_back({{{n - 1, 1}, {9, 1}}});
      check_ring(runner, c);
    }
  }
}

/// Groups of any contiguous ranks over the parent communicator.
template <class Runner>
void check_logical_groups(Runner& runner) {
  const std::int32_t n = runner.ranks();
  ring_case c;
  for (std::int32_t size = 1; size <= n; ++size) {
    for (std::int32_t begin : {0, 1, n - size}) {
      if (begin + size > n) continue;
      c.micro_batches.push_back({{{begin, size}, {4 * size + 3, 1, 7}}});
    }
  }
  check_ring(runner, c);
}

/// Random batches: groups, lengths, heads, padding and masks drawn from a seed.
template <class Runner>
void check_random_batches(Runner& runner, std::int64_t rounds) {
  const std::uint64_t seed = seed_or(20240607);
  random draw(seed);
  const std::int32_t n = runner.ranks();
  for (std::int64_t round = 0; round < rounds; ++round) {
    ring_case c;
    const auto kv = static_cast<std::int32_t>(draw.between(1, 3));
    c.shape = {kv * static_cast<std::int32_t>(draw.between(1, 3)), kv,
               static_cast<std::int32_t>(draw.between(1, 8)),
               static_cast<std::int32_t>(draw.between(1, 8)), 0.1 + draw.unit()};
    c.mask = draw.chance(0.7) ? dyncp::attention_mask::causal : dyncp::attention_mask::full;
    c.kept_kv = draw.chance(0.3);
    c.strided = draw.chance(0.3);
    c.own_workspace = draw.chance(0.3);
    c.adjacent_kv = draw.chance(0.5);
    if (draw.chance(0.3)) c.padding.sequence_parallel = 2;
    if (draw.chance(0.2)) c.padding.multiple = 3;
    if (draw.chance(0.2)) c.padding.shard_multiple = 8;
    for (std::int64_t m = draw.between(1, 3); m > 0; --m) {
      std::vector<pack_case> packs;
      for (std::int32_t begin = 0; begin < n;) {
        const auto size = static_cast<std::int32_t>(draw.between(1, n - begin));
        if (draw.chance(0.85)) {
          std::vector<std::int64_t> lengths;
          for (std::int64_t i = draw.between(1, 4); i > 0; --i) {
            lengths.push_back(draw.chance(0.1) ? 0 : draw.between(1, draw.chance(0.2) ? 90 : 20));
          }
          packs.push_back({{begin, size}, lengths});
        }
        begin += size;
      }
      c.micro_batches.push_back(packs);
    }
    INFO("seed " << seed << ", round " << round);
    check_ring(runner, c);
  }
}

/// Results do not depend on the order in which streams get to run, nor on the run.
template <class Runner>
void check_repeatable(Runner& runner) {
  ring_case c;
  c.repeats = 4;
  c.shape = {4, 2, 3, 5, 0.6};
  c.micro_batches = {one_pack(runner.ranks(), {31, 1, 9, 0, 16}),
                     one_pack(runner.ranks(), {3, 40})};
  for (dyncp::attention_mask mask : both_masks) {
    c.mask = mask;
    check_ring(runner, c);
  }
}

/// The case in bfloat16: each result has at most twice the error of a plain bfloat16 computation.
template <class Runner>
void check_ring_bfloat16(Runner& runner, const ring_case& c) {
  using B = typename Runner::backend_type;
  const ring_oracle<dyncp::bfloat16> oracle(c);
  const deviations plain = plain_bfloat16(c, oracle);
  runner.run([&](B& backend) -> result<void> {
    auto ring = run_ring<dyncp::bfloat16, typename Runner::provider_type>(backend, c, oracle);
    if (!ring) return std::move(ring).error();
    for (std::size_t i = 0; i < ring->size(); ++i) {
      // Sequences of one token have gradients of 0, which the sums in float may miss a little.
      const double error = (*ring)[i].rms();
      const double reference = plain[i].rms();
      if (!(error <= 2 * reference + 1e-6)) {
        return failed(std::string("error of ") + result_names[i] + " is " + std::to_string(error) +
                      ", of a plain computation " + std::to_string(reference));
      }
    }
    return {};
  });
}

/// A context that is filled again right behind the calls for its last micro-batch, while the host
/// is ahead of the streams: each micro-batch meets its own tables.
template <class Runner>
void check_context_reuse(Runner& runner) {
  const std::int32_t n = runner.ranks();
  for (dyncp::attention_mask mask : both_masks) {
    ring_case c;
    c.mask = mask;
    c.one_context = true;
    c.shape = {2, 1, 2, 3, 0.5};
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{13, 1, 6}, {2, 0, 17}, {20}, {5, 9, 3}}) {
      c.micro_batches.push_back(one_pack(n, lengths));
    }
    check_ring(runner, c);
  }
}

/// In 2 bytes no result is further from double than twice what whole sequences on one rank are
/// (RFA#42: with partial results in bfloat16 the error grows with the ring).
template <class T, class Runner>
void check_rounding(Runner& runner, std::int32_t head_dim = 16) {
  using B = typename Runner::backend_type;
  const std::int32_t n = runner.ranks();
  for (dyncp::attention_mask mask : both_masks) {
    ring_case c;
    c.mask = mask;
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
    c.shape = {4, 2, head_dim, head_dim, scale};
    c.micro_batches = {one_pack(n, {150, 1, 33, 64}), one_pack(std::max(1, n / 2), {90, 7})};
    ring_case whole = c;
    for (auto& micro_batch : whole.micro_batches) {
      for (pack_case& pack : micro_batch) pack.ranks = {0, 1};
    }
    if constexpr (std::is_same_v<T, dyncp::bfloat16>) check_ring_bfloat16(runner, c);
    const ring_oracle<T> oracle(c);
    runner.run([&](B& backend) -> result<void> {
      auto plain = run_ring<T, typename Runner::provider_type>(backend, whole, oracle);
      if (!plain) return std::move(plain).error();
      auto ring = run_ring<T, typename Runner::provider_type>(backend, c, oracle);
      if (!ring) return std::move(ring).error();
      for (std::size_t i = 0; i < ring->size(); ++i) {
        // The log-sum-exp is in float on both sides: a few units of its last place are allowed.
        const double floor = i == 1 ? 2e-7 : 0;
        const double error = (*ring)[i].rms();
        const double reference = (*plain)[i].rms();
        const double most = std::is_same_v<T, dyncp::float16> ? 0.02 / 8 : 0.02;
        if (!(error <= 2 * reference + floor) || !(error < most)) {
          return failed(std::string("error of ") + result_names[i] + " is " +
                        std::to_string(error) + ", on one rank " + std::to_string(reference));
        }
      }
      return {};
    });
  }
}

template <class Runner>
void check_bfloat16(Runner& runner, std::int32_t head_dim = 16) {
  check_rounding<dyncp::bfloat16>(runner, head_dim);
}
/// float16 has 8 times the precision.
template <class Runner>
void check_float16(Runner& runner, std::int32_t head_dim = 16) {
  check_rounding<dyncp::float16>(runner, head_dim);
}

/// Cross-attention: keys and values in a pack of their own, full mask.
template <class Runner>
void check_cross_attention(Runner& runner) {
  using B = typename Runner::backend_type;
  using provider = typename Runner::provider_type;
  using T = element_t<Runner>;
  const dyncp::attention_shape shape{2, 1, 3, 4, 0.5};
  const std::vector<std::int64_t> lengths = {7, 0, 20, 1};
  const std::vector<std::int64_t> kv_lengths = {3, 4, 33, 0};  // a query without keys among them
  const std::vector<std::int64_t> ids = {0, 1, 2, 3};
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    auto ring = dyncp::ring_attention<T, B, provider>::create(*pool, provider{}, shape,
                                                              {100, 4, pool->ranks()});
    if (!ring) return std::move(ring).error();
    const auto s = caller_stream(backend);
    const dyncp::padding_rule padding{.zigzag = true};
    auto q = dyncp::make_packed_seq_params(ids, lengths, pool->everyone(),
                                           dyncp::layout_kind::zigzag, padding);
    auto kv = dyncp::make_packed_seq_params(ids, kv_lengths, pool->everyone(),
                                            dyncp::layout_kind::zigzag, padding);
    if (!q) return std::move(q).error();
    if (!kv) return std::move(kv).error();
    ring_case c;
    c.shape = shape;
    c.adjacent_kv = true;
    auto t = make_tensors<B, T>(backend, c, *q);
    if (!t) return std::move(t).error();
    auto keys = make_tensors<B, T>(backend, c, *kv);
    if (!keys) return std::move(keys).error();
    t->forward.k = keys->forward.k;
    t->forward.v = keys->forward.v;
    t->backward.k = keys->backward.k;
    t->backward.v = keys->backward.v;
    t->backward.dk = keys->backward.dk;
    t->backward.dv = keys->backward.dv;
    auto context = ring->make_context();
    if (!context) return std::move(context).error();
    const auto causal = ring->prepare(*context, *q, *kv, dyncp::attention_mask::causal, s);
    if (causal || causal.error().code != errc::unsupported) {
      return failed("causal cross-attention was not refused");
    }
    DYNCP_TRY(ring->prepare(*context, *q, *kv, dyncp::attention_mask::full, s));
    DYNCP_TRY(ring->forward(*context, t->forward, s));
    DYNCP_TRY(ring->backward(*context, t->backward, s));
    DYNCP_TRY(pool->synchronize(s));

    std::vector<dense_attention> dense(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto fill = [&](std::vector<double>& to, tensor which, std::int64_t length,
                            std::int64_t heads, std::int64_t dim) {
        for (std::int64_t p = 0; p < length; ++p) {
          for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t x = 0; x < dim; ++x) {
              to.push_back(as_double(as_element<T>(hashed(which, ids[i], p, h, x))));
            }
          }
        }
      };
      fill(dense[i].q, tensor::q, lengths[i], shape.q_heads, shape.qk_dim);
      fill(dense[i].dout, tensor::dout, lengths[i], shape.q_heads, shape.v_dim);
      fill(dense[i].k, tensor::k, kv_lengths[i], shape.kv_heads, shape.qk_dim);
      fill(dense[i].v, tensor::v, kv_lengths[i], shape.kv_heads, shape.v_dim);
      dense[i].run(shape, dyncp::attention_mask::full, lengths[i], kv_lengths[i]);
    }
    const auto check = [&](device_array<B, T>& array, const dyncp::packed_seq_params& params,
                           std::int64_t width, std::vector<double> dense_attention::*reference,
                           const char* name) -> result<void> {
      auto values = array.read(backend, s);
      if (!values) return std::move(values).error();
      for (std::int32_t row = 0; row < params.local_tokens(); ++row) {
        const dyncp::token_ref token = dyncp::token_at(params.view(), params.cp_rank(), row);
        for (std::int64_t x = 0; x < width; ++x) {
          const double got = as_double((*values)[static_cast<std::size_t>(row * width + x)]);
          const double want =
              token.valid ? (dense[static_cast<std::size_t>(token.sequence)].*
                             reference)[static_cast<std::size_t>(token.position * width + x)]
                          : 0;
          if (!(std::fabs(got - want) <= tolerance<T>)) {
            return failed(std::string("cross-attention: ") + name + " differs");
          }
        }
      }
      return {};
    };
    DYNCP_TRY(check(t->results[0], *q, 8, &dense_attention::out, "out"));
    DYNCP_TRY(check(t->results[1], *q, 6, &dense_attention::dq, "dq"));
    DYNCP_TRY(check(keys->results[2], *kv, 3, &dense_attention::dk, "dk"));
    return check(keys->results[3], *kv, 4, &dense_attention::dv, "dv");
  });
}

/// What ring attention refuses, typed, without touching the fabric; and a context that outlived
/// its pool.
template <class Runner>
void check_ring_refusals(Runner& runner) {
  using B = typename Runner::backend_type;
  using provider = typename Runner::provider_type;
  using T = element_t<Runner>;
  using ring_type = dyncp::ring_attention<T, B, provider>;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    const auto s = caller_stream(backend);
    const auto refuse = [&](const dyncp::attention_shape& shape, const dyncp::ring_limits& limits) {
      const auto made = ring_type::create(*pool, provider{}, shape, limits);
      return !made && made.error().code == errc::invalid_argument;
    };
    if (!refuse({3, 2, 4, 4, 1}, {8, 1, 1}) || !refuse({0, 1, 4, 4, 1}, {8, 1, 1}) ||
        !refuse({1, 1, 0, 4, 1}, {8, 1, 1}) || !refuse({1, 1, 4, 4, 1}, {-1, 1, 1}) ||
        !refuse({1, 1, 4, 4, 1}, {8, 1, 0})) {
      return failed("a ring of impossible heads or limits was made");
    }
    const dyncp::attention_shape shape{1, 1, 2, 2, 1.0};
    auto memory = backend.device().allocate(1000);
    if (!memory) return std::move(memory).error();
    const auto crooked = ring_type::create(*pool, provider{}, shape, {1, 1, 1}, {},
                                           static_cast<char*>(memory->data()) + 8);
    if (crooked || crooked.error().code != errc::invalid_argument) {
      return failed("a workspace that is not aligned was taken");
    }
    auto ring = ring_type::create(*pool, provider{}, shape, {16, 2, pool->ranks()});
    if (!ring) return std::move(ring).error();
    auto context = ring->make_context();
    if (!context) return std::move(context).error();
    const std::int32_t n = pool->ranks();
    const dyncp::padding_rule padding{.zigzag = true};
    const auto prepare = [&](const std::vector<std::int64_t>& lengths) -> result<void> {
      std::vector<std::int64_t> ids(lengths.size());
      auto params = dyncp::make_packed_seq_params(ids, lengths, pool->everyone(),
                                                  dyncp::layout_kind::zigzag, padding);
      if (!params) return std::move(params).error();
      return ring->prepare(*context, *params, dyncp::attention_mask::causal, s);
    };
    for (const auto& lengths : {std::vector<std::int64_t>{1, 1, 1}, {17 * n}}) {
      const auto refused = prepare(lengths);
      if (refused || refused.error().code != errc::invalid_argument || refused.error().limit == 0) {
        return failed("a pack beyond the limits was taken");
      }
    }
    DYNCP_TRY(prepare({16 * n}));
    auto narrow = ring_type::create(*pool, provider{}, shape, {8, 2, n});
    if (!narrow) return std::move(narrow).error();
    const auto wide = narrow->forward(*context, {}, s);
    if (wide || wide.error().code != errc::invalid_argument || wide.error().limit != 8) {
      return failed("a context beyond the limits of the ring was taken");
    }
    DYNCP_TRY(pool->synchronize(s));
    DYNCP_TRY(pool->health());

    auto second = dyncp::group_pool<B>::create(backend, {});
    if (!second) return std::move(second).error();
    auto other = ring_type::create(*second, provider{}, shape, {16, 2, n});
    if (!other) return std::move(other).error();
    const auto stale = other->forward(*context, {}, s);
    if (stale || stale.error().code != errc::mismatch) return failed("a stale context was taken");
    const auto stale_backward = other->backward(*context, {}, s);
    if (stale_backward || stale_backward.error().code != errc::mismatch) {
      return failed("a stale context was taken by the backward pass");
    }
    return second->health();
  });
}

/// Ranks with other ideas of a micro-batch learn it before a byte moves, with `verify`.
template <class Runner>
void check_ring_disagreement(Runner& runner) {
  using B = typename Runner::backend_type;
  using provider = typename Runner::provider_type;
  using T = element_t<Runner>;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    const std::int32_t n = pool->ranks();
    if (n == 1) return {};
    auto ring = dyncp::ring_attention<T, B, provider>::create(*pool, provider{}, {1, 1, 2, 2, 1.0},
                                                              {16, 2, n}, {.verify = true});
    if (!ring) return std::move(ring).error();
    auto context = ring->make_context();
    if (!context) return std::move(context).error();
    const std::vector<std::int64_t> ids = {4, 5};
    // The same padded sizes: without the check the ring would run and give wrong results.
    const std::vector<std::int64_t> lengths =
        pool->rank() == n - 1 ? std::vector<std::int64_t>{2, 1} : std::vector<std::int64_t>{1, 2};
    auto params = dyncp::make_packed_seq_params(ids, lengths, pool->everyone(),
                                                dyncp::layout_kind::zigzag, {.zigzag = true}, 3);
    if (!params) return std::move(params).error();
    const auto s = caller_stream(backend);
    const auto refused = ring->prepare(*context, *params, dyncp::attention_mask::causal, s);
    DYNCP_TRY(pool->synchronize(s));
    if (refused || refused.error().code != errc::mismatch ||
        refused.error().what.find("micro-batch 3") == std::string::npos) {
      return failed("ranks with different micro-batches went on");
    }
    return pool->health();
  });
}

/// The bytes that the ring says it sends, by the formulas of its page.
template <class Runner>
void check_ring_bytes(Runner& runner) {
  using B = typename Runner::backend_type;
  using provider = typename Runner::provider_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    const std::int32_t n = pool->ranks();
    auto ring = dyncp::ring_attention<dyncp::bfloat16, B, provider>::create(
        *pool, provider{}, {16, 8, 128, 128, 0.1}, {64, 1, n});
    if (!ring) return std::move(ring).error();
    auto context = ring->make_context();
    if (!context) return std::move(context).error();
    const std::vector<std::int64_t> ids = {0};
    const std::vector<std::int64_t> lengths = {64 * n};
    auto params = dyncp::make_packed_seq_params(ids, lengths, pool->everyone(),
                                                dyncp::layout_kind::zigzag, {.zigzag = true});
    if (!params) return std::move(params).error();
    const auto s = caller_stream(backend);
    DYNCP_TRY(ring->prepare(*context, *params, dyncp::attention_mask::causal, s));
    DYNCP_TRY(pool->synchronize(s));
    const std::int64_t kv = std::int64_t{2} * 64 * 8 * 128 * 2;  // one hop: k and v of 2 bytes
    const std::int64_t dkv = 2 * kv;                             // in float
    if (ring->forward_bytes(*context) != (n - 1) * kv) return failed("bytes of a forward pass");
    if (ring->backward_bytes(*context) != (n - 1) * (kv + dkv)) {
      return failed("bytes of a backward pass");
    }
    const std::int64_t spared = n > 1 ? kv : 0;
    if (ring->backward_bytes(*context, true) != (n - 1) * (kv + dkv) - spared) {
      return failed("bytes of a backward pass with kept keys");
    }
    return {};
  });
}

}  // namespace dyncp_test
