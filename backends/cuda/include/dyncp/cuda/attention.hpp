// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/attention/attention_provider.hpp>
#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/float16.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cuda/abi.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/profiler_range.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// The kernels' name for T: bfloat16, float16 or float.
template <class T>
inline constexpr element element_of = [] {
  static_assert(std::is_same_v<T, bfloat16> || std::is_same_v<T, float16> ||
                std::is_same_v<T, float>);
  if constexpr (std::is_same_v<T, bfloat16>) return element::bfloat16;
  if constexpr (std::is_same_v<T, float16>) return element::float16;
  return element::float32;
}();

struct attention_options {
  /// Results repeat bit for bit: additions to dq come in a fixed order. Otherwise they are atomic
  /// and come in any order, which is faster, most of all for short sequences.
  bool deterministic = true;
};

/// The attention kernels of the compiled library. Models `attention_provider`.
///
/// | T                  | kernel                               | head sizes                   |
/// | ------------------ | ------------------------------------ | ---------------------------- |
/// | bfloat16, float16  | mma.sync and cp.async, from sm_80 on | those of -Dhead_dims, qk = v |
/// | float              | plain, for checks                    | all                          |
///
/// Sums are kept in float. Of bfloat16 and float16 the rows of q, k, v, dout, and of the float
/// arrays out, dq, dk and dv, begin at multiples of 16 bytes; the scale is above 0.
///
/// A backward pass in fixed order uses a few bytes for each head and 64 query rows. They come from
/// the device at the first call that needs more than `reserve` saw, and are kept until this object
/// goes; one call at a time uses them, so calls on one object use one stream.
///
/// Determinism: see attention_options. Complexity: pairs * (qk_dim + v_dim). Thread safety: belongs
/// to the thread of its rank. Errors: unsupported for other head sizes, invalid_argument for rows
/// that are not aligned, those of the device.
///
/// Example:
///   auto kernels = dyncp::cuda::attention<dyncp::bfloat16>(device);
///   auto ring = dyncp::ring_attention<dyncp::bfloat16, decltype(backend), decltype(kernels)>::
///       create(pool, std::move(kernels), shape, limits);
template <class T>
class attention {
 public:
  using sum = accumulator_t<T>;

  explicit attention(const device& d, attention_options options = {})
      : options_(options), shared_bytes_(d.shared_bytes()) {}

  [[nodiscard]] result<void> supports(const attention_shape& shape) const {
    DYNCP_TRY(validate(shape));
    return abi::to_result(abi::supports(shape, element_of<T>, shared_bytes_));
  }

  /// Makes the memory that backward passes within these limits need, so that none allocates.
  [[nodiscard]] result<void> reserve(device& d, const attention_shape& shape, std::int32_t q_rows,
                                     std::int32_t segments) {
    abi::step_call step;
    step.type = element_of<T>;
    step.shape = shape;
    step.q_rows = q_rows;
    step.count = segments;
    return provide(d, step);
  }

  [[nodiscard]] result<void> forward(device& d, stream s, const attention_shape& shape,
                                     const attention_step& step, const attention_operands<T>& in,
                                     const attention_partial<T>& out) {
    const profiler_range range("dyncp attention forward");
    abi::forward_call c;
    c.step = step_of(shape, step);
    c.q = rows(in.q);
    c.k = rows(in.k);
    c.v = rows(in.v);
    c.out = rows(out.out);
    c.lse = rows(out.lse);
    return abi::to_result(abi::attention_forward(d.handle(), c, s));
  }
  [[nodiscard]] result<void> merge(device& d, stream s, const attention_shape& shape,
                                   const attention_step& step, const attention_partial<T>& part,
                                   const attention_partial<T>& total) {
    abi::merge_call c;
    c.step = step_of(shape, step);
    c.part_out = rows(thd_view<const sum>(part.out));
    c.part_lse = rows(thd_view<const sum>(part.lse));
    c.out = rows(total.out);
    c.lse = rows(total.lse);
    return abi::to_result(abi::merge(d.handle(), c, s));
  }
  [[nodiscard]] result<void> delta(device& d, stream s, const attention_shape& shape,
                                   const attention_step& step, thd_view<const T> out,
                                   thd_view<const T> dout, thd_view<sum> to) {
    abi::delta_call c;
    c.step = step_of(shape, step);
    c.out = rows(out);
    c.dout = rows(dout);
    c.delta = rows(to);
    return abi::to_result(abi::delta(d.handle(), c, s));
  }
  [[nodiscard]] result<void> backward(device& d, stream s, const attention_shape& shape,
                                      const attention_step& step,
                                      const attention_gradients<T>& io) {
    const profiler_range range("dyncp attention backward");
    abi::backward_call c;
    c.step = step_of(shape, step);
    if (options_.deterministic) {
      DYNCP_TRY(provide(d, c.step));
      c.workspace = workspaces_.empty() ? nullptr : workspaces_.back().data();
    }
    c.q = rows(io.q);
    c.k = rows(io.k);
    c.v = rows(io.v);
    c.dout = rows(io.dout);
    c.lse = rows(io.lse);
    c.delta = rows(io.delta);
    c.dq = rows(io.dq);
    c.dk = rows(io.dk);
    c.dv = rows(io.dv);
    return abi::to_result(abi::attention_backward(d.handle(), c, s));
  }
  [[nodiscard]] result<void> clear(device& d, stream s, const attention_shape& shape,
                                   std::int64_t row_count, const attention_partial<T>& out) {
    abi::clear_call c;
    c.out = rows(out.out);
    c.lse = rows(out.lse);
    c.rows = static_cast<std::int32_t>(row_count);
    c.heads = shape.q_heads;
    c.dim = shape.v_dim;
    return abi::to_result(abi::clear(d.handle(), c, s));
  }
  [[nodiscard]] result<void> add(device& d, stream s, sum* to, const sum* from, std::int64_t n) {
    return abi::to_result(abi::add(d.handle(), to, from, n, s));
  }
  [[nodiscard]] result<void> convert(device& d, stream s, std::int64_t row_count,
                                     std::int64_t width, thd_view<const sum> from,
                                     thd_view<T> to) {
    abi::convert_call c;
    c.from_type = element::float32;
    c.to_type = element_of<T>;
    c.from = rows(from);
    c.to = rows(to);
    c.rows = row_count;
    c.width = width;
    return abi::to_result(abi::convert(d.handle(), c, s));
  }
  /// The other way, exact: to = from, on rows [0, row_count) of `width` elements.
  [[nodiscard]] result<void> widen(device& d, stream s, std::int64_t row_count, std::int64_t width,
                                   thd_view<const T> from, thd_view<sum> to) {
    abi::convert_call c;
    c.from_type = element_of<T>;
    c.to_type = element::float32;
    c.from = rows(from);
    c.to = rows(to);
    c.rows = row_count;
    c.width = width;
    return abi::to_result(abi::convert(d.handle(), c, s));
  }

 private:
  template <class U>
  [[nodiscard]] static abi::rows_in rows(thd_view<const U> v) noexcept {
    return {v.data, v.row_stride};
  }
  template <class U>
    requires(!std::is_const_v<U>)
  [[nodiscard]] static abi::rows_out rows(thd_view<U> v) noexcept {
    return {v.data, v.row_stride};
  }
  [[nodiscard]] static abi::step_call step_of(const attention_shape& shape,
                                              const attention_step& step) noexcept {
    return {element_of<T>, shape, step.mask, step.segments.data(),
            static_cast<std::int32_t>(step.segments.size()), step.q_rows, step.kv_rows};
  }

  /// Memory that is outgrown may be in use on the stream still: it is kept, and grows by half.
  [[nodiscard]] result<void> provide(device& d, const abi::step_call& step) {
    const std::int64_t needed = abi::backward_workspace_bytes(step);
    const std::int64_t have = workspaces_.empty() ? 0 : workspaces_.back().bytes();
    if (needed <= have) return {};
    auto memory = d.allocate(std::max(needed, have + have / 2));
    if (!memory) return std::move(memory).error();
    workspaces_.push_back(std::move(*memory));
    return {};
  }

  attention_options options_;
  std::int64_t shared_bytes_;
  std::vector<device::buffer> workspaces_;  // the last one serves
};

static_assert(attention_provider<attention<bfloat16>, device, bfloat16>);
static_assert(attention_provider<attention<float16>, device, float16>);
static_assert(attention_provider<attention<float>, device, float>);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
