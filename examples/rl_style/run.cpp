// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include "megatron_style/thread_ranks.hpp"
#include "worker.hpp"

#include <cstddef>

namespace rl_style {

run_result run_ranks(const run_options& options, const std::vector<reference_iteration>& compare) {
  run_result out;
  out.failures = megatron_style::run_thread_ranks(
      {options.ranks, 1, 1, 1}, [&](backend& world, backend& domain) {
        worker rank(domain, options);
        for (std::int32_t k = 0; k < options.iterations; ++k) {
          const auto i = static_cast<std::size_t>(k);
          const iteration_result result = rank.iterate(k, compare.empty() ? nullptr : &compare[i]);
          if (world.fabric().rank() == 0) out.iterations.push_back(result);
        }
      });
  return out;
}

}  // namespace rl_style
