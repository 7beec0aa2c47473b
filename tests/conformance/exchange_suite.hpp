// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/runner.hpp"

#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/message.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// What every fabric and pool has to do: exchanges, collectives, groups.

namespace dyncp_test {

/// Byte `i` of the message that rank `from` sends to rank `to` in round `round`.
inline std::uint8_t message_byte(std::int64_t from, std::int64_t to, std::int64_t round,
                                 std::int64_t i) {
  return static_cast<std::uint8_t>(from * 31 + to * 17 + round * 7 + i * 3 + (i >> 8));
}

/// One exchange of `bytes` with the member `distance` ahead and the one behind, checked.
template <class B>
result<void> check_shift(B& backend, dyncp::group_pool<B>& pool, const dyncp::group_handle& group,
                         std::int32_t distance, std::int64_t bytes, std::int64_t round) {
  const auto s = caller_stream(backend);
  const auto comm = backend.device().comm_stream();
  const std::int32_t n = group.size();
  const std::int32_t to = (group.index + distance) % n;
  const std::int32_t from = (group.index + n - distance % n) % n;
  std::vector<std::uint8_t> values;
  for (std::int64_t i = 0; i < bytes; ++i) {
    values.push_back(
        message_byte(group.ranks.begin + group.index, group.ranks.begin + to, round, i));
  }
  auto out = device_array<B, std::uint8_t>::of(backend, values, s);
  if (!out) return std::move(out).error();
  auto in = device_array<B, std::uint8_t>::make(backend, bytes);
  if (!in) return std::move(in).error();
  auto event = backend.device().make_event();
  if (!event) return std::move(event).error();
  DYNCP_TRY(backend.device().record(*event, s));
  DYNCP_TRY(backend.device().wait(comm, *event));
  const dyncp::outgoing o{to, out->data(), bytes};
  const dyncp::incoming i{from, in->data(), bytes};
  DYNCP_TRY(pool.exchange(group, {&o, 1}, {&i, 1}, comm));
  DYNCP_TRY(backend.device().record(*event, comm));
  DYNCP_TRY(backend.device().wait(s, *event));
  auto got = in->read(backend, s);
  if (!got) return std::move(got).error();
  DYNCP_TRY(pool.synchronize(comm));  // the message has left: its memory may go
  for (std::int64_t k = 0; k < bytes; ++k) {
    if ((*got)[static_cast<std::size_t>(k)] !=
        message_byte(group.ranks.begin + from, group.ranks.begin + group.index, round, k)) {
      return failed("byte " + std::to_string(k) + " of " + std::to_string(bytes) +
                    " arrived wrong at distance " + std::to_string(distance));
    }
  }
  return {};
}

/// Shifts by every distance, in all sizes. Includes n = 2, where the next rank is the one before,
/// and distance n / 2, where each pair meets (NCCL#2407); both ends send at once and more than any
/// buffer holds (NCCL#479, #2057).
template <class Runner>
void check_exchanges(Runner& runner, dyncp::pool_strategy strategy) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {.strategy = strategy});
    if (!pool) return std::move(pool).error();
    std::int64_t round = 0;
    for (std::int32_t size = 2; size <= pool->ranks(); size *= 2) {
      if (pool->ranks() % size != 0) break;
      auto group = pool->group(size);
      if (!group) return std::move(group).error();
      for (std::int32_t distance = 1; distance < size; ++distance) {
        for (std::int64_t bytes : {0, 1, 7, 4096, 300'000}) {
          DYNCP_TRY(check_shift(backend, *pool, *group, distance, bytes, round++));
        }
      }
    }
    return {};
  });
}

/// A thousand exchanges in a row, queued without waiting, keep their order (NCCL#389;
/// pytorch#174288 hung from 1000 operations on).
template <class Runner>
void check_order(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    const std::int32_t n = pool->ranks();
    if (n == 1) return {};
    constexpr std::int32_t count = 1000;
    const auto s = backend.device().comm_stream();
    std::vector<std::int32_t> values;
    for (std::int32_t i = 0; i < count; ++i) values.push_back(pool->rank() * count + i);
    auto out = device_array<B, std::int32_t>::of(backend, values, s);
    if (!out) return std::move(out).error();
    auto in = device_array<B, std::int32_t>::make(backend, count);
    if (!in) return std::move(in).error();
    const std::int32_t to = (pool->rank() + 1) % n;
    const std::int32_t from = (pool->rank() + n - 1) % n;
    for (std::int32_t i = 0; i < count; ++i) {
      const dyncp::outgoing o{to, out->data() + i, 4};
      const dyncp::incoming r{from, in->data() + i, 4};
      DYNCP_TRY(pool->exchange(pool->everyone(), {&o, 1}, {&r, 1}, s));
    }
    auto got = in->read(backend, s);
    if (!got) return std::move(got).error();
    for (std::int32_t i = 0; i < count; ++i) {
      if ((*got)[static_cast<std::size_t>(i)] != from * count + i) {
        return failed("message " + std::to_string(i) + " is out of order");
      }
    }
    return {};
  });
}

/// Members with nothing for each other skip the message on both ends; others still meet.
template <class Runner>
void check_empty_messages(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    const std::int32_t n = pool->ranks();
    const std::int32_t rank = pool->rank();
    if (n == 1) return {};
    // Even ranks send to the next, odd ones send nothing; n is even or the last even rank's
    // message ends at rank 0.
    const auto bytes_from = [](std::int32_t r) { return std::int64_t{r % 2 == 0 ? 5 : 0}; };
    for (std::int32_t round = 0; round < 3; ++round) {
      std::array<std::uint8_t, 5> out = {1, 2, 3, 4, static_cast<std::uint8_t>(rank)};
      std::array<std::uint8_t, 5> in = {};
      const std::int32_t from = (rank + n - 1) % n;
      const dyncp::outgoing o{(rank + 1) % n, out.data(), bytes_from(rank)};
      const dyncp::incoming i{from, in.data(), bytes_from(from)};
      DYNCP_TRY(pool->exchange_host(pool->everyone(), {&o, 1}, {&i, 1}));
      const std::uint8_t want = bytes_from(from) == 0 ? 0 : static_cast<std::uint8_t>(from);
      if (in[4] != want) return failed("an empty message carried something, or a full one did not");
    }
    return {};
  });
}

/// What an exchange refuses before anything leaves: two messages for one peer (nothing would tell
/// them apart, Oceananigans#5843), itself as a peer, peers outside, negative sizes, missing data.
template <class Runner>
void check_refused_exchanges(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto& fabric = backend.fabric();
    auto comm = fabric.open();
    if (!comm) return std::move(comm).error();
    std::array<std::uint8_t, 4> data = {};
    const std::int32_t n = comm->size();
    const std::int32_t peer = (comm->rank() + 1) % n;
    const auto s = backend.device().comm_stream();
    using out_list = std::vector<dyncp::outgoing>;
    using in_list = std::vector<dyncp::incoming>;
    std::vector<std::pair<out_list, in_list>> bad = {
        {{{comm->rank(), data.data(), 1}}, {}}, {{{n, data.data(), 1}}, {}},
        {{{-1, data.data(), 1}}, {}},           {{}, {{comm->rank(), data.data(), 1}}},
        {{}, {{n + 3, data.data(), 1}}},
    };
    if (n > 1) {
      bad.push_back({{{peer, data.data(), 1}, {peer, data.data() + 1, 1}}, {}});
      bad.push_back({{}, {{peer, data.data(), 1}, {peer, data.data() + 1, 1}}});
      bad.push_back({{{peer, data.data(), -1}}, {}});
      bad.push_back({{{peer, nullptr, 1}}, {}});
    }
    for (std::size_t i = 0; i < bad.size(); ++i) {
      for (const auto& refused : {fabric.exchange(*comm, bad[i].first, bad[i].second, s),
                                  fabric.exchange_host(*comm, bad[i].first, bad[i].second)}) {
        if (refused || refused.error().code != errc::invalid_argument ||
            refused.error().what.empty()) {
          return failed("bad exchange " + std::to_string(i) + " was not refused");
        }
      }
    }
    DYNCP_TRY(fabric.health(*comm));  // nobody was harmed
    fabric.close(*comm);
    return {};
  });
}

template <class Runner>
void check_collectives(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    // Groups of every size that fits at the front, so that sizes 3, 5, 6, 7 occur too.
    for (std::int32_t size = 1; size <= pool->ranks(); ++size) {
      if (pool->rank() >= size) continue;
      auto group = pool->group(dyncp::rank_range{0, size});
      if (!group) return std::move(group).error();
      auto channel = pool->channel(*group);
      const std::int32_t rank = channel.rank();
      DYNCP_TRY(dyncp::barrier(channel));

      auto all = dyncp::all_gather_value(channel, std::int64_t{rank} * rank + 1);
      if (!all) return std::move(all).error();
      for (std::int32_t r = 0; r < size; ++r) {
        if ((*all)[static_cast<std::size_t>(r)] != std::int64_t{r} * r + 1) {
          return failed("all_gather over " + std::to_string(size));
        }
      }
      // Rank r has (r + 2 * to) % 4 bytes for `to`: blocks of 0 among them.
      const auto block = [](std::int32_t from, std::int32_t to) { return (from + 2 * to) % 4; };
      std::vector<std::vector<std::byte>> send(static_cast<std::size_t>(size));
      std::vector<std::vector<std::byte>> receive(static_cast<std::size_t>(size));
      std::vector<std::span<const std::byte>> out;
      std::vector<std::span<std::byte>> in;
      for (std::int32_t r = 0; r < size; ++r) {
        send[static_cast<std::size_t>(r)].assign(static_cast<std::size_t>(block(rank, r)),
                                                 static_cast<std::byte>(rank * 16 + r));
        receive[static_cast<std::size_t>(r)].resize(static_cast<std::size_t>(block(r, rank)));
        out.emplace_back(send[static_cast<std::size_t>(r)]);
        in.emplace_back(receive[static_cast<std::size_t>(r)]);
      }
      DYNCP_TRY(dyncp::all_to_all(channel, out, in));
      for (std::int32_t r = 0; r < size; ++r) {
        for (std::byte b : receive[static_cast<std::size_t>(r)]) {
          if (b != static_cast<std::byte>(r * 16 + rank)) return failed("all_to_all");
        }
      }
      for (std::int32_t root = 0; root < size; ++root) {
        std::array<std::int32_t, 3> data = {};
        if (rank == root) data = {root, 42, -root};
        DYNCP_TRY(dyncp::broadcast(channel, std::as_writable_bytes(std::span(data)), root));
        if (data != std::array<std::int32_t, 3>{root, 42, -root}) {
          return failed("broadcast from " + std::to_string(root) + " of " + std::to_string(size));
        }
      }
      // Values whose sum depends on the order: all ranks must use the same.
      std::array<double, 2> sums = {rank % 2 == 0 ? 1e16 : 1.0, 0.1 * rank};
      DYNCP_TRY(dyncp::all_reduce(channel, std::span<double>(sums), dyncp::reduction::sum));
      double want = 0;
      double tenths = 0;
      for (std::int32_t r = 0; r < size; ++r) {
        want += r % 2 == 0 ? 1e16 : 1.0;
        tenths += 0.1 * r;
      }
      if (sums[0] != want || sums[1] != tenths) return failed("all_reduce of doubles");
      for (auto [operation, result_of] :
           {std::pair(dyncp::reduction::minimum, std::int64_t{-size + 1}),
            std::pair(dyncp::reduction::maximum, std::int64_t{0}),
            std::pair(dyncp::reduction::sum, -std::int64_t{size} * (size - 1) / 2)}) {
        std::int64_t value = -rank;
        DYNCP_TRY(dyncp::all_reduce(channel, std::span<std::int64_t>(&value, 1), operation));
        if (value != result_of) return failed("all_reduce of integers");
      }
      DYNCP_TRY(dyncp::agree(channel, 0x1234, "a number"));
    }
    return {};
  });
}

/// Ranks that disagree all get the same typed error, from the same call.
template <class Runner>
void check_disagreement(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {});
    if (!pool) return std::move(pool).error();
    if (pool->ranks() == 1) return {};
    auto channel = pool->channel(pool->everyone());
    const auto agreed = dyncp::agree(channel, pool->rank() == 1 ? 7 : 5, "the plan");
    if (agreed || agreed.error().code != errc::mismatch || agreed.error().value != 1 ||
        agreed.error().what.find("the plan") == std::string::npos) {
      return failed("a disagreement was not named");
    }
    return dyncp::barrier(channel);  // the group still works
  });
}

/// Groups: which exist, what is refused, by which strategy; Megatron#5679 made a group of 2 ranks
/// when 6 ranks were cut into fours.
template <class Runner>
void check_pool(Runner& runner, dyncp::pool_strategy strategy) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {.strategy = strategy});
    if (!pool) return std::move(pool).error();
    const std::int32_t n = pool->ranks();
    const std::int32_t rank = pool->rank();
    const bool split = strategy == dyncp::pool_strategy::split;
    for (std::int32_t size = 1; size <= n + 1; ++size) {
      auto group = pool->group(size);
      if (n % size != 0) {
        if (group || group.error().code != errc::invalid_argument || group.error().value != size) {
          return failed("a size that does not divide was not refused");
        }
        continue;
      }
      if (split && size < n && !dyncp::is_power_of_two(size)) {
        if (group || group.error().code != errc::not_created) {
          return failed("a size that was not made was not refused");
        }
        continue;
      }
      if (!group) return std::move(group).error();
      if (group->ranks != dyncp::rank_range{rank / size * size, size} ||
          group->index != rank % size || group->generation != pool->generation() ||
          (group->communicator < 0) != (size == 1)) {
        return failed("the group of " + std::to_string(size) + " is not this rank's");
      }
    }
    for (std::int32_t bad : {0, -1}) {
      if (pool->group(bad)) return failed("a group of no ranks");
    }
    if (rank > 0 && pool->group(dyncp::rank_range{0, 1}))
      return failed("a group without this rank");
    if (pool->group(dyncp::rank_range{rank, n - rank + 1}))
      return failed("a group beyond the ranks");
    // A logical pool has any contiguous group; a split one only aligned blocks.
    if (n >= 4 && rank >= 1 && rank <= 3) {
      auto odd = pool->group(dyncp::rank_range{1, 3});
      if (split) {
        if (odd || odd.error().code != errc::not_created) return failed("an odd group was made");
      } else {
        if (!odd) return std::move(odd).error();
        DYNCP_TRY(check_shift(backend, *pool, *odd, 1, 100, 1));
        DYNCP_TRY(check_shift(backend, *pool, *odd, 2, 100, 2));
      }
    }
    const auto costs = pool->costs();
    if (costs.empty() || costs.back().size != n) return failed("costs do not end with the parent");
    for (std::size_t i = 0; i < costs.size(); ++i) {
      if (costs[i].groups != n / costs[i].size || costs[i].milliseconds < 0 ||
          (i > 0 && costs[i].size <= costs[i - 1].size)) {
        return failed("costs are not by ascending size");
      }
    }
    return {};
  });
}

/// Explicit sizes, and the typed refusal of one that does not divide, on all ranks alike.
template <class Runner>
void check_pool_sizes(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    const std::int32_t n = backend.fabric().ranks();
    for (auto strategy : {dyncp::pool_strategy::logical, dyncp::pool_strategy::split}) {
      auto bad = dyncp::group_pool<B>::create(backend, {.strategy = strategy, .sizes = {n + 1}});
      if (bad || bad.error().code != errc::invalid_argument || bad.error().value != n + 1) {
        return failed("a pool with a size that does not divide was made");
      }
      auto pool = dyncp::group_pool<B>::create(backend, {.strategy = strategy, .sizes = {n}});
      if (!pool) return std::move(pool).error();
      if (n % 2 == 0 && n > 2) {
        auto other = pool->group(2);
        if (other || other.error().code != errc::not_created) {
          return failed("a pool made for one size gave another");
        }
      }
      if (!pool->group(n) || !pool->group(1)) return failed("all ranks, and one, are always there");
    }
    return {};
  });
}

/// Pools come and go; handles of an old one are refused by a new one, and nothing hangs.
template <class Runner>
void check_generations(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    dyncp::group_handle old;
    for (std::int32_t generation = 1; generation <= 3; ++generation) {
      auto pool = dyncp::group_pool<B>::create(
          backend, {.strategy = generation % 2 == 0 ? dyncp::pool_strategy::split
                                                    : dyncp::pool_strategy::logical});
      if (!pool) return std::move(pool).error();
      if (pool->generation() != static_cast<std::uint64_t>(generation)) {
        return failed("generations do not count up");
      }
      if (generation > 1) {
        const auto refused = pool->exchange(old, {}, {}, backend.device().comm_stream());
        if (refused || refused.error().code != errc::mismatch) {
          return failed("a handle of an old pool was taken");
        }
        DYNCP_TRY(pool->health());
      }
      old = pool->everyone();
    }
    return {};
  });
}

/// Ranks that ask for different pools are told so, on every rank (pytorch#134314, cuDecomp#98).
template <class Runner>
void check_pool_disagreement(Runner& runner) {
  using B = typename Runner::backend_type;
  runner.run([&](B& backend) -> result<void> {
    const std::int32_t n = backend.fabric().ranks();
    if (n == 1) return {};
    const bool odd = backend.fabric().rank() == n - 1;
    auto pool = dyncp::group_pool<B>::create(
        backend, {.strategy = dyncp::pool_strategy::split,
                  .sizes = odd ? std::vector<std::int32_t>{1} : std::vector<std::int32_t>{1, n}});
    if (pool || pool.error().code != errc::mismatch) {
      return failed("ranks made different groups");
    }
    auto again = dyncp::group_pool<B>::create(backend, {});
    if (!again) return std::move(again).error();
    auto channel = again->channel(again->everyone());
    return dyncp::barrier(channel);
  });
}

}  // namespace dyncp_test
