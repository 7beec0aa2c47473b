// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/parallel_spec.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Coefficients of the time of one pass over one stage, in seconds; none is negative. Field names
/// are the JSON keys. With n = tokens / c, s = squares / c, q = squares / tokens:
///
///   linear    = per_token_s * n
///   attention = per_square_s * s + per_mean_length_s * q    the second: kernels slow on short rows
///   hop       = hop_s[link] + hop_per_token_s[link] * n      one ring step of all layers
///   exposed   = (c - 1) * (hop - overlap * min(hop, attention / c))
///   time      = fixed_s + linear + attention + exposed
///
/// The form of `analytic_cost`, with layers, tp and rates inside the coefficients.
struct cost_coefficients {
  double fixed_s = 0;
  double per_token_s = 0;
  double per_square_s = 0;
  double per_mean_length_s = 0;
  double hop_s[2] = {0, 0};            // by link
  double hop_per_token_s[2] = {0, 0};  // by link
  double overlap = 1;                  ///< 0..1

  friend bool operator==(const cost_coefficients&, const cost_coefficients&) = default;
};

/// The parts of one pass, in seconds. Requires l.tokens >= 1, c >= 1.
[[nodiscard]] inline cost_parts parts_of(const cost_coefficients& k, const load& l, std::int32_t c,
                                         link over) noexcept {
  const double inverse_c = 1.0 / c;
  const double tokens = static_cast<double>(l.tokens);
  const double squares = static_cast<double>(l.squares);
  const double local_tokens = rounded_product(tokens, inverse_c);
  cost_parts parts;
  parts.fixed_s = k.fixed_s;
  parts.linear_s = rounded_product(k.per_token_s, local_tokens);
  parts.attention_s = rounded_product(k.per_square_s, rounded_product(squares, inverse_c)) +
                      rounded_product(k.per_mean_length_s, squares / tokens);
  if (c > 1) {
    const auto i = static_cast<std::size_t>(over);
    const double hop = k.hop_s[i] + rounded_product(k.hop_per_token_s[i], local_tokens);
    const double hidden = std::min(hop, rounded_product(parts.attention_s, inverse_c));
    parts.exposed_s = rounded_product(c - 1.0, hop - rounded_product(k.overlap, hidden));
  }
  return parts;
}

/// What the analytic model says, as coefficients: the start of a fit, and what stays where no
/// record tells anything. `stage_class` as in `analytic_cost`.
struct pass_coefficients {
  cost_coefficients forward;
  cost_coefficients backward;

  friend bool operator==(const pass_coefficients&, const pass_coefficients&) = default;
};

/// Coefficients of a stage by data sheet numbers. Backward includes what is computed again; where
/// the ring of the backward pass overlaps differently from that of the recomputation, this is an
/// approximation: the two rings are added up before attention hides part of them.
[[nodiscard]] inline pass_coefficients coefficients_of(const model_spec& model,
                                                       const cluster_spec& cluster,
                                                       const parallel_spec& parallel,
                                                       bool with_head = false) noexcept {
  const double layers = static_cast<double>(model.layers) / (parallel.pp * parallel.vpp);
  const double tp = parallel.tp;
  pass_coefficients out;
  cost_coefficients& f = out.forward;
  f.per_token_s = layers * 2.0 * active_parameters_per_layer(model) /
                  (tp * cluster.linear_flops_per_s);
  if (with_head) {
    f.per_token_s += 2.0 * static_cast<double>(model.hidden) *
                     static_cast<double>(model.vocabulary) / (tp * cluster.linear_flops_per_s);
  }
  f.per_square_s =
      layers * attention_flops_per_square(model) / (tp * cluster.attention_flops_per_s);
  f.per_mean_length_s = f.per_square_s * cluster.attention_half_tokens;
  f.fixed_s = cluster.fixed_s + layers * cluster.launch_s +
              f.per_token_s * cluster.linear_half_tokens;
  const double bytes = 2.0 * static_cast<double>(model.kv_hidden) * model.dtype_bytes / tp;
  f.hop_s[0] = layers * cluster.nvlink_latency_s;
  f.hop_s[1] = layers * cluster.network_latency_s;
  f.hop_per_token_s[0] = layers * bytes / cluster.nvlink_bytes_per_s;
  f.hop_per_token_s[1] = layers * bytes / cluster.network_bytes_per_s;
  f.overlap = cluster.ring_overlap;

  const bool all = model.recompute == recomputation::full;
  const double linear = cluster.backward_linear + (all ? 1.0 : 0.0);
  const double again = model.recompute == recomputation::none ? 0.0 : 1.0;
  const double attention = cluster.backward_attention + again;
  cost_coefficients& b = out.backward;
  b = f;
  const double half_tokens = f.per_token_s * cluster.linear_half_tokens;
  b.fixed_s = (f.fixed_s - half_tokens) * (all ? 2.0 : 1.0) + half_tokens * linear;
  b.per_token_s *= linear;
  b.per_square_s *= attention;
  b.per_mean_length_s *= attention;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    b.hop_s[i] *= 1.0 + again;
    b.hop_per_token_s[i] *= cluster.backward_ring_bytes + again;
  }
  return out;
}

/// A cost model from coefficients that were fitted to measured times: see `cost_fitter`.
///
/// One class of stages, or two, of which the second is the last stage (with the output head).
/// Coefficients are inputs of the plan: `digest_words` lists them, and ranks that plan with other
/// ones are found out. Immutable; const members may be called concurrently. O(1) a call.
class fitted_cost {
 public:
  /// `classes`: one or two; `virtual_stages`: pp * vpp. Transfers between stages take
  /// `transfer_s + transfer_per_token_s * n`.
  ///
  /// Errors: invalid_argument for another number of classes, stages below one, a coefficient that
  /// is negative or not finite, an overlap over 1, or passes that take no time.
  [[nodiscard]] static result<fitted_cost> make(std::vector<pass_coefficients> classes,
                                                std::int32_t virtual_stages,
                                                double transfer_s = 0,
                                                double transfer_per_token_s = 0) {
    if (classes.empty() || classes.size() > 2 || virtual_stages < 1) {
      return error{errc::invalid_argument, std::to_string(classes.size()) +
                   " classes of stages for " + std::to_string(virtual_stages) + " stages",
                   static_cast<std::int64_t>(classes.size()), 2,
                   "give one class, or two, of which the second is the last stage"};
    }
    const auto fine = [](double x) { return x >= 0 && x <= max_operation_s; };
    for (const pass_coefficients& both : classes) {
      for (const cost_coefficients* k : {&both.forward, &both.backward}) {
        bool good = k->overlap >= 0 && k->overlap <= 1;
        for (const double x : words_of(*k)) good = good && fine(x);
        if (!good || !(k->fixed_s + k->per_token_s + k->per_square_s > 0)) {
          return make_error(errc::invalid_argument,
                            "a cost coefficient is negative, not finite or over 2^20, an overlap "
                            "over 1, or all of a pass are 0",
                            "fit to measured seconds, forward and backward");
        }
      }
    }
    if (!fine(transfer_s) || !fine(transfer_per_token_s)) {
      return make_error(errc::invalid_argument, "a transfer takes a negative or endless time",
                        "give seconds and seconds per token");
    }
    fitted_cost out;
    out.classes_ = std::move(classes);
    out.virtual_stages_ = virtual_stages;
    out.transfer_s_ = transfer_s;
    out.transfer_per_token_s_ = transfer_per_token_s;
    const load probe{8192, std::int64_t{8192} * 8192, 1};
    for (std::int32_t k = 1; k < out.stage_classes(); ++k) {
      if (out.cost(probe, 1, link::nvlink, k).total() >
          out.cost(probe, 1, link::nvlink, out.bottleneck_).total()) {
        out.bottleneck_ = k;
      }
    }
    return out;
  }

  [[nodiscard]] std::int32_t stage_classes() const noexcept {
    return static_cast<std::int32_t>(virtual_stages_ > 1 ? classes_.size() : 1);
  }
  [[nodiscard]] std::int32_t stage_class(std::int32_t virtual_stage) const noexcept {
    return stage_classes() == 2 && virtual_stage == virtual_stages_ - 1 ? 1 : 0;
  }
  [[nodiscard]] std::int32_t bottleneck_class() const noexcept { return bottleneck_; }

  /// Requires l.tokens >= 1, c >= 1. At least one tick, at most `max_operation_s`.
  [[nodiscard]] op_cost cost(const load& l, std::int32_t c, link over,
                             std::int32_t stage_class) const noexcept {
    const auto priced = [](const cost_parts& parts) {
      return std::max(ticks{1}, to_ticks(std::min(parts.total_s(), max_operation_s)));
    };
    ticks transfer = 0;
    if (transfer_s_ > 0 || transfer_per_token_s_ > 0) {
      const double local = rounded_product(static_cast<double>(l.tokens), 1.0 / c);
      transfer = to_ticks(std::min(
          transfer_s_ + rounded_product(transfer_per_token_s_, local), max_operation_s));
    }
    return {priced(forward_parts(l, c, over, stage_class)),
            priced(backward_parts(l, c, over, stage_class)), transfer};
  }
  [[nodiscard]] cost_parts forward_parts(const load& l, std::int32_t c, link over,
                                         std::int32_t stage_class) const noexcept {
    return parts_of(at(stage_class).forward, l, c, over);
  }
  [[nodiscard]] cost_parts backward_parts(const load& l, std::int32_t c, link over,
                                          std::int32_t stage_class) const noexcept {
    return parts_of(at(stage_class).backward, l, c, over);
  }

  /// As in `analytic_cost`: what any pack spends at least, for the bounds of a plan.
  [[nodiscard]] double work_floor_s(double tokens, double squares,
                                    std::int32_t stage_class) const noexcept {
    const pass_coefficients& k = at(stage_class);
    return rounded_product(k.forward.per_token_s + k.backward.per_token_s, tokens) +
           rounded_product(k.forward.per_square_s + k.backward.per_square_s, squares);
  }
  [[nodiscard]] double fixed_floor_s() const noexcept {
    double least = std::numeric_limits<double>::max();
    for (const pass_coefficients& k : classes_) {
      least = std::min(least, k.forward.fixed_s + k.backward.fixed_s);
    }
    return least;
  }
  [[nodiscard]] double ring_floor_s(double tokens, std::int32_t c, link over,
                                    std::int32_t stage_class) const noexcept {
    const pass_coefficients& k = at(stage_class);
    const auto i = static_cast<std::size_t>(over);
    return rounded_product(k.forward.per_token_s + k.backward.per_token_s, tokens) +
           rounded_product(rounded_product(k.forward.hop_per_token_s[i] +
                                               k.backward.hop_per_token_s[i], tokens), c - 1.0);
  }

  [[nodiscard]] const std::vector<pass_coefficients>& classes() const noexcept { return classes_; }
  [[nodiscard]] std::int32_t virtual_stages() const noexcept { return virtual_stages_; }
  [[nodiscard]] double transfer_s() const noexcept { return transfer_s_; }
  [[nodiscard]] double transfer_per_token_s() const noexcept { return transfer_per_token_s_; }

  [[nodiscard]] std::vector<std::uint64_t> digest_words() const {
    std::vector<std::uint64_t> words = {static_cast<std::uint64_t>(virtual_stages_),
                                        classes_.size()};
    for (const pass_coefficients& both : classes_) {
      for (const cost_coefficients* k : {&both.forward, &both.backward}) {
        for (const double x : words_of(*k)) words.push_back(std::bit_cast<std::uint64_t>(x));
      }
    }
    words.push_back(std::bit_cast<std::uint64_t>(transfer_s_));
    words.push_back(std::bit_cast<std::uint64_t>(transfer_per_token_s_));
    return words;
  }

  friend bool operator==(const fitted_cost&, const fitted_cost&) = default;

 private:
  fitted_cost() = default;

  [[nodiscard]] const pass_coefficients& at(std::int32_t stage_class) const noexcept {
    return classes_[static_cast<std::size_t>(stage_class)];
  }
  /// All of them, by a binding that a new field would break.
  [[nodiscard]] static std::vector<double> words_of(const cost_coefficients& k) {
    const auto& [fixed_s, per_token_s, per_square_s, per_mean_length_s, hop_s, hop_per_token_s,
                 overlap] = k;
    return {fixed_s,  per_token_s,        per_square_s,       per_mean_length_s, hop_s[0],
            hop_s[1], hop_per_token_s[0], hop_per_token_s[1], overlap};
  }

  std::vector<pass_coefficients> classes_;
  std::int32_t virtual_stages_ = 1;
  std::int32_t bottleneck_ = 0;
  double transfer_s_ = 0;
  double transfer_per_token_s_ = 0;
};

static_assert(cost_model<fitted_cost>);

}  // namespace v0
}  // namespace dyncp
