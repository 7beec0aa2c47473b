// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "evaluate.hpp"
#include "input.hpp"

#include <dyncp/core/error.hpp>
#include <dyncp/plan/lower_bounds.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/problem.hpp>

#include <string>
#include <vector>

namespace tool {

/// Exit status: 0 valid, 1 infeasible or invalid, 2 usage (an option, name or file).
[[nodiscard]] int exit_status(dyncp::errc code) noexcept;

/// Prints an error on stderr with its value, limit and hint, and as JSON on stdout if asked.
/// Returns the exit status.
int report_error(const dyncp::error& e, bool json);

/// The job and the batch, two lines.
[[nodiscard]] std::string describe_problem(const dyncp::problem& p);

/// Times, shares, memory and the mix of CP sizes; the bound where it is known.
[[nodiscard]] std::string describe_statistics(const dyncp::plan_statistics& s,
                                              const dyncp::certificate* bounds = nullptr);

/// A table of CP sizes: packs, sequences, tokens of each.
[[nodiscard]] std::string describe_mix(const std::vector<dyncp::cp_usage>& mix);

/// What to think of a mix of a single CP size; empty for others.
[[nodiscard]] std::string mix_hint(const std::vector<dyncp::cp_usage>& mix,
                                   const dyncp::problem& p);

/// Padded over real tokens, minus one.
[[nodiscard]] double padding_share(const dyncp::plan_statistics& s);

/// One line a micro-batch: groups, sequences, tokens, times; the middle left out unless `all`.
[[nodiscard]] std::string describe_micro_batches(const dyncp::plan& plan,
                                                 const dyncp::problem& problem,
                                                 const evaluation& e, bool all);

/// The counts of what was left out of the batch; empty when nothing was.
[[nodiscard]] std::string describe_selection(const dyncp::selected_batch& b);

}  // namespace tool
