// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>

#include <cmath>
#include <cstdint>
#include <string>

namespace dyncp {
inline namespace v0 {

/// Heads and head sizes of an attention layer on one tensor-parallel rank.
///
/// kv_heads == q_heads is multi-head, 1 multi-query, anything between grouped-query attention:
/// query head h reads key/value head h / group(). Head sizes of q/k and v may differ (MLA).
struct attention_shape {
  std::int32_t q_heads = 1;
  std::int32_t kv_heads = 1;
  std::int32_t qk_dim = 1;  ///< head size of q and k
  std::int32_t v_dim = 1;   ///< head size of v and of the output
  double scale = 1.0;       ///< of the scores: softmax(scale * q k^T)

  /// Query heads for each key/value head.
  [[nodiscard]] DYNCP_HOST_DEVICE constexpr std::int32_t group() const noexcept {
    return q_heads / kv_heads;
  }
  friend constexpr bool operator==(const attention_shape&, const attention_shape&) = default;
};

/// The usual scale, 1 / sqrt(qk_dim).
[[nodiscard]] inline double default_scale(std::int32_t qk_dim) noexcept {
  return 1.0 / std::sqrt(static_cast<double>(qk_dim));
}

/// Errors: invalid_argument for sizes below 1, heads that do not divide, a scale that is not
/// finite.
[[nodiscard]] inline result<void> validate(const attention_shape& shape) {
  if (shape.q_heads < 1 || shape.kv_heads < 1 || shape.qk_dim < 1 || shape.v_dim < 1) {
    return make_error(errc::invalid_argument,
                      "attention has " + std::to_string(shape.q_heads) + " query heads, " +
                          std::to_string(shape.kv_heads) + " key/value heads, head sizes " +
                          std::to_string(shape.qk_dim) + " and " + std::to_string(shape.v_dim),
                      "use 1 or more of each");
  }
  if (shape.q_heads % shape.kv_heads != 0) {
    return error{errc::invalid_argument,
                 std::to_string(shape.q_heads) + " query heads cannot share " +
                     std::to_string(shape.kv_heads) + " key/value heads equally",
                 shape.q_heads, shape.kv_heads,
                 "make the query heads a multiple of the key/value heads"};
  }
  if (!std::isfinite(shape.scale)) {
    return make_error(errc::invalid_argument, "the scale of the scores is not finite",
                      "use default_scale(qk_dim)");
  }
  return {};
}

}  // namespace v0
}  // namespace dyncp
