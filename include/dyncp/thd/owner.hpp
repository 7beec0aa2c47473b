// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/pack_view.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// Where the token at `position` of sequence `s` lies. Requires 0 <= position < padded(s).
[[nodiscard]] DYNCP_HOST_DEVICE constexpr rank_row owner_of_token(const pack_view& pack,
                                                                  std::int32_t s,
                                                                  std::int32_t position) noexcept {
  return locate(pack, s, position);
}

/// Where the token at `position` is a label: the row of the token before it, whose logits
/// predict it. Requires 1 <= position < length(s): the first token is nobody's label.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr rank_row owner_of_label(const pack_view& pack,
                                                                  std::int32_t s,
                                                                  std::int32_t position) noexcept {
  return locate(pack, s, position - 1);
}

/// Where the last token of sequence `s` lies: a value read from its hidden state belongs here.
/// Requires length(s) >= 1.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr rank_row owner_of_last_token(const pack_view& pack,
                                                                       std::int32_t s) noexcept {
  return owner_of_token(pack, s, pack.length(s) - 1);
}

/// Where the last token of a response is scored. Per-token rewards are aligned with log-probs, so
/// the terminal reward is added on this rank and row, not on rank 0 (slime#2375).
/// Requires length(s) >= 2.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr rank_row owner_of_last_response_token(
    const pack_view& pack, std::int32_t s) noexcept {
  return owner_of_label(pack, s, pack.length(s) - 1);
}

}  // namespace v0
}  // namespace dyncp
