// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/limits.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/parallel_spec.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace dyncp {
inline namespace v0 {

/// What the memory model assumes of the trainer.
struct memory_options {
  bool sequence_parallel = true;  ///< norms and residuals are divided by tp as well
  bool sharded_optimizer = true;  ///< master weights and moments are divided by the ranks
  double gradient_bytes = 4;      ///< of one weight
  double optimizer_bytes = 12;    ///< of one weight: fp32 master weight and two moments
  double reserved_gib = 0;        ///< of a GPU: allocator, communicators, workspaces

  friend bool operator==(const memory_options&, const memory_options&) = default;
};

/// Bytes that one GPU keeps of a token of its rank (a pack's tokens over c) in each layer, from
/// the forward to the backward of its micro-batch. In values of `dtype_bytes`, with flash
/// attention, h hidden, q query and k key/value width, f the MLP's:
///   none       norms' inputs and outputs 4h; queries, keys, values, attention output 2q + 2k;
///              MLP 3f (gate, up, product; 2f if not gated)
///   selective  the same without norm outputs (2h) and the MLP's product (f), computed again
///   full       the layer's input h
/// An MoE keeps the MLP of `experts_per_token` experts and their inputs, h each. All is divided by
/// tp; without sequence parallelism the values of width h are not. For q = h and bf16 these are
/// 12h + 4k + 6f, 8h + 4k + 4f and 2h bytes. Source: the tensors that the backward of a
/// pre-norm transformer layer reads; dropout and masks are not counted.
[[nodiscard]] inline double activation_bytes_per_token(const model_spec& model, std::int32_t tp,
                                                       recomputation recompute,
                                                       const memory_options& options = {}) {
  const double h = static_cast<double>(model.hidden);
  const double attention = 2.0 * static_cast<double>(model.query_hidden + model.kv_hidden);
  const double f = static_cast<double>(model.ffn);
  const double used = model.experts > 0 ? static_cast<double>(model.experts_per_token) : 1.0;
  const bool again = recompute == recomputation::selective;
  double wide = again ? 2.0 * h : 4.0 * h;  // of width h: a norm, a residual
  if (model.experts > 0) wide += rounded_product(used, h);
  double sharded =
      attention + rounded_product(used, ((model.gated_mlp ? 3.0 : 2.0) - (again ? 1.0 : 0.0)) * f);
  if (recompute == recomputation::full) {
    wide = h;
    sharded = 0;
  }
  const double wide_shards = options.sequence_parallel ? tp : 1.0;
  return (wide / wide_shards + sharded / tp) * model.dtype_bytes;
}

/// Bytes of the output head for a token of a rank on the last stage, while its loss and its
/// gradient are computed: logits in `dtype_bytes` and in fp32. 0 without a vocabulary.
[[nodiscard]] inline double logits_bytes_per_token(const model_spec& model, std::int32_t tp) {
  return static_cast<double>(model.vocabulary) * (model.dtype_bytes + 4.0) / tp;
}

/// What one GPU of a pipeline stage holds. Bytes; tokens are those of its rank.
struct stage_memory_spec {
  double state_bytes = 0;              ///< weights, gradients, optimizer
  double kept_bytes_per_token = 0;     ///< activations of all its layers, while in flight
  double working_bytes_per_token = 0;  ///< more for the micro-batch whose backward runs: the
                                       ///< layer that is computed again
  double logits_bytes_per_token = 0;   ///< on the last stage, for the micro-batch that runs
};

/// Memory of the GPUs of physical stage `stage`. The first holds the embedding, the last the
/// output head (both h * vocabulary weights over tp). States: `dtype_bytes` for a weight,
/// `gradient_bytes`, and `optimizer_bytes` divided by the R ranks when sharded. Every rank is
/// taken to hold all experts. Requires `check(parallel)` and 0 <= stage < pp.
[[nodiscard]] inline stage_memory_spec stage_memory(const model_spec& model,
                                                    const parallel_spec& parallel,
                                                    std::int32_t stage,
                                                    const memory_options& options = {}) {
  const double layers = static_cast<double>(model.layers) / parallel.pp;
  const double table = static_cast<double>(model.hidden) * static_cast<double>(model.vocabulary);
  double weights = rounded_product(layers, parameters_per_layer(model));
  if (stage == 0) weights += table;
  if (stage == parallel.pp - 1) weights += table;
  weights /= parallel.tp;
  const double optimizer =
      options.optimizer_bytes / (options.sharded_optimizer ? parallel.ranks : 1);
  stage_memory_spec out;
  out.state_bytes =
      rounded_product(weights, model.dtype_bytes + options.gradient_bytes + optimizer);
  const double kept = activation_bytes_per_token(model, parallel.tp, model.recompute, options);
  out.kept_bytes_per_token = layers * kept;
  if (model.recompute != recomputation::none) {
    out.working_bytes_per_token =
        activation_bytes_per_token(model, parallel.tp, recomputation::none, options) - kept;
  }
  if (stage == parallel.pp - 1) {
    out.logits_bytes_per_token = logits_bytes_per_token(model, parallel.tp);
  }
  return out;
}

namespace detail {

/// Most tokens in flight on a stage within `bytes`. No micro-batch has more than `limit` tokens a
/// rank (0: unknown, so one could be all that is in flight); `single` says that the stage never
/// holds a second one.
inline double tokens_within(double bytes, const stage_memory_spec& stage, double limit,
                            bool single) {
  const double running = stage.working_bytes_per_token + stage.logits_bytes_per_token;
  const double kept = stage.kept_bytes_per_token;
  const double alone = bytes / (kept + running);
  if (limit <= 0 || alone <= limit) return alone;
  if (single) return static_cast<double>(max_pack_tokens);
  return (bytes - rounded_product(limit, running)) / kept;
}

}  // namespace detail

/// The limit on tokens in flight that a GPU of `memory_gib` GiB allows: what `--memory-gib` turns
/// into `plan_limits::max_inflight_tokens`. Padded tokens a rank, on the stage that holds most:
/// the first, which has most micro-batches in flight, or the last with its logits.
///
/// `max_tokens_per_rank` bounds the micro-batch whose layer is computed again and whose logits
/// exist; 0 takes all that is in flight for one. Complexity: O(1). Safe to call concurrently.
/// Errors: invalid_argument for a memory that is not positive; infeasible when the states leave no
/// room for a token, with the numbers in MiB as value and limit.
[[nodiscard]] inline result<std::int64_t> max_inflight_tokens_for(
    double memory_gib, const model_spec& model, const cluster_spec& cluster,
    const parallel_spec& parallel, std::int64_t max_tokens_per_rank = 0,
    const memory_options& options = {}) {
  constexpr double gib = 1073741824.0;
  constexpr double mib = 1048576.0;
  if (!(memory_gib > 0) || !std::isfinite(memory_gib)) {
    return make_error(errc::invalid_argument, "memory is " + std::to_string(memory_gib) + " GiB",
                      "give the memory of one GPU in GiB (--memory-gib)");
  }
  const auto in_gib = [](double bytes) {
    const auto hundredths = static_cast<std::int64_t>(bytes / gib * 100.0 + 0.5);
    const std::string rest = std::to_string(hundredths % 100);
    return std::to_string(hundredths / 100) + (rest.size() < 2 ? ".0" : ".") + rest + " GiB";
  };
  double tokens = static_cast<double>(max_pack_tokens);
  for (const std::int32_t s : {0, parallel.pp - 1}) {
    const stage_memory_spec stage = stage_memory(model, parallel, s, options);
    const double room = (memory_gib - options.reserved_gib) * gib - stage.state_bytes;
    // 1F1B turns round on the last stage; with chunks it holds other micro-batches' as well.
    const bool single = s > 0 && parallel.vpp == 1;
    const double fit =
        detail::tokens_within(room, stage, static_cast<double>(max_tokens_per_rank), single);
    if (fit < 1.0) {
      return error{errc::infeasible,
                   "weights, gradients and optimizer of stage " + std::to_string(s) + " take " +
                       in_gib(stage.state_bytes) + " of " + in_gib(memory_gib * gib) + " a GPU",
                   static_cast<std::int64_t>(stage.state_bytes / mib),
                   static_cast<std::int64_t>(memory_gib * gib / mib),
                   "use more stages (--pp) or a larger tp" +
                       std::string(memory_gib < cluster.memory_gib
                                       ? ", or raise --memory-gib: " + cluster.name + " has " +
                                             in_gib(cluster.memory_gib * gib)
                                       : "")};
    }
    tokens = std::min(tokens, fit);
  }
  return static_cast<std::int64_t>(tokens);
}

}  // namespace v0
}  // namespace dyncp
