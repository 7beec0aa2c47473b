// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/device.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <concepts>
#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// The kernels of a ring for elements `T` on device `D`. Four shapes of forward and backward calls
/// come up: causal on the diagonal; all queries against the first halves of the keys; second
/// halves of the queries against all keys; all against all.
///
/// | call                                       | writes, on the rows of the segments of `step`  |
/// | ------------------------------------------ | ---------------------------------------------- |
/// | forward(d, s, shape, step, in, out)        | out: the partial over the keys of the segments |
/// | merge(d, s, shape, step, part, total)      | total: the partial over the keys of both       |
/// | delta(d, s, shape, step, out, dout, delta) | delta_i = dout_i . out_i from the final output |
/// | backward(d, s, shape, step, io)            | adds to dq, dk, dv, in a fixed order           |
///
/// | call                                       | writes, on all rows                            |
/// | ------------------------------------------ | ---------------------------------------------- |
/// | clear(d, s, shape, rows, out)              | out: the partial over no keys (0 and -inf)     |
/// | add(d, s, to, from, n)                     | to += from, n sums                             |
/// | convert(d, s, rows, width, from, to)       | to = from, rounded to the nearest T            |
///
/// `attention_partial` and `attention_gradients` say what a partial and a backward step are.
/// `supports(shape)`: success, or `unsupported` with what it lacks. Each call queues its work on
/// stream `s` of device `d` and returns; none allocates once it has seen the shape, none waits.
/// Determinism: equal inputs give equal bits. Thread safety: belongs to the thread of its rank.
template <class P, class D, class T>
concept attention_provider = device<D> &&
    requires(P& p, const P& cp, D& d, typename D::stream s, const attention_shape& shape,
             const attention_step& step, const attention_operands<T>& in,
             const attention_partial<T>& partial, const attention_gradients<T>& gradients,
             thd_view<const T> elements, thd_view<T> rounded, thd_view<accumulator_t<T>> view,
             thd_view<const accumulator_t<T>> exact, accumulator_t<T>* sums,
             const accumulator_t<T>* from, std::int64_t n) {
  { p.forward(d, s, shape, step, in, partial) } -> std::same_as<result<void>>;
  { p.merge(d, s, shape, step, partial, partial) } -> std::same_as<result<void>>;
  { p.delta(d, s, shape, step, elements, elements, view) } -> std::same_as<result<void>>;
  { p.backward(d, s, shape, step, gradients) } -> std::same_as<result<void>>;
  { p.clear(d, s, shape, n, partial) } -> std::same_as<result<void>>;
  { p.add(d, s, sums, from, n) } -> std::same_as<result<void>>;
  { p.convert(d, s, n, n, exact, rounded) } -> std::same_as<result<void>>;
  { cp.supports(shape) } -> std::same_as<result<void>>;
};

}  // namespace v0
}  // namespace dyncp
