// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/slot.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dyncp {
inline namespace v0 {

/// A part of the token-mean loss: what one rank adds to it. Parts are added up, never averaged.
///
/// The mean over a global batch is the sum over all unique tokens by their number, whatever ranks,
/// CP groups and micro-batches they were spread over:
///   every rank:          part = sum of its micro-batches' local_loss
///   once, over DPxCP:    total = all-reduce (sum) of part
///   loss:                mean(total); gradient of a token: gradient_scale(total)
/// Nothing is multiplied or divided by cp, and no count is clamped but the last: a rank or a sample
/// without a loss token is (0, 0). Each token lies on one rank, so no count is taken twice.
struct loss_part {
  double sum = 0;           ///< of the losses of `tokens`
  std::int64_t tokens = 0;  ///< that count in the loss

  constexpr loss_part& operator+=(const loss_part& other) noexcept {
    sum += other.sum;
    tokens += other.tokens;
    return *this;
  }
  friend constexpr loss_part operator+(loss_part a, const loss_part& b) noexcept { return a += b; }
  friend constexpr bool operator==(const loss_part&, const loss_part&) = default;
};

/// The loss of one rank's share of a pack.
///
/// A row counts if it holds a token with a label (not the last `depth` of its sequence) and its
/// mask is not 0. Other rows are not read: NaN in padding does no harm. `losses` and `mask` have
/// local_rows() entries in the order of the share; an empty mask counts every label.
/// Requires rank < cp. Complexity: linear. Determinism: summed in double, in the order of rows.
template <class T>
[[nodiscard]] loss_part local_loss(const pack_view& pack, std::int32_t rank,
                                   std::span<const T> losses,
                                   std::span<const std::uint8_t> mask = {},
                                   std::int32_t depth = 1) {
  DYNCP_ASSERT(losses.size() == static_cast<std::size_t>(pack.local_rows()));
  DYNCP_ASSERT(mask.empty() || mask.size() == losses.size());
  loss_part part;
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const slot rows = slot_of(pack, s, rank);
    const std::int32_t labels = pack.length(s) - depth;
    for (const row_run& run : {rows.front, rows.back}) {
      for (std::int32_t i = 0; i < run.valid && run.position + i < labels; ++i) {
        const auto row = static_cast<std::size_t>(run.row + i);
        if (!mask.empty() && mask[row] == 0) continue;
        part.sum += static_cast<double>(losses[row]);
        ++part.tokens;
      }
    }
  }
  return part;
}

/// The loss of a batch from the part of all ranks together; 0 when no token counts.
[[nodiscard]] constexpr double mean(const loss_part& total) noexcept {
  return total.tokens > 0 ? total.sum / static_cast<double>(total.tokens) : 0.0;
}

/// d mean / d loss of each token that counts, for gradients that are summed over DPxCP; 0 when no
/// token counts. A trainer that averages gradients over R ranks multiplies by R.
[[nodiscard]] constexpr double gradient_scale(const loss_part& total) noexcept {
  return total.tokens > 0 ? 1.0 / static_cast<double>(total.tokens) : 0.0;
}

}  // namespace v0
}  // namespace dyncp
