// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "input.hpp"
#include "options.hpp"

#include <dyncp/core/result.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/planner/planner.hpp>

#include <string>

namespace tool {

/// The plan file of a plan that was made from an input.
[[nodiscard]] dyncp::plan_document make_document(const dyncp::problem& problem,
                                                 const dyncp::selected_batch& batch,
                                                 const std::string& packer,
                                                 const dyncp::planned& made);

/// Simulates the plan and writes its Chrome trace. Errors: overflow, io_error.
[[nodiscard]] dyncp::result<void> write_trace(const std::string& path, const dyncp::plan& plan,
                                              const dyncp::problem& problem);

/// An error that names a sequence by its place in the batch also tells its line in the file.
[[nodiscard]] dyncp::error with_line(dyncp::error e, const dyncp::selected_batch& batch,
                                     const std::string& source);

}  // namespace tool
