// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/pack_view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dyncp {
inline namespace v0 {

/// Labels of a whole pack, to be cut over the ranks afterwards like any other per-token field.
///
/// labels[p] is the token `depth` places after p in the same sequence; `ignore` where there is
/// none (the last `depth` tokens, padding, the tail). Shifting a rank's share instead is wrong at
/// every end of a chunk and across sequences. depth > 1 serves multi-token prediction.
///
/// `tokens` and `labels` hold pack.tokens rows in packed order and must not overlap; depth >= 0.
/// Complexity: linear.
template <class T>
DYNCP_HOST_DEVICE constexpr void shift_labels(const pack_view& pack, std::span<const T> tokens,
                                              T ignore, std::span<T> labels,
                                              std::int32_t depth = 1) {
  DYNCP_ASSERT(tokens.size() == static_cast<std::size_t>(pack.tokens));
  DYNCP_ASSERT(labels.size() == tokens.size());
  for (T& label : labels) label = ignore;
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const std::int32_t offset = pack.cu_padded[s];
    for (std::int32_t p = 0; p < pack.length(s) - depth; ++p) {
      labels[static_cast<std::size_t>(offset + p)] =
          tokens[static_cast<std::size_t>(offset + p + depth)];
    }
  }
}

/// Rows of sequence `s` that have a label: its tokens but the last `depth`.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t label_count(
    const pack_view& pack, std::int32_t s, std::int32_t depth = 1) noexcept {
  return pack.length(s) > depth ? pack.length(s) - depth : 0;
}

}  // namespace v0
}  // namespace dyncp
