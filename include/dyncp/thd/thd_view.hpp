// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>

#include <cstdint>
#include <type_traits>

namespace dyncp {
inline namespace v0 {

/// A caller-owned tensor (rows, heads, dim), dense within a row; rows may be apart, as in a fused
/// q/k/v projection. Log-sum-exp and delta are (rows, heads): dim 1.
template <class T>
struct thd_view {
  T* data = nullptr;
  std::int64_t row_stride = 0;  ///< elements to the next row; 0 in an input: one row for all

  [[nodiscard]] DYNCP_HOST_DEVICE constexpr T* at(std::int64_t row, std::int64_t head,
                                                  std::int64_t dim) const noexcept {
    return data + row * row_stride + head * dim;
  }
  /// A view that only reads. A template, or nvcc warns of it in views that only read already.
  template <class Const>
    requires(!std::is_const_v<T> && std::is_same_v<Const, const T>)
  DYNCP_HOST_DEVICE constexpr operator thd_view<Const>() const noexcept {
    return {data, row_stride};
  }
};

}  // namespace v0
}  // namespace dyncp
