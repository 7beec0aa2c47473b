// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/thd/cu_seqlens.hpp>
#include <dyncp/thd/layout_kind.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace dyncp {
inline namespace v0 {

/// The fixed shape of a pack, so that kernels and graphs are made once and serve many packs.
struct bucket_shape {
  std::int32_t sequences = 0;  ///< cu_seqlens get sequences + 1 entries
  std::int32_t tokens = 0;     ///< rows of the pack
};

/// What happens to the rows between a pack's last sequence and the end of its bucket.
///
/// | policy         | cu_padded ends at | for                                                 |
/// | -------------- | ----------------- | --------------------------------------------------- |
/// | rows           | the last sequence | kernels that leave rows behind the last one alone   |
/// | dummy_sequence | the bucket        | kernels that need every row to belong to a sequence |
/// | extend_last    | the bucket        | the same, when no place for a sequence is left      |
enum class tail_policy : std::int32_t {
  rows,            ///< rows of no sequence
  dummy_sequence,  ///< one more sequence, of no tokens; it takes a place of the bucket
  extend_last,     ///< padding of the last sequence
};

/// Fits prefix sums to a bucket: places that are left over repeat the last entry.
///
/// Repeats are sequences of length 0 that own no row; every function of thd/ accepts them. The
/// dummy has no real token, so that it counts nowhere but in the places of the bucket.
/// Requires `cu` with real.size() == padded.size() >= 1, cp >= 1.
/// Errors: invalid_argument when the pack has more sequences (dummy included) or rows than the
/// bucket, when bucket or tail is not a multiple of what the layout needs, or when extend_last
/// meets a pack without sequences. Complexity: linear in the places.
[[nodiscard]] inline result<cu_seqlens> to_bucket(const cu_seqlens& cu, bucket_shape shape,
                                                  tail_policy tail, layout_kind layout,
                                                  std::int32_t cp) {
  DYNCP_ASSERT(!cu.real.empty() && cu.real.size() == cu.padded.size());
  const std::int64_t rows = cu.padded.back();
  const std::int64_t left = std::int64_t{shape.tokens} - rows;
  const bool dummy = tail == tail_policy::dummy_sequence && left > 0;
  const std::int64_t sequences = static_cast<std::int64_t>(cu.real.size()) - 1 + (dummy ? 1 : 0);
  if (sequences > shape.sequences) {
    return error{errc::invalid_argument,
                 "the pack has " + std::to_string(sequences) +
                     (dummy ? " sequences with the dummy for its tail, the bucket "
                            : " sequences, the bucket ") +
                     std::to_string(shape.sequences),
                 sequences, shape.sequences, "choose a bucket with more places"};
  }
  if (left < 0) {
    return error{errc::invalid_argument,
                 "the pack has " + std::to_string(rows) + " padded tokens, the bucket " +
                     std::to_string(shape.tokens),
                 rows, shape.tokens, "choose a bucket with more tokens"};
  }
  if (shape.tokens % cp != 0) {
    return error{errc::invalid_argument,
                 "a bucket of " + std::to_string(shape.tokens) + " tokens cannot be cut over " +
                     std::to_string(cp) + " ranks",
                 shape.tokens, cp, "use a multiple of the ranks"};
  }
  const std::int64_t multiple = tail == tail_policy::rows ? 1 : length_multiple(layout, cp);
  if (left % multiple != 0) {
    return error{errc::invalid_argument,
                 "the tail of " + std::to_string(left) + " tokens is not a multiple of " +
                     std::to_string(multiple),
                 left, multiple,
                 "use a bucket whose tokens are a multiple of " + std::to_string(multiple)};
  }
  cu_seqlens out = cu;
  if (dummy) {
    out.real.push_back(cu.real.back());
    out.padded.push_back(shape.tokens);
  } else if (tail == tail_policy::extend_last && left > 0) {
    if (cu.real.size() == 1) {
      return make_error(errc::invalid_argument, "an empty pack has no last sequence to extend",
                        "use tail_policy::dummy_sequence");
    }
    out.padded.back() = shape.tokens;
  }
  const std::size_t entries = static_cast<std::size_t>(shape.sequences) + 1;
  const std::int32_t last_real = out.real.back();
  const std::int32_t last_padded = out.padded.back();
  out.real.resize(entries, last_real);
  out.padded.resize(entries, last_padded);
  return out;
}

}  // namespace v0
}  // namespace dyncp
