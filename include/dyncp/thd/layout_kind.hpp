// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>

#include <cstdint>
#include <string_view>

namespace dyncp {
inline namespace v0 {

/// How the rows of a pack are cut over the ranks of its CP group.
///
/// | kind       | a rank holds                              | use it for                      |
/// | ---------- | ----------------------------------------- | ------------------------------- |
/// | zigzag     | chunks r and 2*cp-1-r of each sequence    | causal attention: equal work    |
/// | contiguous | the r-th of cp runs of each sequence      | recurrences (GDN), convolutions |
/// | row_split  | the r-th of cp runs of the whole pack     | all-gather attention, DSv4      |
///
/// Runs of one sequence, or of the pack, are equally long.
///
/// With one rank the three are the same.
enum class layout_kind : std::int32_t { zigzag, contiguous, row_split };

[[nodiscard]] constexpr std::string_view to_string(layout_kind kind) noexcept {
  switch (kind) {
    case layout_kind::zigzag: return "zigzag";
    case layout_kind::contiguous: return "contiguous";
    case layout_kind::row_split: return "row_split";
  }
  return "unknown";
}

/// Each padded length of a pack on `cp` ranks must be a multiple of this.
[[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int64_t length_multiple(layout_kind kind,
                                                                       std::int32_t cp) noexcept {
  if (cp <= 1 || kind == layout_kind::row_split) return 1;
  return kind == layout_kind::zigzag ? 2 * std::int64_t{cp} : std::int64_t{cp};
}

}  // namespace v0
}  // namespace dyncp
