// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A per-token field of this rank's share, (local_tokens): `value_of(sequence, position)` for each
/// row that holds a token, `padding` for the others. Sequences count in the pack, positions in the
/// sequence. Fields cut by it lie alike, whatever they are: tokens, labels, masks, rewards, the
/// log-probabilities of another model (slime#1135, verl#6555 forgot one).
///
/// Complexity: linear in the rows.
template <class T, class ValueOf>
[[nodiscard]] std::vector<T> cut_share(const packed_seq_params& params, T padding,
                                       ValueOf value_of) {
  const pack_view pack = params.view();
  std::vector<T> out(static_cast<std::size_t>(pack.local_rows()), padding);
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const slot rows = slot_of(pack, s, params.cp_rank());
    for (const row_run& run : {rows.front, rows.back}) {
      for (std::int32_t i = 0; i < run.valid; ++i) {
        out[static_cast<std::size_t>(run.row + i)] = value_of(s, run.position + i);
      }
    }
  }
  return out;
}

namespace detail {

template <class Samples>
[[nodiscard]] result<void> check_samples(const packed_seq_params& params, const Samples& samples) {
  if (samples.size() != params.sequence_ids.size()) {
    return error{errc::invalid_argument, std::to_string(samples.size()) +
                 " samples for a pack of " + std::to_string(params.sequence_ids.size()) +
                 " sequences",
                 static_cast<std::int64_t>(samples.size()),
                 static_cast<std::int64_t>(params.sequence_ids.size()),
                 "give the samples of this micro-batch, whole and in THD order"};
  }
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const auto tokens = static_cast<std::int64_t>(std::ranges::size(samples[s]));
    const std::int64_t length = params.view().length(static_cast<std::int32_t>(s));
    if (tokens == length) continue;
    return error{errc::invalid_argument, "sample " + std::to_string(params.sequence_ids[s]) +
                 " has " + std::to_string(tokens) + " values for " + std::to_string(length) +
                 " tokens", tokens, length, "give one value for each token"};
  }
  return {};
}

}  // namespace detail

/// The tokens of this rank's share, (local_tokens), from the whole samples of the pack: random
/// access ranges of as many values as they have tokens, in THD order. Errors: invalid_argument.
template <class T, class Sample>
[[nodiscard]] result<std::vector<T>> cut_tokens(const packed_seq_params& params,
                                                std::span<const Sample> samples, T padding) {
  DYNCP_TRY(detail::check_samples(params, samples));
  return cut_share<T>(params, padding, [&](std::int32_t s, std::int32_t position) {
    return static_cast<T>(samples[static_cast<std::size_t>(s)][static_cast<std::size_t>(position)]);
  });
}

/// Their labels: the token `depth` places on in the same sequence, `ignore` where there is none.
/// Shifted in the whole sequence before it is cut: a shift of the share is wrong at every end of a
/// chunk (verl#4250, Automodel#3544). Errors: invalid_argument.
template <class T, class Sample>
[[nodiscard]] result<std::vector<T>> cut_labels(const packed_seq_params& params,
                                                std::span<const Sample> samples, T ignore,
                                                std::int32_t depth = 1) {
  DYNCP_TRY(detail::check_samples(params, samples));
  const pack_view pack = params.view();
  return cut_share<T>(params, ignore, [&](std::int32_t s, std::int32_t position) {
    const std::int32_t at = position + depth;
    if (at >= pack.length(s)) return ignore;
    return static_cast<T>(samples[static_cast<std::size_t>(s)][static_cast<std::size_t>(at)]);
  });
}

}  // namespace v0
}  // namespace dyncp
