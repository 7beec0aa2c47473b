// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"
#include "packers.hpp"

namespace tool {

// Each runs one subcommand and returns the exit status.
[[nodiscard]] int run_plan(const options& o);
[[nodiscard]] int run_compare(const options& o);
[[nodiscard]] int run_check(const options& o);
[[nodiscard]] int run_presets(const options& o);
[[nodiscard]] int run_generate(const options& o);
[[nodiscard]] int run_describe(const options& o);

// Forms of `plan`: many batches, many numbers of micro-batches.
[[nodiscard]] int run_batches(const options& o, const packer_info& packer);
[[nodiscard]] int run_curve(const options& o, const packer_info& packer);

}  // namespace tool
