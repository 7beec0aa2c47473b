// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/limits.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/parallel_spec.hpp>
#include <dyncp/problem/sequence.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// All that a plan depends on: one global batch and the job that trains on it.
///
/// A plain value without invariants; `check` tells whether it can be planned.
struct problem {
  std::vector<sequence> sequences;
  model_spec model;
  cluster_spec cluster;
  parallel_spec parallel;
  plan_limits limits;
  padding_rule padding;
};

/// Largest padded tokens that a pack on `c` ranks may hold.
[[nodiscard]] inline std::int64_t pack_capacity(const problem& p, std::int32_t c) noexcept {
  const std::int64_t per_rank = p.limits.max_tokens_per_rank;
  if (per_rank > max_pack_tokens / c) return max_pack_tokens;
  return per_rank * c;
}

/// True when the group [begin, begin + size) lies inside one node.
[[nodiscard]] constexpr bool in_one_node(std::int32_t begin, std::int32_t size,
                                         std::int32_t per_node) noexcept {
  return begin / per_node == (begin + size - 1) / per_node;
}

/// M is a multiple of this: `limits.micro_batch_multiple`, and with interleaving also of pp, since
/// the interleaved schedule passes groups of pp micro-batches from chunk to chunk.
[[nodiscard]] constexpr std::int32_t micro_batch_multiple(const problem& p) noexcept {
  return static_cast<std::int32_t>(least_common_multiple(
      p.limits.micro_batch_multiple, p.parallel.vpp > 1 ? p.parallel.pp : 1));
}

/// Multiples of 1 or more and at most 2^24 (sequence parallelism: 4096). Errors: invalid_argument.
[[nodiscard]] inline result<void> check(const padding_rule& rule) {
  // Alignments of 2^20 ranks stay below 2^58.
  constexpr std::int64_t most = std::int64_t{1} << 24;
  constexpr std::int64_t most_tp = 4096;
  for (auto [name, value, limit] :
       {std::tuple{"padding multiple", rule.multiple, most},
        {"shard multiple", rule.shard_multiple, most},
        {"sequence parallel size", std::int64_t{rule.sequence_parallel}, most_tp}}) {
    if (value < 1 || value > limit) {
      return error{errc::invalid_argument, std::string(name) + " is " + std::to_string(value),
                   value, limit, "use a number in 1 .. " + std::to_string(limit)};
    }
  }
  return {};
}

/// Checks all but the sequences' fit: fields in their domains, limits that can hold a token.
///
/// Errors: empty_input, invalid_length, invalid_argument. Complexity: O(n).
[[nodiscard]] inline result<void> check(const problem& p) {
  if (auto ok = check(p.parallel); !ok) return ok;
  if (auto ok = check(p.padding); !ok) return ok;
  const plan_limits& limits = p.limits;
  if (limits.max_tokens_per_rank < 1) {
    return error{errc::invalid_argument,
                 "max-tokens-per-rank is " + std::to_string(limits.max_tokens_per_rank),
                 limits.max_tokens_per_rank, 1,
                 "set the tokens that one rank can hold in a micro-batch (--max-tokens-per-rank)"};
  }
  for (auto [name, value, least] :
       {std::tuple{"micro-batches", std::int64_t{limits.micro_batches}, 0},
        {"micro-batch multiple", std::int64_t{limits.micro_batch_multiple}, 1},
        {"sequences per pack", std::int64_t{limits.max_sequences_per_pack}, 0},
        {"max-inflight-tokens", limits.max_inflight_tokens, 0}}) {
    if (value < least) {
      return error{errc::invalid_argument, std::string(name) + " is " + std::to_string(value),
                   value, least,
                   least == 0 ? "use 0 (no limit) or a positive number" : "use 1 or more"};
    }
  }
  // What plan files hold; more tokens than a sequence may have are no limit at all.
  for (auto [name, value, hint] :
       {std::tuple{"max-tokens-per-rank", limits.max_tokens_per_rank, "use at most 2^40"},
        {"max-inflight-tokens", limits.max_inflight_tokens, "use 0 for no limit"}}) {
    if (value > max_sequence_length) {
      return error{errc::invalid_argument, std::string(name) + " is " + std::to_string(value),
                   value, max_sequence_length, hint};
    }
  }
  if (limits.micro_batch_multiple > (1 << 16)) {
    return error{errc::invalid_argument,
                 "micro-batch multiple is " + std::to_string(limits.micro_batch_multiple),
                 limits.micro_batch_multiple, 1 << 16, "use a multiple of at most 2^16"};
  }
  if (std::max(limits.micro_batches, micro_batch_multiple(p)) > max_micro_batches) {
    const std::int32_t m = std::max(limits.micro_batches, micro_batch_multiple(p));
    return error{errc::invalid_argument,
                 "micro-batches (or their multiple) is " + std::to_string(m), m,
                 max_micro_batches, "at most 2^20 micro-batches are planned"};
  }
  if (limits.micro_batches % micro_batch_multiple(p) != 0) {
    return error{errc::invalid_argument,
                 "micro-batches " + std::to_string(limits.micro_batches) +
                     " is not a multiple of " + std::to_string(micro_batch_multiple(p)),
                 limits.micro_batches, micro_batch_multiple(p),
                 "interleaved 1F1B needs a multiple of its group; round --micro-batches up"};
  }
  // A limit below the alignment of every allowed group holds no token at all.
  bool some_room = false;
  for (std::int32_t c : allowed_cp_sizes(p.parallel)) {
    some_room = some_room || alignment(p.padding, c) <= pack_capacity(p, c);
  }
  if (!some_room) {
    const std::int32_t c = allowed_cp_sizes(p.parallel).front();
    return error{errc::invalid_argument,
                 "max-tokens-per-rank " + std::to_string(limits.max_tokens_per_rank) +
                     " is below the alignment",
                 limits.max_tokens_per_rank, ceil_div(alignment(p.padding, c), c),
                 "one padded token needs " + std::to_string(ceil_div(alignment(p.padding, c), c)) +
                     " tokens a rank at cp " + std::to_string(c)};
  }
  if (p.sequences.empty()) {
    return make_error(errc::empty_input, "the batch holds no sequence",
                      "check the file and its filters (--min-length, --max-length, --skip)");
  }
  if (p.sequences.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    return make_error(errc::overflow, "the batch holds more than 2^31-1 sequences");
  }
  for (const sequence& s : p.sequences) {
    if (s.length < 1 || s.length > max_sequence_length) {
      return invalid_length_error("sequence " + std::to_string(s.id), s.length);
    }
  }
  return {};
}

}  // namespace v0
}  // namespace dyncp
