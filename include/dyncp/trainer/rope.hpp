// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/positions.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Which elements of a head form the pairs that are rotated: i and i + dim/2, or 2i and 2i + 1.
enum class rope_pairs : std::int32_t { halves, interleaved };

/// Rotary position embedding of the first `dim` elements of each head. Source: Su et al. 2021.
struct rope_spec {
  std::int32_t dim = 0;           ///< even, at most the head's
  double base = 10000;
  double positions_per_step = 1;  ///< positions are divided by it (linear interpolation)
  rope_pairs pairs = rope_pairs::halves;
};

/// Cosines and sines of the angles of each position, (positions, dim / 2), in double.
///
/// Made once for the longest padded sequence that may come. Immutable; const members may be called
/// concurrently.
class rope_table {
 public:
  /// Errors: invalid_argument for an odd or negative dim, a base or step that is not positive, or a
  /// negative number of positions.
  [[nodiscard]] static result<rope_table> make(const rope_spec& spec, std::int64_t positions) {
    if (spec.dim < 0 || spec.dim % 2 != 0 || !(spec.base > 0) || !(spec.positions_per_step > 0) ||
        positions < 0) {
      return error{errc::invalid_argument, "a rotary embedding of " + std::to_string(spec.dim) +
                   " elements over " + std::to_string(positions) + " positions", spec.dim, 0,
                   "use an even number of elements, a positive base and step"};
    }
    rope_table out;
    out.spec_ = spec;
    out.positions_ = positions;
    const std::int32_t half = spec.dim / 2;
    out.cos_.reserve(static_cast<std::size_t>(positions * half));
    out.sin_.reserve(static_cast<std::size_t>(positions * half));
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int32_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) / spec.positions_per_step *
                             std::pow(spec.base, -2.0 * i / spec.dim);
        out.cos_.push_back(std::cos(angle));
        out.sin_.push_back(std::sin(angle));
      }
    }
    return out;
  }

  [[nodiscard]] const rope_spec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::int64_t positions() const noexcept { return positions_; }
  /// Requires position < positions(), pair < dim / 2.
  [[nodiscard]] double cosine(std::int64_t position, std::int32_t pair) const noexcept {
    return cos_[static_cast<std::size_t>(position * (spec_.dim / 2) + pair)];
  }
  [[nodiscard]] double sine(std::int64_t position, std::int32_t pair) const noexcept {
    return sin_[static_cast<std::size_t>(position * (spec_.dim / 2) + pair)];
  }

 private:
  rope_table() = default;
  rope_spec spec_;
  std::int64_t positions_ = 0;
  std::vector<double> cos_;
  std::vector<double> sin_;
};

/// `forward` turns queries or keys, `backward` their gradients: by the same angles, the other way.
enum class rope_direction : std::int32_t { forward, backward };

/// Rotates this rank's rows in place: x (local_tokens, heads, >= dim) in host memory. The angle of
/// a row is that of its token's place in its own sequence, whatever pack, group and layout it is
/// in: positions restart with each sequence and jump between the chunks of a zigzag share
/// (Megatron-LM#5243). Padding rows are rotated like the tokens that they follow.
///
/// Errors: invalid_argument when a sequence is longer than the table. Linear in the elements.
template <class T>
[[nodiscard]] result<void> apply_rope(const rope_table& table, const packed_seq_params& params,
                                      thd_view<T> x, std::int32_t heads, std::int32_t head_dim,
                                      rope_direction direction = rope_direction::forward) {
  const rope_spec& spec = table.spec();
  if (spec.dim > head_dim || params.max_padded_length() > table.positions()) {
    return error{errc::invalid_argument, "a rotary table of " + std::to_string(spec.dim) + " x " +
                 std::to_string(table.positions()) + " for heads of " + std::to_string(head_dim) +
                 " and sequences of " + std::to_string(params.max_padded_length()),
                 params.max_padded_length(), table.positions(),
                 "make the table for the longest padded sequence"};
  }
  const std::vector<std::int32_t> places = positions(params.view(), params.cp_rank());
  const std::int32_t half = spec.dim / 2;
  const bool halves = spec.pairs == rope_pairs::halves;
  const double way = direction == rope_direction::forward ? 1.0 : -1.0;
  for (std::size_t row = 0; row < places.size(); ++row) {
    for (std::int32_t h = 0; h < heads; ++h) {
      T* const head = x.at(static_cast<std::int64_t>(row), h, head_dim);
      for (std::int32_t i = 0; i < half; ++i) {
        T& first = head[halves ? i : 2 * i];
        T& second = head[halves ? i + half : 2 * i + 1];
        const double a = static_cast<double>(first);
        const double b = static_cast<double>(second);
        const double c = table.cosine(places[row], i);
        const double s = way * table.sine(places[row], i);
        first = static_cast<T>(a * c - b * s);
        second = static_cast<T>(a * s + b * c);
      }
    }
  }
  return {};
}

}  // namespace v0
}  // namespace dyncp
