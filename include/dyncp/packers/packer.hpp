// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_model.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <concepts>
#include <string_view>

namespace dyncp {
inline namespace v0 {

/// Turns a checked problem into a plan: which sequences share a pack, over how many ranks, in
/// which micro-batch and order. M is `limits.micro_batches`, or the packer's choice when that is 0.
///
/// Requirements: a pure function of problem and cost; the plan keeps every promise of design
/// section 4, or the result says why not: `sequence_too_long`, `infeasible` (proven) or
/// `not_found`. `name` is its name on the command line.
///
/// | packer               | when to use                                                        |
/// | -------------------- | ------------------------------------------------------------------- |
/// | `dynamic_cp`         | the default: CP size, packs, M and order by simulated time          |
/// | `static_balanced`    | static CP at its best, balanced by cost: what to beat               |
/// | `packing_only`       | the article's baseline: next-fit at static CP, nothing balanced     |
/// | `padded_bshd`        | no packing: rows of equal length                                    |
/// | `ffd`, `mffd`        | static CP in as few packs as a simple rule finds                    |
/// | `wlb_llm`            | static CP, packs of variable length filled by work; also a stream   |
/// | `verl`               | static CP, Karmarkar-Karp on work; may break the token limit        |
/// | `default_dynamic_cp` | Megatron's open scheduler: greedy on s^2/c up to the token limit    |
/// | `three_stage`        | the article's scheduler as the article tells it                     |
/// | `three_stage_2959`   | the article's scheduler as its code has it; may break the limit     |
/// | `flexsp`             | groups of several sizes, min-max within a micro-batch, no pipeline  |
/// | `relax`              | one CP size a micro-batch, from its longest sequence; may break it  |
///
/// All but the first are baselines: docs/baselines.md tells how faithful each is and to what.
/// `verl_capped` and `relax_capped` are repaired forms, for use and never for a comparison.
template <class Packer, class Cost>
concept packer = cost_model<Cost> && requires(const Packer& p, const problem& prob,
                                              const Cost& cost) {
  { p.pack(prob, cost) } -> std::same_as<result<plan>>;
  { Packer::name } -> std::convertible_to<std::string_view>;
};

/// The error for a sequence that no group of at most `c` ranks can hold.
[[nodiscard]] inline error too_long_error(const problem& prob, std::int64_t index,
                                          std::int32_t c) {
  const sequence& s = prob.sequences[static_cast<std::size_t>(index)];
  const std::int64_t padded = padded_length(s.length, alignment(prob.padding, c));
  return {errc::sequence_too_long,
          "sequence " + std::to_string(s.id) + " has " + std::to_string(s.length) +
              " tokens; a group of " + std::to_string(c) + " ranks holds " +
              std::to_string(pack_capacity(prob, c)),
          s.length, pack_capacity(prob, c),
          "raise --max-tokens-per-rank to " + std::to_string(ceil_div(padded, c)) +
              ", allow larger CP groups, or drop it (--drop-too-long)"};
}

}  // namespace v0
}  // namespace dyncp
