// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/response.hpp>
#include <dyncp/thd/slot.hpp>
#include <dyncp/trainer/loss.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The softmax of one row over a slice of the vocabulary, in the form that slices are merged in:
/// what a tensor rank contributes. Merging is exact up to rounding and may be done in any order;
/// ranks that need equal bits merge in the order of the tensor ranks.
struct softmax_part {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;       ///< of exp(x - max)
  double weighted = 0;  ///< of exp(x - max) * (x - max)
  double label = 0;     ///< the logit of the label, from the slice that holds it, else 0

  [[nodiscard]] double log_sum_exp() const noexcept { return max + std::log(sum); }
  /// log p(label). Requires that the slices merged hold the label.
  [[nodiscard]] double log_prob() const noexcept { return label - log_sum_exp(); }
  /// -sum p log p.
  [[nodiscard]] double entropy() const noexcept { return std::log(sum) - weighted / sum; }
};

[[nodiscard]] inline softmax_part merge(const softmax_part& a, const softmax_part& b) noexcept {
  if (b.sum == 0) return {a.max, a.sum, a.weighted, a.label + b.label};
  if (a.sum == 0) return {b.max, b.sum, b.weighted, a.label + b.label};
  const double max = std::max(a.max, b.max);
  const double ea = std::exp(a.max - max);
  const double eb = std::exp(b.max - max);
  return {max, a.sum * ea + b.sum * eb,
          ea * (a.weighted + a.sum * (a.max - max)) + eb * (b.weighted + b.sum * (b.max - max)),
          a.label + b.label};
}

/// The part of `logits`, entries first, first + 1, ... of the vocabulary, in double.
template <class T>
[[nodiscard]] softmax_part softmax_of(std::span<const T> logits, std::int64_t first,
                                      std::int64_t label) noexcept {
  softmax_part part;
  for (const T& x : logits) part.max = std::max(part.max, static_cast<double>(x));
  for (const T& x : logits) {
    const double d = static_cast<double>(x) - part.max;
    const double e = std::exp(d);
    part.sum += e;
    if (e > 0) part.weighted += e * d;
  }
  const std::int64_t at = label - first;
  if (at >= 0 && at < static_cast<std::int64_t>(logits.size())) {
    part.label = static_cast<double>(logits[static_cast<std::size_t>(at)]);
  }
  return part;
}

/// The part of each row of this rank's share, (local_tokens), from logits (local_tokens, slice) in
/// host memory: the slice of the vocabulary that begins at `first`. Rows without a label are not
/// read and have empty parts, so NaN in padding does no harm. `labels` as `cut_labels` gives them.
///
/// Nothing is exchanged over CP: a label's logit lies on the row that predicts it. Over tensor
/// ranks the parts are merged. Errors: invalid_argument for arrays of other sizes.
template <class T>
[[nodiscard]] result<std::vector<softmax_part>> softmax_rows(const packed_seq_params& params,
                                                             std::span<const T> logits,
                                                             std::span<const std::int32_t> labels,
                                                             std::int64_t slice,
                                                             std::int64_t first = 0,
                                                             std::int32_t ignore = -1) {
  const auto rows = static_cast<std::size_t>(params.local_tokens());
  const auto width = static_cast<std::size_t>(slice);
  if (labels.size() != rows || slice < 0 || logits.size() != rows * width) {
    return error{errc::invalid_argument, std::to_string(logits.size()) + " logits and " +
                 std::to_string(labels.size()) + " labels for " + std::to_string(rows) +
                 " rows of " + std::to_string(slice), static_cast<std::int64_t>(labels.size()),
                 static_cast<std::int64_t>(rows), "give the rows of this micro-batch's share"};
  }
  std::vector<softmax_part> parts(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    if (labels[row] == ignore) continue;
    parts[row] = softmax_of(logits.subspan(row * width, width), first, labels[row]);
  }
  return parts;
}

/// Log-probabilities of the labels, (local_tokens), 0 where there is none. Requires parts that were
/// merged over the vocabulary.
[[nodiscard]] inline std::vector<double> label_log_probs(std::span<const softmax_part> parts) {
  std::vector<double> out;
  out.reserve(parts.size());
  for (const softmax_part& p : parts) out.push_back(p.sum > 0 ? p.log_prob() : 0.0);
  return out;
}

/// Calls visit(row, t) for the rows of this rank that score token t of the last `response` tokens
/// of sequence `s` of the pack, t counted from 0. Many ranks have none; they visit nothing and go
/// on to the same collectives. Requires 0 <= response < length(s), or 0.
template <class Visit>
void for_each_response_row(const packed_seq_params& params, std::int32_t s, std::int32_t response,
                           Visit visit) {
  const pack_view pack = params.view();
  const std::int32_t first = pack.length(s) - 1 - response;
  const response_rows rows = response_of(pack, s, params.cp_rank(), response);
  for (const row_run& run : {rows.front, rows.back}) {
    for (std::int32_t i = 0; i < run.rows; ++i) visit(run.row + i, run.position + i - first);
  }
}

/// What this rank adds to the sum over the response of each sequence, (sequences): for losses that
/// normalise by sequence. The sums over the CP group are those of the sequences; counts are of
/// unique tokens. `values` (local_tokens), `responses` (sequences).
/// Requires 0 <= responses[s] < length(s), or 0.
[[nodiscard]] inline std::vector<loss_part> response_sums(const packed_seq_params& params,
                                                          std::span<const std::int32_t> responses,
                                                          std::span<const double> values) {
  DYNCP_ASSERT(responses.size() == params.sequence_ids.size());
  DYNCP_ASSERT(values.size() == static_cast<std::size_t>(params.local_tokens()));
  std::vector<loss_part> sums(responses.size());
  for (std::size_t s = 0; s < responses.size(); ++s) {
    for_each_response_row(params, static_cast<std::int32_t>(s), responses[s],
                          [&](std::int32_t row, std::int32_t) {
                            sums[s].sum += values[static_cast<std::size_t>(row)];
                            ++sums[s].tokens;
                          });
  }
  return sums;
}

}  // namespace v0
}  // namespace dyncp
