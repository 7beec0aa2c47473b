// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"

namespace tool {

// Each runs one subcommand and returns the exit status.
[[nodiscard]] int run_plan(const options& o);
[[nodiscard]] int run_check(const options& o);
[[nodiscard]] int run_presets(const options& o);

}  // namespace tool
