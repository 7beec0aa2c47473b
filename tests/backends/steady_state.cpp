// SPDX-License-Identifier: Apache-2.0
// Nothing is allocated once a ring, a split and a merge have run: counted by operator new itself.
#include "backends/counting_new.hpp"

#include <dyncp/attention/ring_attention.hpp>
#include <dyncp/cpu/attention.hpp>
#include <dyncp/cpu/plain_attention.hpp>
#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/runtime/split_merge.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

using namespace dyncp;

namespace {

using backend_t = cpu::thread_backend;
using provider_t = cpu::attention<cpu::plain_attention>;

/// Forward and backward passes over two micro-batches of different shape, split and merge.
result<void> work(backend_t& backend, std::int64_t& after_warm_up) {
  auto& device = backend.device();
  const auto s = device.main_stream();
  auto pool = group_pool<backend_t>::create(backend, {});
  if (!pool) return std::move(pool).error();
  const std::int32_t n = pool->ranks();
  const attention_shape shape{2, 1, 4, 4, 0.5};
  const ring_limits limits{64, 4, n};
  auto ring =
      ring_attention<bfloat16, backend_t, provider_t>::create(*pool, provider_t{}, shape, limits);
  if (!ring) return std::move(ring).error();
  auto context = ring->make_context();
  if (!context) return std::move(context).error();
  const std::vector<std::int64_t> ids = {0, 1};
  const std::vector<std::vector<std::int64_t>> lengths = {{9, 40}, {33, 5}};
  std::vector<packed_seq_params> params;
  for (const auto& l : lengths) {
    params.push_back(
        make_packed_seq_params(ids, l, pool->everyone(), layout_kind::zigzag, {.zigzag = true})
            .value());
  }
  constexpr std::int64_t elements = 64 * 8;
  auto memory = device.allocate(elements * 16 * 2).value();
  auto sums = device.allocate(elements * 4).value();
  auto* const t = static_cast<bfloat16*>(memory.data());
  const auto at = [&](std::int64_t i, std::int64_t width) {
    return thd_view<bfloat16>{t + i * elements, width};
  };
  const thd_view<float> lse{static_cast<float*>(sums.data()), 2};
  DYNCP_TRY(device.fill_zero(memory.data(), memory.bytes(), s));

  std::vector<sequence> batch = {{0, 9, -1}, {1, 40, -1}};
  plan p{.num_ranks = n,
         .max_tokens_per_rank = 64,
         .padding = {.zigzag = true},
         .micro_batches = {{{pack{{0, n}, {0, 1}}}}}};
  auto layout = plan_layout::make(p, batch, layout_kind::zigzag);
  if (!layout) return std::move(layout).error();
  const std::vector<std::int32_t> owners = {0, n - 1};
  auto split = plan_split<backend_t>::make(*pool, *layout, owners, 8, s);
  if (!split) return std::move(split).error();
  auto merge = plan_merge<backend_t>::make(*pool, *layout, owners, 8, false, s);
  if (!merge) return std::move(merge).error();
  auto rows = device.allocate(std::int64_t{8} * 128).value();
  auto shares = device.allocate(std::int64_t{8} * 128).value();
  DYNCP_TRY(device.fill_zero(rows.data(), rows.bytes(), s));

  for (int round = 0; round < 6; ++round) {
    if (round == 2) {
      // Every rank has seen every size, and none is ahead while the count begins.
      auto everyone = pool->channel(pool->everyone());
      DYNCP_TRY(barrier(everyone));
      if (pool->rank() == 0) dyncp_test::allocations = 0;
      DYNCP_TRY(barrier(everyone));
    }
    for (const std::int32_t size : {1, n}) DYNCP_TRY(pool->group(size));
    DYNCP_TRY(pool->group(rank_range{0, n}));
    const packed_seq_params& now = params[static_cast<std::size_t>(round % 2)];
    DYNCP_TRY(ring->prepare(*context, now, attention_mask::causal, s));
    DYNCP_TRY(ring->forward(*context, {at(0, 8), at(1, 4), at(2, 4), at(3, 8), lse}, s));
    DYNCP_TRY(ring->backward(
        *context,
        {at(0, 8), at(1, 4), at(2, 4), at(3, 8), lse, at(4, 8), at(5, 8), at(6, 4), at(7, 4)}, s));
    DYNCP_TRY(split->run(rows.data(), shares.data(), 8, s));
    DYNCP_TRY(merge->run(shares.data(), rows.data(), 8, s));
    DYNCP_TRY(pool->synchronize(s));
  }
  auto everyone = pool->channel(pool->everyone());
  DYNCP_TRY(barrier(everyone));
  if (pool->rank() == 0) after_warm_up = dyncp_test::allocations;
  return barrier(everyone);
}

}  // namespace

TEST_CASE("a steady state allocates nothing") {
  for (std::int32_t ranks : {1, 2, 4}) {
    INFO(ranks << " ranks");
    std::int64_t after_warm_up = -1;
    cpu::thread_world world({.ranks = ranks});
    const auto results =
        cpu::run_ranks(world, {}, [&](backend_t& backend) { return work(backend, after_warm_up); });
    for (const auto& r : results) CHECK_MESSAGE(r.has_value(), r.error().message());
    CHECK(after_warm_up == 0);
  }
}
