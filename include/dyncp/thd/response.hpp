// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// The rows of one rank whose logits score the response of one sequence, in up to two runs.
///
/// Both runs may be empty: a rank without a response token still takes part in every collective
/// and emits every metric.
struct response_rows {
  row_run front;
  row_run back;

  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t rows() const noexcept {
    return front.rows + back.rows;
  }
};

namespace detail {

/// The part of `run` with positions in [begin, end).
[[nodiscard]] DYNCP_HOST_DEVICE constexpr row_run clip(const row_run& run, std::int32_t begin,
                                                       std::int32_t end) noexcept {
  const std::int32_t last = run.position + run.rows;
  const std::int32_t from = begin < run.position ? run.position : begin > last ? last : begin;
  const std::int32_t to = end < from ? from : end > last ? last : end;
  return {run.row + (from - run.position), from, to - from, to - from};
}

}  // namespace detail

/// The rows of `rank` that score the last `response_tokens` tokens of sequence `s`.
///
/// The logits at position t predict the token at t + 1, so the wanted positions are
/// [length - response - 1, length - 1), cut by the runs that the rank holds.
/// Requires 0 <= response_tokens < length(s), or 0 with an empty sequence. Complexity: constant.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr response_rows response_of(
    const pack_view& pack, std::int32_t s, std::int32_t rank,
    std::int32_t response_tokens) noexcept {
  const std::int32_t end = pack.length(s) - 1;
  const slot rows = slot_of(pack, s, rank);
  return {detail::clip(rows.front, end - response_tokens, end),
          detail::clip(rows.back, end - response_tokens, end)};
}

}  // namespace v0
}  // namespace dyncp
