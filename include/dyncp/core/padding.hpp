// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/int_math.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// How sequences are padded inside a pack. One rule serves the limit check, the costs, the THD
/// layout and the message sizes, so that they cannot disagree (NeMo-RL#2182 did: 517 > 502).
///
/// A sequence on a group of c ranks is padded to a multiple of
///   lcm(sequence_parallel * (zigzag && c > 1 ? 2 * c : 1), multiple),
/// a pack to a multiple of c * shard_multiple where shard_multiple > 1, by tokens at its tail that
/// attend to nothing. Without either the shards of a pack may differ by a token.
struct padding_rule {
  bool zigzag = false;                 ///< 2*c chunks a sequence, as the zigzag layout needs
  std::int32_t sequence_parallel = 1;  ///< tp when Megatron's sequence parallelism is on, else 1
  std::int64_t multiple = 1;           ///< extra multiple of every sequence
  std::int64_t shard_multiple = 1;     ///< multiple of a pack's tokens per rank (32: MXFP8)

  friend constexpr bool operator==(const padding_rule&, const padding_rule&) = default;
};

/// The multiple that a sequence is padded to on a group of `c` ranks.
[[nodiscard]] constexpr std::int64_t alignment(const padding_rule& rule, std::int32_t c) noexcept {
  const std::int64_t chunks = rule.zigzag && c > 1 ? 2 * std::int64_t{c} : 1;
  return least_common_multiple(chunks * rule.sequence_parallel, rule.multiple);
}

/// Tokens that a sequence of `length` occupies, padded, on a group with alignment `align`.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int64_t padded_length(std::int64_t length,
                                                                     std::int64_t align) noexcept {
  return round_up(length, align);
}

/// Tokens of a whole pack, tail included, from the sum of its padded lengths.
[[nodiscard]] constexpr std::int64_t padded_pack_tokens(const padding_rule& rule, std::int32_t c,
                                                        std::int64_t tokens) noexcept {
  return rule.shard_multiple == 1 ? tokens : round_up(tokens, rule.shard_multiple * c);
}

}  // namespace v0
}  // namespace dyncp
