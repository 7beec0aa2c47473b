// SPDX-License-Identifier: Apache-2.0
// A gated-delta-rule layer between the attention layers of a Dynamic-CP model: see cp_layer.hpp.
#include "run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

int main(int argc, char**) {
  if (argc > 1) {
    fmt::print(stderr, "usage: gdn: compares the layer on many ranks with one; no options\n");
    return 2;
  }
  gdn::run_options options;
  // Two long sequences that need all ranks, some that need a few, many short ones, one of a token.
  options.lengths = {500, 300, 180, 120, 90, 70, 33, 17, 40, 5, 1, 64, 28, 12, 9, 3};
  const gdn::run_result r = gdn::run_ranks(options);
  for (const std::string& f : r.failures) fmt::print(stderr, "{}\n", f);
  if (!r.failures.empty()) return 2;
  std::string sizes;
  for (const std::int32_t c : r.cp_sizes) sizes += " " + std::to_string(c);
  fmt::print("{} sequences on {} ranks in {} micro-batches, CP sizes{}\n", options.lengths.size(),
             options.ranks, r.micro_batches, sizes);
  fmt::print(
      "deviations from one rank: outputs {:.1e}, gradients of inputs {:.1e}, of weights "
      "{:.1e}\n",
      r.output_error, r.input_gradient_error, r.weight_gradient_error);
  fmt::print("sent: {:.1f} KiB of rows between layouts, {:.1f} KiB of states\n",
             static_cast<double>(r.row_bytes) / 1024, static_cast<double>(r.state_bytes) / 1024);
  const double worst = std::max({r.output_error, r.input_gradient_error, r.weight_gradient_error});
  return worst <= 1e-10 ? 0 : 1;
}
