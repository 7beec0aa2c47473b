// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/accumulator.hpp>
#include <dyncp/thd/thd_view.hpp>

namespace dyncp {
inline namespace v0 {

/// Inputs of one forward step: the rank's queries, the keys and values of the owner of the step.
template <class T>
struct attention_operands {
  thd_view<const T> q;  // (q rows, q_heads, qk_dim)
  thd_view<const T> k;  // (kv rows, kv_heads, qk_dim)
  thd_view<const T> v;  // (kv rows, kv_heads, v_dim)
};

/// Attention over some of the keys: normalised output and natural log-sum-exp of the scores.
///
/// A row without keys has output 0 and log-sum-exp -inf. Two partials over different keys merge
/// into the partial over both.
template <class T>
struct attention_partial {
  thd_view<accumulator_t<T>> out;  // (q rows, q_heads, v_dim)
  thd_view<accumulator_t<T>> lse;  // (q rows, q_heads)
};

/// Inputs and accumulators of one backward step. lse and delta are those of the whole attention,
/// not of the step; gradients are added to dq, dk and dv.
template <class T>
struct attention_gradients {
  thd_view<const T> q;                     // (q rows, q_heads, qk_dim)
  thd_view<const T> k;                     // (kv rows, kv_heads, qk_dim)
  thd_view<const T> v;                     // (kv rows, kv_heads, v_dim)
  thd_view<const T> dout;                  // (q rows, q_heads, v_dim)
  thd_view<const accumulator_t<T>> lse;    // (q rows, q_heads)
  thd_view<const accumulator_t<T>> delta;  // (q rows, q_heads)
  thd_view<accumulator_t<T>> dq;           // (q rows, q_heads, qk_dim)
  thd_view<accumulator_t<T>> dk;           // (kv rows, kv_heads, qk_dim)
  thd_view<accumulator_t<T>> dv;           // (kv rows, kv_heads, v_dim)
};

}  // namespace v0
}  // namespace dyncp
