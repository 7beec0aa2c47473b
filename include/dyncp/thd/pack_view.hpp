// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/layout_kind.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// A pack in THD layout on one CP group: all that is needed to say where a token lies.
///
/// Non-owning and trivially copyable, so kernels take it by value, with device pointers. Every
/// function of thd/ takes one. `pack_layout` owns the arrays on the host and checks the promises:
/// cu_real[0] = cu_padded[0] = 0; 0 <= length <= padded length; each padded length a multiple of
/// length_multiple(layout, cp); cu_padded[sequences] <= tokens; tokens % cp = 0; 1 <= cp.
/// Rows from cu_padded[sequences] to tokens are the tail: they belong to no sequence.
struct pack_view {
  const std::int32_t* cu_real = nullptr;    // (sequences + 1) prefix sums of lengths
  const std::int32_t* cu_padded = nullptr;  // (sequences + 1) prefix sums of padded lengths
  std::int32_t sequences = 0;
  std::int32_t tokens = 0;  ///< rows of the pack, padding and tail included
  std::int32_t cp = 1;      ///< ranks of the group
  layout_kind layout = layout_kind::zigzag;

  /// Tokens of sequence s.
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t length(std::int32_t s) const noexcept {
    return cu_real[s + 1] - cu_real[s];
  }
  /// Rows of sequence s.
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t padded(std::int32_t s) const noexcept {
    return cu_padded[s + 1] - cu_padded[s];
  }
  /// Tokens of all sequences.
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t real_tokens() const noexcept {
    return cu_real[sequences];
  }
  /// Rows of all sequences, the tail not included.
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t sequence_rows() const noexcept {
    return cu_padded[sequences];
  }
  /// Rows that each rank of the group holds: the same on all.
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t local_rows() const noexcept {
    return tokens / cp;
  }
};

}  // namespace v0
}  // namespace dyncp
