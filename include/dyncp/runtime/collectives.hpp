// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/message.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The members of a group and a way to exchange host memory between them: what the small
/// collectives need. `group_pool::channel` gives one for a group.
template <class C>
concept host_channel = requires(C& c, const C& cc, std::span<const outgoing> out,
                                std::span<const incoming> in) {
  { cc.rank() } -> std::convertible_to<std::int32_t>;
  { cc.size() } -> std::convertible_to<std::int32_t>;
  { c.exchange_host(out, in) } -> std::same_as<result<void>>;
};

// Collectives on small host data: plans, sizes, counts, losses. Each is built of exchanges with at
// most two messages, so a backend implements none of them and no rank floods a peer.
//
// | call       | exchanges per rank | bytes sent per rank      |
// | ---------- | ------------------ | ------------------------ |
// | barrier    | ceil(log2 n)       | ceil(log2 n)             |
// | all_gather | ceil(log2 n)       | (n - 1) * bytes          |
// | all_to_all | n - 1              | sum of the bytes for it  |
// | broadcast  | ceil(log2 n)       | at most that many copies |
// | all_reduce | as all_gather      | as all_gather            |
// | agree      | as all_gather      | 8 * (n - 1)              |
//
// All are collective: every member of the group calls them, in the same order, with the same
// sizes. Determinism: results are equal bit for bit on every member. Errors: those of the fabric.

/// Returns when every member has called it (dissemination: in round k member i hears of i - 2^k).
template <host_channel C>
[[nodiscard]] result<void> barrier(C& channel) {
  const std::int32_t n = channel.size();
  const std::int32_t rank = channel.rank();
  for (std::int32_t distance = 1; distance < n; distance *= 2) {
    std::byte token{1};
    std::byte heard{0};
    const outgoing out{(rank + distance) % n, &token, 1};
    const incoming in{(rank - distance + n) % n, &heard, 1};
    DYNCP_TRY(channel.exchange_host({&out, 1}, {&in, 1}));
  }
  return {};
}

/// Concatenates the members' blocks in the order of their ranks.
///
/// Requires all.size() == size() * mine.size(), mine not part of `all`. Bruck's algorithm: blocks
/// double in every round.
template <host_channel C>
[[nodiscard]] result<void> all_gather(C& channel, std::span<const std::byte> mine,
                                      std::span<std::byte> all) {
  const std::int32_t n = channel.size();
  const std::int32_t rank = channel.rank();
  const std::size_t block = mine.size();
  if (all.size() != block * static_cast<std::size_t>(n)) {
    return make_error(errc::invalid_argument, "all_gather of " + std::to_string(block) +
                                                  " bytes over " + std::to_string(n) +
                                                  " ranks into " + std::to_string(all.size()) +
                                                  " bytes");
  }
  if (block == 0) return {};
  // Kept rotated: block i of `rotated` is that of rank (rank + i) % n.
  std::vector<std::byte> rotated(all.size());
  std::memcpy(rotated.data(), mine.data(), block);
  for (std::int32_t have = 1; have < n; have *= 2) {
    const std::int32_t blocks = std::min(have, n - have);
    const std::int64_t bytes = std::int64_t{blocks} * static_cast<std::int64_t>(block);
    const outgoing out{(rank - have + n) % n, rotated.data(), bytes};
    const incoming in{(rank + have) % n, rotated.data() + static_cast<std::size_t>(have) * block,
                      bytes};
    DYNCP_TRY(channel.exchange_host({&out, 1}, {&in, 1}));
  }
  for (std::int32_t i = 0; i < n; ++i) {
    std::memcpy(all.data() + static_cast<std::size_t>((rank + i) % n) * block,
                rotated.data() + static_cast<std::size_t>(i) * block, block);
  }
  return {};
}

/// `all_gather` of one value per member, (size()).
template <host_channel C, class T>
  requires std::is_trivially_copyable_v<T>
[[nodiscard]] result<std::vector<T>> all_gather_value(C& channel, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(channel.size()));
  DYNCP_TRY(all_gather(channel, std::as_bytes(std::span<const T>(&mine, 1)),
                       std::as_writable_bytes(std::span<T>(all))));
  return all;
}

/// Sends out[j] to member j and receives in[i] from member i; own blocks are copied.
///
/// Requires out.size() == in.size() == size(); |in[i]| here equals |out[this rank]| on member i.
/// Empty blocks cost nothing. In round k a member sends to rank + k and receives from rank - k.
template <host_channel C>
[[nodiscard]] result<void> all_to_all(C& channel, std::span<const std::span<const std::byte>> out,
                                      std::span<const std::span<std::byte>> in) {
  const std::int32_t n = channel.size();
  const std::int32_t rank = channel.rank();
  const std::size_t members = static_cast<std::size_t>(n);
  const std::size_t self = static_cast<std::size_t>(rank);
  if (out.size() != members || in.size() != members || out[self].size() != in[self].size()) {
    return make_error(errc::invalid_argument,
                      "all_to_all needs one block per member and direction, and own blocks of "
                      "one size");
  }
  if (!out[self].empty()) std::memcpy(in[self].data(), out[self].data(), out[self].size());
  for (std::int32_t k = 1; k < n; ++k) {
    const std::int32_t to = (rank + k) % n;
    const std::int32_t from = (rank - k + n) % n;
    const auto& block = out[static_cast<std::size_t>(to)];
    const auto& place = in[static_cast<std::size_t>(from)];
    if (block.empty() && place.empty()) continue;
    const outgoing send{to, block.data(), static_cast<std::int64_t>(block.size())};
    const incoming receive{from, place.data(), static_cast<std::int64_t>(place.size())};
    DYNCP_TRY(channel.exchange_host({&send, 1}, {&receive, 1}));
  }
  return {};
}

/// Copies `data` of member `root` to all (binomial tree).
template <host_channel C>
[[nodiscard]] result<void> broadcast(C& channel, std::span<std::byte> data, std::int32_t root) {
  const std::int32_t n = channel.size();
  if (root < 0 || root >= n) {
    return error{
        errc::invalid_argument,
        "broadcast from member " + std::to_string(root) + " of a group of " + std::to_string(n),
        root, n - 1, "use a member of the group"};
  }
  const std::int32_t virtual_rank = (channel.rank() - root + n) % n;
  const std::int64_t bytes = static_cast<std::int64_t>(data.size());
  for (std::int32_t have = 1; have < n; have *= 2) {
    if (virtual_rank < have) {
      const std::int32_t to = virtual_rank + have;
      if (to >= n) continue;
      const outgoing out{(to + root) % n, data.data(), bytes};
      DYNCP_TRY(channel.exchange_host({&out, 1}, {}));
    } else if (virtual_rank < 2 * have) {
      const incoming in{(virtual_rank - have + root) % n, data.data(), bytes};
      DYNCP_TRY(channel.exchange_host({}, {&in, 1}));
    }
  }
  return {};
}

enum class reduction : std::int32_t { sum, minimum, maximum };

/// Reduces `values` element by element over the members, in the order of their ranks: floating
/// sums are equal bit for bit on every member and from run to run.
template <host_channel C, class T>
  requires std::is_arithmetic_v<T>
[[nodiscard]] result<void> all_reduce(C& channel, std::span<T> values, reduction operation) {
  const std::size_t members = static_cast<std::size_t>(channel.size());
  std::vector<T> all(values.size() * members);
  DYNCP_TRY(all_gather(channel, std::as_bytes(values), std::as_writable_bytes(std::span<T>(all))));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T total = all[i];
    for (std::size_t m = 1; m < members; ++m) {
      const T next = all[m * values.size() + i];
      switch (operation) {
        case reduction::sum: total = static_cast<T>(total + next); break;
        case reduction::minimum: total = std::min(total, next); break;
        case reduction::maximum: total = std::max(total, next); break;
      }
    }
    values[i] = total;
  }
  return {};
}

/// Checks that all members hold the same `digest` of what they are about to do; `what` names it.
///
/// Errors: mismatch, on every member alike, with the first member that differs from member 0. So
/// nobody begins an exchange that a peer will not join.
template <host_channel C>
[[nodiscard]] result<void> agree(C& channel, std::uint64_t digest, std::string_view what) {
  auto all = all_gather_value(channel, digest);
  if (!all) return std::move(all).error();
  for (std::size_t m = 1; m < all->size(); ++m) {
    if ((*all)[m] == (*all)[0]) continue;
    return error{errc::mismatch,
                 "ranks disagree on " + std::string(what) + ": member " + std::to_string(m) +
                     " has digest " + std::to_string((*all)[m]) + ", member 0 has " +
                     std::to_string((*all)[0]),
                 static_cast<std::int64_t>(m), 0,
                 "give every rank the same plan, sizes and options, in the same order"};
  }
  return {};
}

}  // namespace v0
}  // namespace dyncp
