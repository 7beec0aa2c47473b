// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/packers/relax.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/limits.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/problem/sequence.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

namespace dyncp {
inline namespace v0 {

// Dynamic CP as RL post-training on Relax has it: the user gives a token budget and the longest
// context, not a CP size. One CP size per micro-batch, as small as its longest sequence allows.

/// What the user of Relax mode sets; beside each, its flag there.
struct relax_options {
  std::int64_t world_size = 0;                   ///< GPUs
  std::int32_t tp = 1;
  std::int32_t pp = 1;
  std::int32_t vpp = 1;
  std::int64_t max_context = 0;                  ///< --rollout-max-context-len: prompt + response
  std::int64_t max_tokens_per_gpu = 0;           ///< --max-tokens-per-gpu, of one rank
  std::int64_t log_prob_max_tokens_per_gpu = 0;  ///< 0: max_tokens_per_gpu
  bool per_token_loss = false;                   ///< --calculate-per-token-loss: must be on
  padding_rule padding = {.zigzag = true};
};

/// What follows from the options.
struct relax_setup {
  std::int32_t max_cp = 1;  ///< next power of two of max_context / max_tokens_per_gpu
  std::int32_t dp = 1;      ///< world_size / (tp * pp * max_cp)
  std::int32_t tp = 1;
  std::int32_t pp = 1;
  std::int32_t vpp = 1;
  std::int64_t max_tokens = 0;           ///< of a rank in training
  std::int64_t log_prob_max_tokens = 0;  ///< of a rank in the log-prob pass
  padding_rule padding;

  [[nodiscard]] std::int32_t ranks() const noexcept { return dp * max_cp; }
};

namespace detail {

/// Tokens that each of `cp` ranks needs for a sequence of `context` tokens with its padding.
[[nodiscard]] constexpr std::int64_t relax_tokens_for(const padding_rule& padding,
                                                      std::int64_t context,
                                                      std::int32_t cp) noexcept {
  const std::int64_t padded = padded_length(context, alignment(padding, cp));
  return ceil_div(padded_pack_tokens(padding, cp, padded), cp);
}

/// The longest context that fits, with its padding, the group that follows from it, of at most
/// `max_cp` ranks of `tokens` tokens; 0 if none does.
[[nodiscard]] constexpr std::int64_t relax_longest(const padding_rule& padding,
                                                   std::int64_t tokens,
                                                   std::int32_t max_cp) noexcept {
  const std::int64_t per_rank = tokens / padding.shard_multiple * padding.shard_multiple;
  for (std::int32_t cp = max_cp; cp > 0; cp /= 2) {
    const std::int64_t align = alignment(padding, cp);
    const std::int64_t longest = per_rank * cp / align * align;
    if (longest > 0 && next_power_of_two(ceil_div(longest, tokens)) == cp) return longest;
  }
  return 0;
}

[[nodiscard]] inline error relax_world_size(const relax_options& o, std::int64_t max_cp) {
  const std::int64_t model = std::int64_t{o.tp} * o.pp;
  const std::int64_t unit = model * max_cp;
  const std::int64_t below = o.world_size / unit * unit;
  std::string hint = "use " + (below > 0 ? std::to_string(below) + " or " : "") +
                     std::to_string(below + unit) + " GPUs";
  // The largest CP size that this world has room for.
  std::int64_t fits = max_cp / 2;
  while (fits >= 1 && o.world_size % (model * fits) != 0) fits /= 2;
  if (fits >= 1) {
    const auto cp = static_cast<std::int32_t>(fits);
    const std::int64_t tokens = relax_tokens_for(o.padding, o.max_context, cp);
    const std::int64_t longest = relax_longest(o.padding, o.max_tokens_per_gpu, cp);
    hint += "; or raise max_tokens_per_gpu to " + std::to_string(tokens) + ", so that max_cp is " +
            std::to_string(next_power_of_two(ceil_div(o.max_context, tokens)));
    if (longest > 0) hint += "; or lower max_context to " + std::to_string(longest);
  } else {
    hint += "; or choose tp and pp so that tp * pp divides " + std::to_string(o.world_size) +
            "; or raise max_tokens_per_gpu, or lower max_context, for a smaller max_cp besides";
  }
  return error{errc::invalid_argument, "a world of " + std::to_string(o.world_size) +
               " GPUs is not a multiple of tp * pp * max_cp = " + std::to_string(o.tp) + " * " +
               std::to_string(o.pp) + " * " + std::to_string(max_cp) + " = " +
               std::to_string(unit) + "; max_cp comes of " + std::to_string(o.max_context) +
               " tokens of context at " + std::to_string(o.max_tokens_per_gpu) + " a GPU",
               o.world_size, unit, hint};
}

/// A sequence of the longest context must fit the largest group with its padding.
[[nodiscard]] inline result<void> relax_context_fits(const relax_options& o, std::int64_t tokens,
                                                     std::int32_t max_cp, const char* budget) {
  const std::int64_t needed = relax_tokens_for(o.padding, o.max_context, max_cp);
  if (needed <= tokens) return {};
  const std::int64_t longest = relax_longest(o.padding, tokens, max_cp);
  return error{errc::invalid_argument, "a context of " + std::to_string(o.max_context) +
               " tokens on " + std::to_string(max_cp) + " ranks takes " + std::to_string(needed) +
               " tokens of each with its padding, over " + std::string(budget) + " = " +
               std::to_string(tokens), needed, tokens,
               "raise " + std::string(budget) + " to " + std::to_string(needed) +
                   (longest > 0 ? " or lower max_context to " + std::to_string(longest) : "")};
}

}  // namespace detail

/// Checks the options in the order in which Relax does, and derives CP and DP sizes.
///
/// Errors, all invalid_argument: no token budget; no longest context; per-token loss off, since
/// ranks hold shares of unequal size and a mean of means would weight tokens by them; sizes outside
/// their domains; a world that is no multiple of tp * pp * max_cp, with the values and three
/// remedies; a context that does not fit with its padding, or under the log-prob budget.
[[nodiscard]] inline result<relax_setup> make_relax_setup(const relax_options& o) {
  if (o.max_tokens_per_gpu < 1) {
    return error{errc::invalid_argument, "max_tokens_per_gpu is " +
                 std::to_string(o.max_tokens_per_gpu), o.max_tokens_per_gpu, 1,
                 "dynamic context parallelism needs a token budget: the padded tokens that one GPU "
                 "can hold in a micro-batch"};
  }
  if (o.max_context < 1) {
    return error{errc::invalid_argument, "max_context is " + std::to_string(o.max_context),
                 o.max_context, 1,
                 "dynamic context parallelism needs the longest context, prompt and response, to "
                 "know its largest group"};
  }
  if (!o.per_token_loss) {
    return make_error(errc::invalid_argument, "per-token loss is off",
                      "set per_token_loss: with groups of different sizes only the sum over tokens "
                      "by their global number weights every token alike");
  }
  for (const auto& [name, value, least, most] :
       {std::tuple{"world size", o.world_size, std::int64_t{1}, max_sequence_length},
        {"tp", std::int64_t{o.tp}, 1, 4096},
        {"pp", std::int64_t{o.pp}, 1, 4096},
        {"vpp", std::int64_t{o.vpp}, 1, 4096},
        {"max_context", o.max_context, 1, max_sequence_length},
        {"max_tokens_per_gpu", o.max_tokens_per_gpu, 1, max_sequence_length},
        {"log_prob_max_tokens_per_gpu", o.log_prob_max_tokens_per_gpu, 0, max_sequence_length}}) {
    if (value >= least && value <= most) continue;
    return error{errc::invalid_argument, std::string(name) + " is " + std::to_string(value), value,
                 value < least ? least : most,
                 "use a number in " + std::to_string(least) + " .. " + std::to_string(most)};
  }
  DYNCP_TRY(check(o.padding));
  const std::int64_t needed = ceil_div(o.max_context, o.max_tokens_per_gpu);
  if (needed > max_ranks) {
    return error{errc::invalid_argument, "a context of " + std::to_string(o.max_context) +
                 " tokens needs " + std::to_string(needed) + " ranks", needed, max_ranks,
                 "raise max_tokens_per_gpu"};
  }
  const std::int64_t max_cp = next_power_of_two(needed);
  const std::int64_t model = std::int64_t{o.tp} * o.pp;
  if (o.world_size % (model * max_cp) != 0) return detail::relax_world_size(o, max_cp);
  const std::int64_t dp = o.world_size / (model * max_cp);
  if (dp * max_cp > max_ranks) {
    return error{errc::invalid_argument, std::to_string(dp * max_cp) + " DPxCP ranks", dp * max_cp,
                 max_ranks, "at most 2^20 ranks are planned"};
  }
  relax_setup out;
  out.max_cp = static_cast<std::int32_t>(max_cp);
  out.dp = static_cast<std::int32_t>(dp);
  out.tp = o.tp;
  out.pp = o.pp;
  out.vpp = o.vpp;
  out.max_tokens = o.max_tokens_per_gpu;
  out.log_prob_max_tokens =
      o.log_prob_max_tokens_per_gpu == 0 ? o.max_tokens_per_gpu : o.log_prob_max_tokens_per_gpu;
  out.padding = o.padding;
  DYNCP_TRY(detail::relax_context_fits(o, out.max_tokens, out.max_cp, "max_tokens_per_gpu"));
  DYNCP_TRY(detail::relax_context_fits(o, out.log_prob_max_tokens, out.max_cp,
                                       "log_prob_max_tokens_per_gpu"));
  return out;
}

/// The CP size of a micro-batch of `sequences` sequences, the longest of `longest` padded tokens:
/// the next power of two of longest / max_tokens, doubled while sub-groups would stay empty, at
/// most max_cp. Sub-groups over the budget double it further; `relax_capped` does that as it packs.
/// Requires positive arguments. Source: Relax, `cp_utils.py`.
[[nodiscard]] constexpr std::int32_t relax_cp_size(std::int64_t longest, std::int64_t max_tokens,
                                                   std::int32_t max_cp, std::int64_t sequences) {
  std::int64_t c = next_power_of_two(ceil_div(longest, max_tokens));
  while (c < max_cp && max_cp / c > sequences) c *= 2;
  return static_cast<std::int32_t>(std::min<std::int64_t>(c, max_cp));
}

/// The job of the training pass on `base`'s model and cluster: ranks, sizes and limits of the
/// setup, one CP size per micro-batch.
[[nodiscard]] inline problem relax_problem(const relax_setup& setup, problem base) {
  base.parallel = {};
  base.parallel.ranks = setup.ranks();
  base.parallel.pp = setup.pp;
  base.parallel.vpp = setup.vpp;
  base.parallel.tp = setup.tp;
  base.parallel.static_cp = setup.max_cp;
  base.parallel.max_cp = setup.max_cp;
  base.limits.max_tokens_per_rank = setup.max_tokens;
  base.limits.uniform_cp = true;
  base.padding = setup.padding;
  return base;
}

/// The same for the log-prob pass, with its own budget.
[[nodiscard]] inline problem relax_log_prob_problem(const relax_setup& setup, problem base) {
  base = relax_problem(setup, std::move(base));
  base.limits.max_tokens_per_rank = setup.log_prob_max_tokens;
  return base;
}

/// The planner of Relax mode: the rule above, growth for coverage, sub-groups of like tokens, none
/// over the budget (Relax's own may be: 120 tokens under a budget of 100).
template <cost_model Cost>
[[nodiscard]] auto make_relax_planner(const Cost& cost) {
  return planner{cost, relax_capped{}};
}

}  // namespace v0
}  // namespace dyncp
