// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/config.hpp"
#include "model/parameters.hpp"
#include "parallel.hpp"
#include "planning.hpp"
#include "samples.hpp"
#include "trainer.hpp"

#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/cluster_spec.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace megatron_style {

struct run_options {
  model_config model;
  world_shape world;
  scheduler plan_by = scheduler::dynamic_cp;
  std::int32_t static_cp = 1;
  std::int64_t max_tokens_per_rank = 0;
  dyncp::cluster_spec cluster = one_core();
  std::vector<sample> samples;
  token_sample (*read)(const sample&, std::int32_t vocabulary) = load;
  std::int64_t global_batch_size = 0;
  std::int32_t plans_ahead = 1;
  double learning_rate = 0.05;
  double momentum = 0.9;
};

/// Losses and gradients of every step, from one rank that takes samples one by one.
template <class T>
struct reference {
  std::vector<parameter> parameters;      // of the whole model
  std::vector<double> losses;             // (steps)
  std::vector<std::vector<T>> gradients;  // (steps, weights)
};
template <class T>
[[nodiscard]] reference<T> make_reference(const run_options& options);

/// How far a step is from the reference: the loss relative to it, the gradients' largest
/// difference relative to their largest value. Largest over all ranks.
struct deviation {
  double loss = 0;
  double gradient = 0;
};

struct step_result {
  step_report report;
  deviation from_reference;
  dyncp::plan_statistics plan;
  double plan_wait_s = 0;
};

struct run_result {
  std::vector<step_result> steps;     ///< as rank 0 has them
  std::vector<std::string> failures;  ///< of ranks; empty when all is well
  [[nodiscard]] deviation worst() const noexcept;
};

/// The whole job with a thread for each rank. `compare` may be null.
template <class T>
[[nodiscard]] run_result run_threads(const run_options& options, const reference<T>* compare);

/// This process as one rank of MPI_COMM_WORLD; rank 0 gets the steps. Fails if the example was
/// built without MPI, or if there are not as many processes as ranks. A rank that throws prints
/// what and ends the whole job.
[[nodiscard]] run_result run_mpi(const run_options& options, const reference<double>* compare);

}  // namespace megatron_style
