// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"

#include <dyncp/core/result.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/io/plan_document.hpp>
#include <dyncp/problem/problem.hpp>

#include <string>

namespace tool {

/// A problem and where its sequences came from.
struct input {
  dyncp::problem problem;
  dyncp::selected_batch batch;
  std::string source;
};

/// Presets or files, with --set applied; `fallback` where the option was not given.
struct specs {
  dyncp::model_spec model;
  dyncp::cluster_spec cluster;
};
[[nodiscard]] dyncp::result<specs> load_specs(const options& o, const specs& fallback);

/// What is planned when nothing is said: reference-13b twice.
[[nodiscard]] specs default_specs();

/// The problem that `plan` was asked for. `static_only`: the packer makes groups of --cp alone.
[[nodiscard]] dyncp::result<input> load_input(const options& o, bool static_only);

/// A plan file and the problem it answers: its own parallel spec, limits, model and cluster where
/// it has them, changed by the options that were given.
struct plan_input {
  dyncp::plan_document document;
  dyncp::problem problem;
};
[[nodiscard]] dyncp::result<plan_input> load_plan(const options& o);

/// Longest sequence that some allowed group can hold (with `static_only`: the static one); 0: none.
[[nodiscard]] std::int64_t longest_that_fits(const dyncp::problem& p, bool static_only);

}  // namespace tool
