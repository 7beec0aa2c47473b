// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cost/cost_model.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// XXH64 of 64-bit words, each as eight little-endian bytes: the digest that ranks compare before
/// they train on plans of their own. Words are mixed as numbers, so the host's byte order and
/// compiler do not matter. Not for adversaries.
///
/// Source: the xxHash specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), for inputs
/// that are whole words, seed 0. Complexity: O(1) a word, about 10 bytes a nanosecond.
class word_digest {
 public:
  constexpr void add(std::uint64_t word) noexcept {
    buffer_[count_ % 4] = word;
    if (++count_ % 4 != 0) return;
    for (std::size_t i = 0; i < 4; ++i) lanes_[i] = round(lanes_[i], buffer_[i]);
  }
  /// Two's complement.
  constexpr void add(std::int64_t value) noexcept { add(std::bit_cast<std::uint64_t>(value)); }
  constexpr void add(std::int32_t value) noexcept { add(std::int64_t{value}); }
  constexpr void add(bool value) noexcept { add(std::uint64_t{value}); }
  /// The bit pattern of IEEE 754 binary64.
  constexpr void add(double value) noexcept { add(std::bit_cast<std::uint64_t>(value)); }

  [[nodiscard]] constexpr std::uint64_t value() const noexcept {
    std::uint64_t hash = prime_[4];
    if (count_ >= 4) {
      hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
             std::rotl(lanes_[3], 18);
      for (const std::uint64_t lane : lanes_) {
        hash = (hash ^ round(0, lane)) * prime_[0] + prime_[3];
      }
    }
    hash += 8 * count_;
    for (std::size_t i = 0; i < count_ % 4; ++i) {
      hash = std::rotl(hash ^ round(0, buffer_[i]), 27) * prime_[0] + prime_[3];
    }
    hash = (hash ^ (hash >> 33)) * prime_[1];
    hash = (hash ^ (hash >> 29)) * prime_[2];
    return hash ^ (hash >> 32);
  }

 private:
  [[nodiscard]] static constexpr std::uint64_t round(std::uint64_t lane,
                                                     std::uint64_t word) noexcept {
    return std::rotl(lane + word * prime_[1], 31) * prime_[0];
  }

  static constexpr std::array<std::uint64_t, 5> prime_ = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F,
                                                          0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                                                          0x27D4EB2F165667C5};
  std::array<std::uint64_t, 4> lanes_ = {prime_[0] + prime_[1], prime_[1], 0, 0 - prime_[0]};
  std::array<std::uint64_t, 4> buffer_{};
  std::uint64_t count_ = 0;
};

/// A cost model with parameters of its own. `digest_words()` lists them all, doubles by their bit
/// pattern, in a fixed order. A model made of nothing but the problem's specs needs none.
template <class Cost>
concept digestible_cost = cost_model<Cost> && requires(const Cost& cost) {
  { cost.digest_words() } -> std::same_as<std::vector<std::uint64_t>>;
};

namespace detail {

// Each structured binding names every field: a field that is added to a struct and not here does
// not compile. Names of models and clusters do not count: they change no plan.

inline void add_digest(word_digest& d, const padding_rule& rule) {
  const auto& [zigzag, sequence_parallel, multiple, shard_multiple] = rule;
  d.add(zigzag);
  d.add(sequence_parallel);
  d.add(multiple);
  d.add(shard_multiple);
}

inline void add_digest(word_digest& d, const std::vector<sequence>& batch) {
  d.add(static_cast<std::uint64_t>(batch.size()));
  for (const auto& [id, length, atom] : batch) {
    d.add(id);
    d.add(length);
    d.add(atom);
  }
}

inline void add_digest(word_digest& d, const model_spec& model) {
  const auto& [name, layers, hidden, ffn, query_hidden, kv_hidden, gated_mlp, experts,
               experts_per_token, vocabulary, dtype_bytes, mask, recompute] = model;
  static_cast<void>(name);
  d.add(layers);
  d.add(hidden);
  d.add(ffn);
  d.add(query_hidden);
  d.add(kv_hidden);
  d.add(gated_mlp);
  d.add(experts);
  d.add(experts_per_token);
  d.add(vocabulary);
  d.add(dtype_bytes);
  d.add(static_cast<std::int32_t>(mask));
  d.add(static_cast<std::int32_t>(recompute));
}

inline void add_digest(word_digest& d, const cluster_spec& cluster) {
  const auto& [name, gpus_per_node, linear_flops_per_s, linear_half_tokens, attention_flops_per_s,
               attention_half_tokens, nvlink_bytes_per_s, nvlink_latency_s, network_bytes_per_s,
               network_latency_s, ring_overlap, fixed_s, launch_s, backward_linear,
               backward_attention, backward_ring_bytes, stage_bytes_per_s, stage_latency_s,
               memory_gib] = cluster;
  static_cast<void>(name);
  d.add(gpus_per_node);
  for (const double x :
       {linear_flops_per_s, linear_half_tokens, attention_flops_per_s, attention_half_tokens,
        nvlink_bytes_per_s, nvlink_latency_s, network_bytes_per_s, network_latency_s, ring_overlap,
        fixed_s, launch_s, backward_linear, backward_attention, backward_ring_bytes,
        stage_bytes_per_s, stage_latency_s, memory_gib}) {
    d.add(x);
  }
}

inline void add_digest(word_digest& d, const parallel_spec& parallel) {
  const auto& [ranks, pp, vpp, tp, static_cp, min_cp, max_cp, cp_sizes] = parallel;
  for (const std::int32_t n : {ranks, pp, vpp, tp, static_cp, min_cp, max_cp}) d.add(n);
  d.add(static_cast<std::uint64_t>(cp_sizes.size()));
  for (const std::int32_t c : cp_sizes) d.add(c);
}

inline void add_digest(word_digest& d, const plan_limits& limits) {
  const auto& [max_tokens_per_rank, max_inflight_tokens, max_sequences_per_pack, micro_batches,
               micro_batch_multiple, no_idle_ranks, uniform_cp] = limits;
  d.add(max_tokens_per_rank);
  d.add(max_inflight_tokens);
  d.add(max_sequences_per_pack);
  d.add(micro_batches);
  d.add(micro_batch_multiple);
  d.add(no_idle_ranks);
  d.add(uniform_cp);
}

// The first word of each digest tells what it is of, and the version of this encoding.
inline constexpr std::uint64_t problem_tag = 0x6470726F626C6501;
inline constexpr std::uint64_t plan_tag = 0x64706C616E000001;
inline constexpr std::uint64_t pair_tag = 0x6470616972000001;

}  // namespace detail

/// Digest of all that a plan depends on but the cost model's own parameters: sequences with their
/// ids and atoms, specs, limits and padding. The same on every platform. O(n).
[[nodiscard]] inline std::uint64_t digest(const problem& prob) {
  const auto& [sequences, model, cluster, parallel, limits, padding] = prob;
  word_digest d;
  d.add(detail::problem_tag);
  detail::add_digest(d, sequences);
  detail::add_digest(d, model);
  detail::add_digest(d, cluster);
  detail::add_digest(d, parallel);
  detail::add_digest(d, limits);
  detail::add_digest(d, padding);
  return d.value();
}

/// Digest of a plan: ranks, limit, padding, and every pack of every micro-batch in order. O(n).
[[nodiscard]] inline std::uint64_t digest(const plan& p) {
  const auto& [num_ranks, max_tokens_per_rank, padding, micro_batches] = p;
  word_digest d;
  d.add(detail::plan_tag);
  d.add(num_ranks);
  d.add(max_tokens_per_rank);
  detail::add_digest(d, padding);
  d.add(static_cast<std::uint64_t>(micro_batches.size()));
  for (const micro_batch& mb : micro_batches) {
    d.add(static_cast<std::uint64_t>(mb.packs.size()));
    for (const pack& pk : mb.packs) {
      d.add(pk.ranks.begin);
      d.add(pk.ranks.size);
      d.add(static_cast<std::uint64_t>(pk.sequences.size()));
      for (const std::int32_t i : pk.sequences) d.add(i);
    }
  }
  return d.value();
}

/// Digest of a cost model's own parameters.
template <digestible_cost Cost>
[[nodiscard]] std::uint64_t digest(const Cost& cost) {
  word_digest d;
  for (const std::uint64_t word : cost.digest_words()) d.add(word);
  return d.value();
}

/// Digest of a problem and the plan made for it: what ranks exchange before they train. Where two
/// differ, inputs or plans do, and no rank may start; equal by chance once in 2^64.
[[nodiscard]] inline std::uint64_t digest(const problem& prob, const plan& p) {
  word_digest d;
  d.add(detail::pair_tag);
  d.add(digest(prob));
  d.add(digest(p));
  return d.value();
}

/// The same with the parameters of a cost model that is not made of the problem's specs alone.
template <digestible_cost Cost>
[[nodiscard]] std::uint64_t digest(const problem& prob, const Cost& cost, const plan& p) {
  word_digest d;
  d.add(detail::pair_tag);
  d.add(digest(prob));
  d.add(digest(cost));
  d.add(digest(p));
  return d.value();
}

}  // namespace v0
}  // namespace dyncp
