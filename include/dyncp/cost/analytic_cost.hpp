// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/rounded.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/parallel_spec.hpp>

#include <algorithm>
#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// The parts of one operation, in seconds, for reports.
struct cost_parts {
  double linear_s = 0;
  double attention_s = 0;
  double exposed_s = 0;  ///< ring time that attention does not hide
  double fixed_s = 0;    ///< fixed time and launches
  [[nodiscard]] constexpr double total_s() const noexcept {
    return linear_s + attention_s + exposed_s + fixed_s;
  }
};

/// Forward and backward of a pack on a stage of `L` layers, from data sheet numbers.
///
///   linear    = L * 2 * W * (T/c + n0) / (tp * F_lin)      W active weights a layer, T tokens;
///                                                          n0: efficiency n/(n+n0), n = T/c
///   attention = L * A * (Q/c) * (1 + n1*c/T) / (tp * F_att)  A FLOPs a squared token, Q squares
///   hop       = alpha + 2*kv_hidden*dtype_bytes*T/(c*tp*bandwidth)         one ring step, a layer
///   exposed   = L * (c-1) * (hop - rho*min(hop, attention/(L*c)))
///   F = linear + attention + exposed + fixed + L*launch
///   B = recomputed + b_lin*linear + b_att*attention + exposed_b + fixed + L*launch
/// with exposed_b from b_ring times the bytes and b_att times the attention; `recomputed` is F for
/// full recomputation, attention + exposed for selective. The stage with the output head adds
/// 2*hidden*vocabulary*T FLOPs. Source: published cost forms of ring attention, collected in
/// docs/cost-model.md with the unit and origin of every constant.
///
/// Immutable after construction; const members are safe to call concurrently. O(1) a call.
class analytic_cost {
 public:
  /// Requires `check(parallel)` to hold and positive rates.
  analytic_cost(const model_spec& model, const cluster_spec& cluster,
                const parallel_spec& parallel)
      : num_stages_(parallel.pp * parallel.vpp), has_head_(model.vocabulary > 0) {
    const double layers = static_cast<double>(model.layers) / num_stages_;
    const double tp = parallel.tp;
    layers_ = layers;
    linear_per_token_s_ = layers * 2.0 * active_parameters_per_layer(model) /
                          (tp * cluster.linear_flops_per_s);
    head_per_token_s_ = 2.0 * static_cast<double>(model.hidden) *
                        static_cast<double>(model.vocabulary) / (tp * cluster.linear_flops_per_s);
    linear_half_tokens_ = cluster.linear_half_tokens;
    attention_per_square_s_ =
        layers * attention_flops_per_square(model) / (tp * cluster.attention_flops_per_s);
    attention_half_tokens_ = cluster.attention_half_tokens;
    const double ring_bytes_per_token =
        2.0 * static_cast<double>(model.kv_hidden) * model.dtype_bytes / tp;
    hop_per_token_s_[0] = ring_bytes_per_token / cluster.nvlink_bytes_per_s;
    hop_per_token_s_[1] = ring_bytes_per_token / cluster.network_bytes_per_s;
    hop_latency_s_[0] = cluster.nvlink_latency_s;
    hop_latency_s_[1] = cluster.network_latency_s;
    overlap_ = cluster.ring_overlap;
    fixed_s_ = cluster.fixed_s + layers * cluster.launch_s;
    backward_linear_ = cluster.backward_linear;
    backward_attention_ = cluster.backward_attention;
    backward_ring_bytes_ = cluster.backward_ring_bytes;
    recompute_ = model.recompute;
    if (cluster.stage_bytes_per_s > 0) {
      transfer_per_token_s_ = static_cast<double>(model.hidden) * model.dtype_bytes /
                              (tp * cluster.stage_bytes_per_s);
      transfer_latency_s_ = cluster.stage_latency_s;
    }
  }

  [[nodiscard]] std::int32_t stage_classes() const noexcept {
    return has_head_ && num_stages_ > 1 ? 2 : 1;
  }
  [[nodiscard]] std::int32_t stage_class(std::int32_t virtual_stage) const noexcept {
    return stage_classes() == 2 && virtual_stage == num_stages_ - 1 ? 1 : 0;
  }
  [[nodiscard]] std::int32_t bottleneck_class() const noexcept { return stage_classes() - 1; }

  /// Requires l.tokens >= 1, c >= 1. Costs over `max_operation_s` are capped there; `check_cost`
  /// of the planner turns that into a typed error before any plan is made of them.
  [[nodiscard]] op_cost cost(const load& l, std::int32_t c, link k,
                             std::int32_t stage_class) const noexcept {
    const cost_parts f = forward_parts(l, c, k, stage_class);
    const double forward = f.total_s();
    return {to_ticks(std::min(max_operation_s, forward)),
            to_ticks(std::min(max_operation_s, backward_s(l, c, k, f, forward))), transfer(l, c)};
  }

  [[nodiscard]] cost_parts forward_parts(const load& l, std::int32_t c, link k,
                                         std::int32_t stage_class) const noexcept {
    const double inverse_c = 1.0 / c;
    const double local_tokens = rounded_product(static_cast<double>(l.tokens), inverse_c);
    const double local_squares = rounded_product(static_cast<double>(l.squares), inverse_c);
    cost_parts parts;
    parts.linear_s =
        rounded_product(per_token_s(stage_class), local_tokens + linear_half_tokens_);
    parts.attention_s = rounded_product(attention_per_square_s_, local_squares);
    if (attention_half_tokens_ > 0) {
      parts.attention_s =
          rounded_product(parts.attention_s, 1.0 + attention_half_tokens_ / local_tokens);
    }
    parts.exposed_s = exposed_s(local_tokens, parts.attention_s, c, k, 1.0);
    parts.fixed_s = fixed_s_;
    return parts;
  }

  [[nodiscard]] cost_parts backward_parts(const load& l, std::int32_t c, link k,
                                          std::int32_t stage_class) const noexcept {
    const cost_parts f = forward_parts(l, c, k, stage_class);
    const double local_tokens = rounded_product(static_cast<double>(l.tokens), 1.0 / c);
    cost_parts b;
    b.linear_s = rounded_product(backward_linear_, f.linear_s);
    b.attention_s = rounded_product(backward_attention_, f.attention_s);
    b.exposed_s = exposed_s(local_tokens, b.attention_s, c, k, backward_ring_bytes_);
    b.fixed_s = fixed_s_;
    if (recompute_ == recomputation::full) {
      b.linear_s += f.linear_s;
      b.fixed_s += f.fixed_s;
    }
    if (recompute_ != recomputation::none) {
      b.attention_s += f.attention_s;
      b.exposed_s += f.exposed_s;
    }
    return b;
  }

  /// The same costs with attention at its full rate at any size. Below n1 tokens a pack's attention
  /// is slower, so a longer companion can make it *faster*; bounds that rest on costs growing with
  /// the load use these instead, which do and are never above.
  [[nodiscard]] analytic_cost at_full_attention_rate() const noexcept {
    analytic_cost fast = *this;
    fast.attention_half_tokens_ = 0;
    return fast;
  }

  /// Rank-seconds, forward and backward, that any pack spends at least on a load in it: matrix and
  /// attention work at full efficiency, rings hidden, nothing fixed. Additive over a batch, in
  /// doubles, so that it prices whole batches too.
  [[nodiscard]] double work_floor_s(double tokens, double squares,
                                    std::int32_t stage_class) const noexcept {
    const double again_linear = recompute_ == recomputation::full ? 1.0 : 0.0;
    const double again_attention = recompute_ == recomputation::none ? 0.0 : 1.0;
    return rounded_product(rounded_product(per_token_s(stage_class), tokens),
                           1.0 + backward_linear_ + again_linear) +
           rounded_product(rounded_product(attention_per_square_s_, squares),
                           1.0 + backward_attention_ + again_attention);
  }

  /// Seconds of a pack that depend on nothing in it, forward and backward.
  [[nodiscard]] double fixed_floor_s() const noexcept {
    return fixed_s_ * (recompute_ == recomputation::full ? 3.0 : 2.0);
  }

  /// Rank-seconds that a load in groups of `c` ranks spends at least when its ring binds: matrix
  /// work plus all hops, forward and backward; each hop is either exposed or under attention.
  [[nodiscard]] double ring_floor_s(double tokens, std::int32_t c, link k,
                                    std::int32_t stage_class) const noexcept {
    const double again_linear = recompute_ == recomputation::full ? 1.0 : 0.0;
    const double again_ring = recompute_ == recomputation::none ? 0.0 : 1.0;
    const double linear = rounded_product(rounded_product(per_token_s(stage_class), tokens),
                                          1.0 + backward_linear_ + again_linear);
    const double hops = rounded_product(
        rounded_product(hop_per_token_s_[static_cast<int>(k)], tokens),
        rounded_product(layers_, c - 1));
    return linear + rounded_product(hops, 1.0 + backward_ring_bytes_ + again_ring);
  }

 private:
  [[nodiscard]] double per_token_s(std::int32_t stage_class) const noexcept {
    const bool head = has_head_ && stage_class == stage_classes() - 1;
    return head ? linear_per_token_s_ + head_per_token_s_ : linear_per_token_s_;
  }

  [[nodiscard]] double exposed_s(double local_tokens, double attention_s, std::int32_t c, link k,
                                 double bytes_factor) const noexcept {
    if (c == 1) return 0.0;
    const auto i = static_cast<int>(k);
    const double hop =
        hop_latency_s_[i] +
        rounded_product(rounded_product(hop_per_token_s_[i], bytes_factor), local_tokens);
    const double hidden = std::min(hop, attention_s / rounded_product(layers_, c));
    return rounded_product(rounded_product(layers_, c - 1),
                           hop - rounded_product(overlap_, hidden));
  }

  [[nodiscard]] double backward_s(const load& l, std::int32_t c, link k, const cost_parts& f,
                                  double forward) const noexcept {
    const double local_tokens = rounded_product(static_cast<double>(l.tokens), 1.0 / c);
    const double attention = rounded_product(backward_attention_, f.attention_s);
    double sum = rounded_product(backward_linear_, f.linear_s) + attention;
    sum += exposed_s(local_tokens, attention, c, k, backward_ring_bytes_);
    sum += fixed_s_;
    if (recompute_ == recomputation::full) sum += forward;
    if (recompute_ == recomputation::selective) sum += f.attention_s + f.exposed_s;
    return sum;
  }

  [[nodiscard]] ticks transfer(const load& l, std::int32_t c) const noexcept {
    if (transfer_per_token_s_ == 0.0) return 0;
    const double local_tokens = rounded_product(static_cast<double>(l.tokens), 1.0 / c);
    return to_ticks(
        std::min(max_operation_s,
                 transfer_latency_s_ + rounded_product(transfer_per_token_s_, local_tokens)));
  }

  std::int32_t num_stages_;  // virtual stages: pp * vpp
  bool has_head_;
  double layers_ = 0;  // of one virtual stage; may be fractional
  double linear_per_token_s_ = 0;
  double head_per_token_s_ = 0;
  double linear_half_tokens_ = 0;
  double attention_per_square_s_ = 0;
  double attention_half_tokens_ = 0;
  double hop_per_token_s_[2] = {0, 0};  // by link
  double hop_latency_s_[2] = {0, 0};
  double overlap_ = 1;
  double fixed_s_ = 0;
  double backward_linear_ = 2;
  double backward_attention_ = 2;
  double backward_ring_bytes_ = 2;
  double transfer_per_token_s_ = 0;
  double transfer_latency_s_ = 0;
  recomputation recompute_ = recomputation::full;
};

static_assert(cost_model<analytic_cost>);

/// Seconds of the gradient all-reduce (reduce-scatter and all-gather) over the R ranks, fp32:
///   2(R-1)/R * layers/pp * weights a layer * 4 bytes / tp / bus,
/// bus = NVLink inside one node, else min(NVLink, gpus_per_node * network). 0 for R = 1.
[[nodiscard]] inline double all_reduce_s(const model_spec& model, const cluster_spec& cluster,
                                         const parallel_spec& parallel) noexcept {
  if (parallel.ranks == 1) return 0.0;
  const double ranks = parallel.ranks;
  const double bytes = static_cast<double>(model.layers) / parallel.pp *
                       parameters_per_layer(model) * 4.0 / parallel.tp;
  const bool one_node = parallel.ranks <= ranks_per_node(cluster.gpus_per_node, parallel);
  const double bus = one_node ? cluster.nvlink_bytes_per_s
                              : std::min(cluster.nvlink_bytes_per_s,
                                         cluster.gpus_per_node * cluster.network_bytes_per_s);
  return 2.0 * (ranks - 1.0) / ranks * bytes / bus;
}

}  // namespace v0
}  // namespace dyncp
