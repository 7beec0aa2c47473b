// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "evaluate.hpp"
#include "input.hpp"

#include <dyncp/core/error.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/problem.hpp>

#include <string>

namespace tool {

/// Exit status: 0 valid, 1 infeasible or invalid, 2 usage (an option, name or file).
[[nodiscard]] int exit_status(dyncp::errc code) noexcept;

/// Prints an error on stderr with its value, limit and hint, and as JSON on stdout if asked.
/// Returns the exit status.
int report_error(const dyncp::error& e, bool json);

/// The job and the batch, two lines.
[[nodiscard]] std::string describe_problem(const dyncp::problem& p);

/// Times, shares, memory and the mix of CP sizes.
[[nodiscard]] std::string describe_statistics(const dyncp::plan_statistics& s);

/// One line a micro-batch: groups, sequences, tokens, times; the middle left out unless `all`.
[[nodiscard]] std::string describe_micro_batches(const dyncp::plan& plan,
                                                 const dyncp::problem& problem,
                                                 const evaluation& e, bool all);

/// The counts of what was left out of the batch; empty when nothing was.
[[nodiscard]] std::string describe_selection(const dyncp::selected_batch& b);

}  // namespace tool
