// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace megatron_style {

/// What the command line says.
struct demo_options {
  world_shape world{4, 2, 1, 1};
  std::int32_t static_cp = 4;
  std::int32_t steps = 20;
  std::int32_t batch = 24;
  bool single = false;  ///< float instead of double
  bool mpi = false;
};

/// The options of a run of `steps` batches of long-tailed samples, 8 to `longest` tokens.
[[nodiscard]] run_options make_run(const demo_options& demo, std::int32_t longest,
                                   std::int64_t max_tokens_per_rank);

/// Largest deviation that counts as equal: rounding of sums in another order, grown over 20 steps.
[[nodiscard]] constexpr double parity_bound(bool single) noexcept {
  return single ? 2e-5 : 1e-10;
}

/// Trains with each scheduler and compares with the dense rank; 0 if all agree.
int show_parity(const demo_options& demo);

/// A scheduler in the race: the fastest step of several.
struct race_entry {
  scheduler who = scheduler::packing_only;
  step_result best;
};
/// Runs the same batch with each scheduler, several times. Throws if a rank fails.
[[nodiscard]] std::vector<race_entry> race(const demo_options& demo, std::int32_t rounds);
/// True if schedulers whose simulated times differ by more than `margin` have virtual times in the
/// same order.
[[nodiscard]] bool same_order(const std::vector<race_entry>& entries, double margin) noexcept;

/// Compares the schedulers by virtual makespan; 0 if their order is the simulator's.
int show_race(const demo_options& demo);

/// What planning ahead of a large job costs its trainer.
struct planning_report {
  std::int64_t sequences = 0;  ///< of a batch
  double planning_s = 0;       ///< longest of a batch
  double iteration_s = 0;      ///< shortest simulated one
  double first_wait_s = 0;     ///< nothing was planned ahead of the first iteration
  double steady_wait_s = 0;    ///< all later iterations together
  std::int32_t waits = 0;      ///< later iterations whose plan was not there when it was needed
};
/// Plans `iterations` batches of 2048 sequences for a 13B model on 512 GPUs, without training it;
/// `ahead` of the iteration that trains: with 0 each plan is begun when it is needed.
[[nodiscard]] planning_report plan_ahead(std::int32_t iterations, std::int32_t ahead = 1);
int show_planning();

}  // namespace megatron_style
