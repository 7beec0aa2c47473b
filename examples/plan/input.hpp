// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"
#include "packers.hpp"

#include <dyncp/core/result.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/io/plan_document.hpp>
#include <dyncp/problem/problem.hpp>

#include <cstdint>
#include <string>

namespace tool {

/// The lengths that --lengths, --format, --shuffle and --atomic name. Errors: those of the readers.
[[nodiscard]] dyncp::result<dyncp::length_list> load_lengths(const options& o);

/// The job and its limits, without sequences. Errors: those of the specs and of `check(parallel)`.
[[nodiscard]] dyncp::result<dyncp::problem> load_job(const options& o);

/// The batch number `index` of --batch sequences, as --min-length to --drop-empty select it.
/// `static_only`: the packer makes groups of --cp alone, so others cannot hold a long sequence.
[[nodiscard]] dyncp::result<dyncp::selected_batch> take_batch(const options& o,
                                                              const dyncp::length_list& list,
                                                              const dyncp::problem& job,
                                                              bool static_only,
                                                              std::int64_t index = 0);

/// A problem and where its sequences came from.
struct input {
  dyncp::problem problem;
  dyncp::selected_batch batch;
  std::string source;
};

/// All of it for the first batch, checked.
[[nodiscard]] dyncp::result<input> load_input(const options& o, bool static_only);

/// --pack-tokens and --micro-batch-size. Errors: invalid_argument.
[[nodiscard]] dyncp::result<packer_parameters> load_parameters(const options& o);

/// A plan file and the problem it answers: its own parallel spec, limits, model and cluster where
/// it has them, changed by the options that were given.
struct plan_input {
  dyncp::plan_document document;
  dyncp::problem problem;
};
[[nodiscard]] dyncp::result<plan_input> load_plan(const options& o);

}  // namespace tool
