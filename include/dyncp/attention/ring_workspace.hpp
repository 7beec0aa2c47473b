// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/runtime/device.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// Elements of the arrays of a layer with so many local rows.
struct ring_sizes {
  std::int64_t k = 0;
  std::int64_t v = 0;
  std::int64_t dq = 0;
  std::int64_t out = 0;
  std::int64_t lse = 0;

  constexpr ring_sizes(const attention_shape& shape, std::int64_t rows,
                       std::int64_t kv_rows) noexcept
      : k(kv_rows * shape.kv_heads * shape.qk_dim),
        v(kv_rows * shape.kv_heads * shape.v_dim),
        dq(rows * shape.q_heads * shape.qk_dim),
        out(rows * shape.q_heads * shape.v_dim),
        lse(rows * shape.q_heads) {}
  [[nodiscard]] constexpr std::int64_t kv() const noexcept { return k + v; }
};

/// Where the parts of the workspace lie, in bytes from its begin. Forward and backward passes use
/// the same memory, one after the other.
///
/// A slot holds what one hop brings: [k | v], and in the backward pass [dk | dv] of the same keys'
/// owner one step before, behind it at an aligned offset, so that both travel as one message.
template <class T>
struct ring_workspace {
  std::int64_t slot[2] = {0, 0};
  std::int64_t step_out = 0;  // forward: out and lse of one step
  std::int64_t step_lse = 0;
  std::int64_t out = 0;       // running output, unless T is its own accumulator
  std::int64_t step_dkv = 0;  // backward: dk and dv of one step
  std::int64_t dq = 0;        // running dq
  std::int64_t delta = 0;
  std::int64_t bytes = 0;

  constexpr ring_workspace(const attention_shape& shape, std::int64_t rows) noexcept {
    constexpr std::int64_t sum = sizeof(accumulator_t<T>);
    constexpr bool own = std::is_same_v<T, accumulator_t<T>>;
    const ring_sizes n(shape, rows, rows);
    std::int64_t end = 0;
    const auto take = [&end](std::int64_t size) {
      const std::int64_t begin = end;
      end = round_up(end + size, device_alignment_bytes);
      return begin;
    };
    const std::int64_t slot_bytes = kv_bytes(n) + sum * n.kv();
    for (std::int64_t& begin : slot) begin = take(slot_bytes);
    const std::int64_t shared = end;
    step_out = take(sum * n.out);
    step_lse = take(sum * n.lse);
    out = take(own ? 0 : sum * n.out);
    bytes = end;
    end = shared;
    step_dkv = take(sum * n.kv());
    dq = take(sum * n.dq);
    delta = take(sum * n.lse);
    bytes = std::max(bytes, end);
  }

  /// Bytes of [k | v] up to where [dk | dv] begins.
  [[nodiscard]] static constexpr std::int64_t kv_bytes(const ring_sizes& n) noexcept {
    return round_up(static_cast<std::int64_t>(sizeof(T)) * n.kv(), device_alignment_bytes);
  }
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
