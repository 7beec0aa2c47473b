// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/ring_case.hpp"
#include "conformance/runner.hpp"
#include "support/random.hpp"

#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/runtime/row_route.hpp>
#include <dyncp/runtime/split_merge.hpp>
#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/layout_kind.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Split, merge and reroute of whole plans: every row is where the layout says, padding is zero,
// ids come out once and in the caller's order, gradients are the transpose.

namespace dyncp_test {

struct plan_case {
  std::vector<dyncp::sequence> batch;
  dyncp::plan plan;
  dyncp::layout_kind layout = dyncp::layout_kind::zigzag;
  std::vector<std::int32_t> owners;  // (sequences)
};

/// A plan for `ranks` ranks from a seed: ids that are not indices, groups of any size, ranks that
/// are idle, micro-batches without work.
inline plan_case random_plan(random& draw, std::int32_t ranks) {
  plan_case c;
  c.plan.num_ranks = ranks;
  c.plan.padding.zigzag = true;
  c.layout = dyncp::layout_kind::zigzag;
  if (draw.chance(0.3)) {
    c.plan.padding.zigzag = false;
    c.plan.padding.multiple = 1;
    for (std::int32_t i = 2; i <= ranks; ++i) {  // every group size must divide
      c.plan.padding.multiple = dyncp::least_common_multiple(c.plan.padding.multiple, i);
      if (c.plan.padding.multiple > 1000) break;
    }
    c.layout = dyncp::layout_kind::contiguous;
  }
  if (draw.chance(0.3)) c.plan.padding.shard_multiple = 4;
  std::vector<std::int32_t> order;
  const std::int64_t micro_batches = draw.between(1, 4);
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    dyncp::micro_batch micro_batch;
    for (std::int32_t begin = 0; begin < ranks;) {
      auto size = static_cast<std::int32_t>(draw.between(1, ranks - begin));
      if (c.plan.padding.multiple % size != 0 && !c.plan.padding.zigzag) size = 1;
      if (draw.chance(0.8)) {
        dyncp::pack pack{{begin, size}, {}};
        for (std::int64_t i = draw.between(1, 3); i > 0; --i) {
          const auto index = static_cast<std::int32_t>(c.batch.size());
          c.batch.push_back({1000 - 7 * index, draw.between(1, draw.chance(0.2) ? 60 : 12), -1});
          pack.sequences.push_back(index);
        }
        micro_batch.packs.push_back(pack);
      }
      begin += size;
    }
    c.plan.micro_batches.push_back(micro_batch);
  }
  // The plan names sequences in an order that is not the caller's.
  std::vector<std::int32_t> shuffled(c.batch.size());
  for (std::size_t i = 0; i < shuffled.size(); ++i) shuffled[i] = static_cast<std::int32_t>(i);
  for (std::size_t i = shuffled.size(); i > 1; --i) {
    std::swap(
        shuffled[i - 1],
        shuffled[static_cast<std::size_t>(draw.between(0, static_cast<std::int64_t>(i) - 1))]);
  }
  const std::vector<dyncp::sequence> before = c.batch;
  for (std::size_t i = 0; i < shuffled.size(); ++i) {
    c.batch[static_cast<std::size_t>(shuffled[i])] = before[i];
  }
  for (auto& micro_batch : c.plan.micro_batches) {
    for (auto& pack : micro_batch.packs) {
      for (std::int32_t& s : pack.sequences) s = shuffled[static_cast<std::size_t>(s)];
    }
  }
  for (std::size_t i = 0; i < c.batch.size(); ++i) {
    c.owners.push_back(static_cast<std::int32_t>(draw.between(0, ranks - 1)));
  }
  return c;
}

/// Byte `x` of the row at `position` of the sequence with this id.
inline std::uint8_t row_byte(std::int64_t id, std::int64_t position, std::int64_t x) {
  return static_cast<std::uint8_t>(1 + (id * 37 + position * 11 + x * 5 + (position >> 4)) % 251);
}

inline std::vector<std::uint8_t> whole_rows(const dyncp::plan_layout& layout,
                                            const dyncp::sequence_rows& rows,
                                            std::int64_t row_bytes) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows.rows * row_bytes));
  for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
    const std::int64_t place = rows.place[static_cast<std::size_t>(s)];
    if (place < 0) continue;
    for (std::int64_t p = 0; p < layout.length(s); ++p) {
      for (std::int64_t x = 0; x < row_bytes; ++x) {
        bytes[static_cast<std::size_t>((place + p) * row_bytes + x)] = row_byte(layout.id(s), p, x);
      }
    }
  }
  return bytes;
}

/// The rows that a rank's packs hold, one after the other; `padding` where there is no token.
inline std::vector<std::uint8_t> share_rows(const dyncp::plan_layout& layout, std::int32_t rank,
                                            std::int64_t row_bytes, std::uint8_t padding) {
  std::vector<std::uint8_t> bytes;
  for (std::int32_t m = 0; m < layout.num_micro_batches(); ++m) {
    const dyncp::placed_pack* const p = layout.pack_at(rank, m);
    if (p == nullptr) continue;
    const dyncp::pack_view view = p->layout.view();
    for (std::int32_t row = 0; row < view.local_rows(); ++row) {
      const dyncp::token_ref token = dyncp::token_at(view, rank - p->ranks.begin, row);
      for (std::int64_t x = 0; x < row_bytes; ++x) {
        bytes.push_back(
            token.valid
                ? row_byte(layout.id(p->sequences[static_cast<std::size_t>(token.sequence)]),
                           token.position, x)
                : padding);
      }
    }
  }
  return bytes;
}

template <class B>
result<void> same_bytes(B& backend, device_array<B, std::uint8_t>& got,
                        const std::vector<std::uint8_t>& want, const char* what) {
  auto values = got.read(backend, caller_stream(backend));
  if (!values) return std::move(values).error();
  if (*values != want) return failed(std::string(what) + " moved a row to another place");
  return {};
}

/// Sums over all ranks agree: what is sent is received, and no more than the table says.
template <class B>
result<void> check_bytes(dyncp::group_pool<B>& pool, std::int64_t sent, std::int64_t received,
                         std::int64_t limit, const char* what) {
  std::array<std::int64_t, 2> sums = {sent, received};
  auto everyone = pool.channel(pool.everyone());
  DYNCP_TRY(dyncp::all_reduce(everyone, std::span<std::int64_t>(sums), dyncp::reduction::sum));
  if (sums[0] != sums[1] || sums[0] > limit) {
    return failed(std::string(what) + " sends " + std::to_string(sums[0]) + " bytes, receives " +
                  std::to_string(sums[1]) + ", limit " + std::to_string(limit));
  }
  return {};
}

template <class B>
result<void> run_plan(B& backend, const plan_case& c, std::int64_t row_bytes) {
  const auto s = caller_stream(backend);
  auto pool = dyncp::group_pool<B>::create(backend, {});
  if (!pool) return std::move(pool).error();
  auto layout = dyncp::plan_layout::make(c.plan, c.batch, c.layout);
  if (!layout) return std::move(layout).error();
  const std::int32_t rank = pool->rank();
  const std::vector<std::int32_t> everywhere(c.batch.size(), dyncp::every_rank);
  std::int64_t tokens = 0;
  std::int64_t copies = 0;
  for (std::int32_t i = 0; i < layout->num_sequences(); ++i) {
    tokens += layout->length(i);
    copies += layout->length(i) * layout->pack_of(i).ranks.size;
  }

  const auto split = [&](const std::vector<std::int32_t>& owners,
                         std::int64_t limit) -> result<void> {
    auto made = dyncp::plan_split<B>::make(*pool, *layout, owners, row_bytes, s);
    if (!made) return std::move(made).error();
    auto whole = device_array<B, std::uint8_t>::of(
        backend, whole_rows(*layout, dyncp::rows_of_owner(*layout, owners, rank), row_bytes), s);
    if (!whole) return std::move(whole).error();
    auto share = device_array<B, std::uint8_t>::make(backend, layout->local_rows(rank) * row_bytes);
    if (!share) return std::move(share).error();
    DYNCP_TRY(made->run(whole->data(), share->data(), row_bytes, s));
    DYNCP_TRY(same_bytes(backend, *share, share_rows(*layout, rank, row_bytes, 0), "split"));
    return check_bytes(*pool, made->router().bytes_sent(row_bytes),
                       made->router().bytes_received(row_bytes), limit, "split");
  };
  DYNCP_TRY(split(c.owners, tokens * row_bytes));
  DYNCP_TRY(split(everywhere, 0));

  {
    auto made = dyncp::plan_reroute<B>::make(*pool, *layout, c.owners, row_bytes, s);
    if (!made) return std::move(made).error();
    auto owned = device_array<B, std::uint8_t>::of(
        backend, whole_rows(*layout, dyncp::rows_of_owner(*layout, c.owners, rank), row_bytes), s);
    if (!owned) return std::move(owned).error();
    const dyncp::sequence_rows needed = dyncp::rows_of_worker(*layout, rank);
    auto got = device_array<B, std::uint8_t>::make(backend, needed.rows * row_bytes);
    if (!got) return std::move(got).error();
    DYNCP_TRY(made->run(owned->data(), got->data(), row_bytes, s));
    DYNCP_TRY(same_bytes(backend, *got, whole_rows(*layout, needed, row_bytes), "reroute"));
    DYNCP_TRY(check_bytes(*pool, made->router().bytes_sent(row_bytes),
                          made->router().bytes_received(row_bytes), copies * row_bytes, "reroute"));
  }

  const std::vector<std::int32_t> root(c.batch.size(), pool->ranks() - 1);
  for (const auto* owners : {&everywhere, &c.owners, &root}) {
    auto made = dyncp::plan_merge<B>::make(*pool, *layout, *owners, row_bytes, false, s);
    if (!made) return std::move(made).error();
    // Padding of the shares is poison: it must not come through.
    auto share =
        device_array<B, std::uint8_t>::of(backend, share_rows(*layout, rank, row_bytes, 0xff), s);
    if (!share) return std::move(share).error();
    const dyncp::sequence_rows rows = dyncp::rows_of_owner(*layout, *owners, rank);
    auto whole = device_array<B, std::uint8_t>::make(backend, rows.rows * row_bytes);
    if (!whole) return std::move(whole).error();
    DYNCP_TRY(made->run(share->data(), whole->data(), row_bytes, s));
    DYNCP_TRY(same_bytes(backend, *whole, whole_rows(*layout, rows, row_bytes), "merge"));
    const std::int64_t limit = owners == &everywhere ? tokens * (1 + pool->ranks()) : 2 * tokens;
    const std::int64_t sent = made->bytes_sent(row_bytes);
    std::int64_t sum = sent;
    auto everyone = pool->channel(pool->everyone());
    DYNCP_TRY(dyncp::all_reduce(everyone, std::span<std::int64_t>(&sum, 1), dyncp::reduction::sum));
    if (sum > limit * row_bytes) return failed("merge sends more than its table says");
  }
  return {};
}

template <class Runner>
void check_plan(Runner& runner, const plan_case& c, std::int64_t row_bytes) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) { return run_plan(backend, c, row_bytes); });
}

template <class Runner>
void check_random_plans(Runner& runner, std::int64_t rounds) {
  const std::uint64_t seed = seed_or(77);
  random draw(seed);
  for (std::int64_t round = 0; round < rounds; ++round) {
    INFO("seed " << seed << ", round " << round);
    const plan_case c = random_plan(draw, runner.ranks());
    // Token ids, labels, log-probabilities, hidden states: one plan, any width (slime#1135).
    for (std::int64_t row_bytes : {1, 4, 24}) check_plan(runner, c, row_bytes);
  }
}

/// One micro-batch with one pack on ranks 0..cp-1, loaded by rank 0.
inline plan_case single_pack(std::int32_t ranks, std::int32_t cp,
                             const std::vector<std::int64_t>& lengths,
                             dyncp::layout_kind layout = dyncp::layout_kind::zigzag) {
  plan_case c;
  c.layout = layout;
  c.plan.num_ranks = ranks;
  c.plan.padding = layout == dyncp::layout_kind::zigzag ? dyncp::padding_rule{.zigzag = true}
                                                        : dyncp::padding_rule{.multiple = cp};
  dyncp::pack pack{{0, cp}, {}};
  for (std::int64_t length : lengths) {
    pack.sequences.push_back(static_cast<std::int32_t>(c.batch.size()));
    c.batch.push_back({static_cast<std::int64_t>(c.batch.size()), length, -1});
    c.owners.push_back(0);
  }
  c.plan.micro_batches = {{{pack}}};
  return c;
}

/// Inputs on which split and merge of others failed, and their kinds.
template <class Runner>
void check_split_merge_failures(Runner& runner) {
  const std::int32_t n = runner.ranks();
  for (std::int32_t cp = 1; cp <= n; cp *= 2) {
    INFO(cp << " ranks in the group");
    {
      INFO("verl#6001: one token, rows of trailing dimensions (48, 8)");
      check_plan(runner, single_pack(n, cp, {1}), std::int64_t{48} * 8 * 4);
      check_plan(runner, single_pack(n, cp, {1, 2, 1}), 48 * 8);
    }
    {
      INFO("verl#6267: 4803 tokens, padded to 4804");
      check_plan(runner, single_pack(n, cp, {4803}), 4);
    }
    {
      INFO("ISEEKYAN/Megatron-LM#111: 5 and 3");
      check_plan(runner, single_pack(n, cp, {5, 3}), 4);
    }
    {
      INFO("slime#2123: ranks without a token (10 tokens on 4 ranks, 1 token)");
      check_plan(runner, single_pack(n, cp, {10}), 4);
    }
    {
      INFO("Megatron-LM#3282: zero-length sequences");
      check_plan(runner, single_pack(n, cp, {16, 24, 0, 0}), 4);
      check_plan(runner, single_pack(n, cp, {0}), 4);
    }
    {
      INFO("slime#1871: contiguous shares");
      check_plan(runner, single_pack(n, cp, {8, 3}, dyncp::layout_kind::contiguous), 4);
    }
    {
      INFO("slime#1838: micro-batches without work, no sequences at all");
      plan_case c = single_pack(n, cp, {7, 9});
      c.plan.micro_batches.insert(c.plan.micro_batches.begin(), dyncp::micro_batch{});
      c.plan.micro_batches.push_back({});
      check_plan(runner, c, 4);
      plan_case nothing;
      nothing.plan.num_ranks = n;
      nothing.plan.micro_batches.resize(2);
      check_plan(runner, nothing, 4);
    }
  }
}

/// 8 tokens on 2 ranks: zigzag gives 0 1 6 7 | 2 3 4 5, contiguous 0 1 2 3 | 4 5 6 7.
template <class Runner>
void check_layout_vectors(Runner& runner) {
  using B = typename Runner::backend_type;
  if (runner.ranks() < 2) return;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    const auto s = caller_stream(backend);
    const std::int32_t rank = pool->rank();
    for (auto layout_kind : {dyncp::layout_kind::zigzag, dyncp::layout_kind::contiguous}) {
      const plan_case c = single_pack(pool->ranks(), 2, {8}, layout_kind);
      auto layout = dyncp::plan_layout::make(c.plan, c.batch, layout_kind);
      if (!layout) return std::move(layout).error();
      auto split = dyncp::plan_split<B>::make(*pool, *layout, c.owners, 4, s);
      if (!split) return std::move(split).error();
      std::vector<std::int32_t> tokens;
      if (rank == 0) tokens = {0, 1, 2, 3, 4, 5, 6, 7};
      auto whole = device_array<B, std::int32_t>::of(backend, tokens, s);
      if (!whole) return std::move(whole).error();
      auto share = device_array<B, std::int32_t>::make(backend, layout->local_rows(rank));
      if (!share) return std::move(share).error();
      DYNCP_TRY(split->run(whole->data(), share->data(), 4, s));
      auto got = share->read(backend, s);
      if (!got) return std::move(got).error();
      const bool zigzag = layout_kind == dyncp::layout_kind::zigzag;
      std::vector<std::int32_t> want;
      if (rank == 0)
        want =
            zigzag ? std::vector<std::int32_t>{0, 1, 6, 7} : std::vector<std::int32_t>{0, 1, 2, 3};
      if (rank == 1)
        want =
            zigzag ? std::vector<std::int32_t>{2, 3, 4, 5} : std::vector<std::int32_t>{4, 5, 6, 7};
      if (*got != want) return failed("the share of a rank is another one");
    }
    return {};
  });
}

/// Gradients of merge: `summed` is the transpose of merge over all ranks, `own_slice` cuts the
/// rank's own gradient; with equal gradients on all R ranks the two differ by R (ms-swift#9516,
/// where a gather without gradient lost it).
template <class Runner>
void check_merge_gradients(Runner& runner, std::int64_t rounds) {
  using B = typename Runner::backend_type;
  using provider = typename Runner::provider_type;
  using T = dyncp::accumulator_t<element_t<Runner>>;
  const std::uint64_t seed = seed_or(99);
  random draw(seed);
  for (std::int64_t round = 0; round < rounds; ++round) {
    const plan_case c = random_plan(draw, runner.ranks());
    INFO("seed " << seed << ", round " << round);
    runner.run([&](B& backend) -> result<void> {
      constexpr std::int64_t width = 3;
      const auto s = caller_stream(backend);
      auto pool = dyncp::group_pool<B>::create(backend, {});
      if (!pool) return std::move(pool).error();
      auto layout = dyncp::plan_layout::make(c.plan, c.batch, c.layout);
      if (!layout) return std::move(layout).error();
      const std::int32_t rank = pool->rank();
      const std::int32_t ranks = pool->ranks();
      provider kernels;
      const auto add = [&kernels](auto& device, auto stream, T* to, const T* from,
                                  std::int64_t n) {
        return kernels.add(device, stream, to, from, n);
      };
      // The gradient that rank r has for element x of token p of a sequence: exact in float.
      const auto gradient = [](std::int64_t r, std::int64_t id, std::int64_t p, std::int64_t x) {
        return static_cast<T>((r + 1) * 64 + (id * 7 + p * 3 + x) % 61);
      };
      const std::vector<std::int32_t> everywhere(c.batch.size(), dyncp::every_rank);
      for (const auto* owners : {&everywhere, &c.owners}) {
        constexpr std::int64_t row_bytes = width * std::int64_t{sizeof(T)};
        auto merge = dyncp::plan_merge<B>::make(*pool, *layout, *owners, row_bytes, true, s);
        if (!merge) return std::move(merge).error();
        const dyncp::sequence_rows rows = dyncp::rows_of_owner(*layout, *owners, rank);
        std::vector<T> mine(static_cast<std::size_t>(rows.rows * width));
        for (std::int32_t i = 0; i < layout->num_sequences(); ++i) {
          const std::int64_t place = rows.place[static_cast<std::size_t>(i)];
          for (std::int64_t p = 0; place >= 0 && p < layout->length(i); ++p) {
            for (std::int64_t x = 0; x < width; ++x) {
              mine[static_cast<std::size_t>((place + p) * width + x)] =
                  gradient(rank, layout->id(i), p, x);
            }
          }
        }
        auto whole = device_array<B, T>::of(backend, mine, s);
        if (!whole) return std::move(whole).error();
        auto share = device_array<B, T>::make(backend, layout->local_rows(rank) * width);
        if (!share) return std::move(share).error();
        for (auto kind : {dyncp::merge_gradient::summed, dyncp::merge_gradient::own_slice}) {
          const auto done = merge->backward(kind, whole->data(), share->data(), width, add, s);
          const bool own = kind == dyncp::merge_gradient::own_slice;
          // With an empty batch, or one rank, owners and everywhere are the same thing.
          if (own && owners == &c.owners && !c.batch.empty()) {
            if (done || done.error().code != errc::unsupported) {
              return failed("an own slice that is not there was cut");
            }
            continue;
          }
          DYNCP_TRY(done);
          auto got = share->read(backend, s);
          if (!got) return std::move(got).error();
          for (std::int32_t m = 0; m < layout->num_micro_batches(); ++m) {
            const dyncp::placed_pack* const pack = layout->pack_at(rank, m);
            if (pack == nullptr) continue;
            const dyncp::pack_view view = pack->layout.view();
            for (std::int32_t row = 0; row < view.local_rows(); ++row) {
              const dyncp::token_ref token = dyncp::token_at(view, rank - pack->ranks.begin, row);
              for (std::int64_t x = 0; x < width; ++x) {
                T want = 0;
                if (token.valid) {
                  const std::int32_t i = pack->sequences[static_cast<std::size_t>(token.sequence)];
                  const std::int32_t owner = (*owners)[static_cast<std::size_t>(i)];
                  for (std::int32_t r = 0; r < ranks; ++r) {
                    if (own ? r != rank : owner != dyncp::every_rank && owner != r) continue;
                    want += gradient(r, layout->id(i), token.position, x);
                  }
                }
                if ((*got)[static_cast<std::size_t>((layout->local_begin(rank, m) + row) * width +
                                                    x)] != want) {
                  return failed(own ? "the own slice of a gradient is another one"
                                    : "a summed gradient is another one");
                }
              }
            }
          }
        }
      }
      return {};
    });
  }
}

/// Plans that do not cover the batch once, and owners that are none, by name.
inline void check_plan_layout_errors() {
  const auto refused = [](const plan_case& c, const char* part) {
    const auto made = dyncp::plan_layout::make(c.plan, c.batch, c.layout);
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error().code == dyncp::errc::invalid_plan);
    CHECK_MESSAGE(made.error().what.find(part) != std::string::npos, made.error().what);
  };
  plan_case good = single_pack(4, 2, {5, 6, 7});
  for (std::size_t i = 0; i < good.batch.size(); ++i) {
    good.batch[i].id = 100 + static_cast<std::int64_t>(i);
  }
  REQUIRE(dyncp::plan_layout::make(good.plan, good.batch, good.layout).has_value());
  plan_case c = good;
  c.plan.micro_batches[0].packs[0].sequences = {0, 2};
  refused(c, "sequence 101 is in no pack");
  c.plan.micro_batches[0].packs[0].sequences = {0, 1, 1, 2};
  refused(c, "sequence 101 is in micro-batch 0 and again");
  c.plan.micro_batches[0].packs[0].sequences = {0, 1, 3};
  refused(c, "sequence number 3 of 3");
  c.plan.micro_batches[0].packs[0].sequences = {0, -1, 2};
  refused(c, "sequence number -1");
  c = good;
  c.plan.num_ranks = 0;
  refused(c, "a plan for 0 ranks");
  c = good;
  c.plan.micro_batches[0].packs[0].ranks = {3, 2};
  refused(c, "ranks 3..4 of 4 ranks");
  c.plan.micro_batches[0].packs[0].ranks = {0, 0};
  refused(c, "ranks 0..-1");
  c = good;
  c.plan.micro_batches[0].packs = {{{0, 2}, {0}}, {{1, 2}, {1, 2}}};
  refused(c, "overlaps another one on rank 1");

  const auto layout = dyncp::plan_layout::make(good.plan, good.batch, good.layout);
  for (const auto& owners : {std::vector<std::int32_t>{0, 1}, std::vector<std::int32_t>{0, 1, 4},
                             std::vector<std::int32_t>{0, -2, 1}}) {
    const auto checked = dyncp::check_owners(*layout, owners);
    REQUIRE_FALSE(checked.has_value());
    CHECK(checked.error().code == dyncp::errc::invalid_argument);
  }
  const std::vector<std::int32_t> fine = {0, dyncp::every_rank, 3};
  CHECK(dyncp::check_owners(*layout, fine).has_value());
}

/// A plan for other ranks than the pool has.
template <class Runner>
void check_other_ranks(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    const plan_case c = single_pack(pool->ranks() + 1, 1, {5, 3});
    auto layout = dyncp::plan_layout::make(c.plan, c.batch, c.layout);
    if (!layout) return std::move(layout).error();
    const auto s = caller_stream(backend);
    const auto split = dyncp::plan_split<B>::make(*pool, *layout, c.owners, 4, s);
    const auto reroute = dyncp::plan_reroute<B>::make(*pool, *layout, c.owners, 4, s);
    const auto merge = dyncp::plan_merge<B>::make(*pool, *layout, c.owners, 4, false, s);
    if (split || reroute || merge || split.error().code != errc::mismatch ||
        reroute.error().code != errc::mismatch || merge.error().code != errc::mismatch) {
      return failed("a plan for other ranks was taken");
    }
    return pool->health();
  });
}

/// Routes that no plan makes: delivered twice, outside the arrays, of other ranks; rows too wide.
template <class Runner>
void check_router_refusals(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    const auto s = caller_stream(backend);
    const std::int32_t me = pool->rank();
    const std::vector<dyncp::row_route> bad = {
        {{{me, me, 0, 0, 2}, {me, me, 2, 1, 2}}, 4, 4},  // row 1 twice
        {{{me, me, 3, 0, 2}}, 4, 4},                     // behind the source
        {{{me, me, 0, 3, 2}}, 4, 4},                     // behind the result
        {{{me, me, -1, 0, 1}}, 4, 4},
        {{{me, pool->ranks(), 0, 0, 1}}, 4, 4},
        {{{pool->ranks(), pool->ranks(), 0, 0, 1}}, 4, 4},
    };
    for (std::size_t i = 0; i < bad.size(); ++i) {
      const auto made = dyncp::row_router<B>::make(*pool, bad[i], {4, false}, s);
      if (made || made.error().code != errc::invalid_argument) {
        return failed("bad route " + std::to_string(i) + " was taken");
      }
    }
    auto router = dyncp::row_router<B>::make(*pool, {{{me, me, 1, 0, 2}}, 4, 4}, {4, false}, s);
    if (!router) return std::move(router).error();
    auto from = device_array<B, std::int32_t>::of(backend, {10, 11, 12, 13}, s);
    if (!from) return std::move(from).error();
    auto to = device_array<B, std::int32_t>::make(backend, 4);
    if (!to) return std::move(to).error();
    const auto wide = router->run(from->data(), to->data(), 8, s);
    if (wide || wide.error().code != errc::invalid_argument) return failed("rows of 8 bytes taken");
    const auto backward = router->run_adjoint(
        from->data(), to->data(), 1, [](auto&&...) { return result<void>(); }, s);
    if (backward || backward.error().code != errc::invalid_argument) {
      return failed("an adjoint that was not asked for ran");
    }
    DYNCP_TRY(router->run(from->data(), to->data(), 4, s));
    auto got = to->read(backend, s);
    if (!got) return std::move(got).error();
    if (*got != std::vector<std::int32_t>{11, 12, 0, 0}) return failed("a route inside one rank");
    return pool->health();
  });
}

}  // namespace dyncp_test
