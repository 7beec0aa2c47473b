// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cost/load.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/parallel_spec.hpp>

#include <algorithm>
#include <cstdint>

namespace dyncp_test {

/// Seconds of the forward and the backward of a pack, each term as it is published, in long double.
/// Written without looking at the library's model.
struct reference_cost {
  long double linear = 0;
  long double attention = 0;
  long double exposed = 0;
  long double exposed_backward = 0;
  long double fixed = 0;
  long double forward = 0;
  long double backward = 0;
};

inline reference_cost reference_of(const dyncp::model_spec& m, const dyncp::cluster_spec& k,
                                   const dyncp::parallel_spec& par, std::int64_t pack_tokens,
                                   std::int64_t pack_squares, std::int32_t c, bool crosses_nodes,
                                   bool last_stage) {
  using real = long double;
  const real h = static_cast<real>(m.hidden);
  const real q = static_cast<real>(m.query_hidden);
  const real kv = static_cast<real>(m.kv_hidden);
  const real matrices = m.gated_mlp ? 3 : 2;
  const bool moe = m.experts > 0;
  // Projections of queries, keys, values and output; the MLP of each expert used; the router.
  const real weights = h * q + 2 * h * kv + q * h +
                       matrices * h * static_cast<real>(m.ffn) * (moe ? m.experts_per_token : 1) +
                       (moe ? h * m.experts : 0);
  const real layers = static_cast<real>(m.layers) / par.pp / par.vpp;
  const real tokens = static_cast<real>(pack_tokens) / c;
  const real squares = static_cast<real>(pack_squares) / c;

  reference_cost out;
  const real efficiency = tokens / (tokens + k.linear_half_tokens);
  real flops = layers * 2 * weights * tokens;
  if (last_stage) flops += 2 * h * static_cast<real>(m.vocabulary) * tokens;
  out.linear = flops / par.tp / k.linear_flops_per_s / efficiency;
  const real pairs = m.mask == dyncp::attention_mask::causal ? squares / 2 : squares;
  const real attention_efficiency = tokens / (tokens + k.attention_half_tokens);
  out.attention = layers * 4 * q * pairs / par.tp / k.attention_flops_per_s / attention_efficiency;
  const real alpha = crosses_nodes ? k.network_latency_s : k.nvlink_latency_s;
  const real bandwidth = crosses_nodes ? k.network_bytes_per_s : k.nvlink_bytes_per_s;
  const real bytes = 2 * kv * m.dtype_bytes * tokens / par.tp;
  const auto exposed = [&](real bytes_factor, real attention) {
    const real hop = alpha + bytes_factor * bytes / bandwidth;
    const real step_attention = attention / layers / c;
    return layers * (c - 1) * (hop - k.ring_overlap * std::min(hop, step_attention));
  };
  out.exposed = exposed(1, out.attention);
  out.exposed_backward = exposed(k.backward_ring_bytes, k.backward_attention * out.attention);
  out.fixed = k.fixed_s + layers * k.launch_s;
  out.forward = out.linear + out.attention + out.exposed + out.fixed;
  out.backward = k.backward_linear * out.linear + k.backward_attention * out.attention +
                 out.exposed_backward + out.fixed;
  if (m.recompute == dyncp::recomputation::full) out.backward += out.forward;
  if (m.recompute == dyncp::recomputation::selective) out.backward += out.attention + out.exposed;
  return out;
}

}  // namespace dyncp_test
