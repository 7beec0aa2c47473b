// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "formulas.hpp"
#include "megatron_style/planning.hpp"
#include "rollouts.hpp"

#include "megatron_style/model/config.hpp"

#include <dyncp/trainer/pass_plans.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace rl_style {

struct run_options {
  megatron_style::model_config model{.layers = 2};
  rollout_batch rollouts;
  algorithm rules;
  std::int32_t ranks = 4;  ///< dp * cp
  std::int32_t static_cp = 4;
  megatron_style::scheduler plan_by = megatron_style::scheduler::dynamic_cp;
  std::int64_t train_tokens_per_rank = 96;
  /// Budget of the pass that only computes log-probabilities; 0: that of training.
  std::int64_t log_prob_tokens_per_rank = 192;
  /// `always`: that pass runs on the plan of the training; its log-probabilities are then the
  /// training's, bit for bit.
  dyncp::plan_reuse reuse = dyncp::plan_reuse::if_equal;
  std::int32_t iterations = 3;
  std::int32_t updates = 2;  ///< of the policy with the rollouts of an iteration
  double learning_rate = 0.02;
};

/// What one rank with whole sequences computes, for all rollouts of an iteration.
struct reference_iteration {
  std::vector<std::vector<double>> log_probs;   // (rollouts, length), before the first update
  std::vector<std::vector<double>> advantages;  // (rollouts, length)
  std::vector<double> losses;                   // (updates)
  std::vector<std::vector<double>> gradients;   // (updates, weights)
};
[[nodiscard]] std::vector<reference_iteration> run_alone(const run_options& options);

struct iteration_result {
  std::int32_t train_micro_batches = 0;
  std::int32_t log_prob_micro_batches = 0;
  double loss = 0;  ///< of the last update
  // Largest deviations from the reference, over all ranks; losses and gradients relative.
  double log_prob_error = 0;
  double advantage_error = 0;
  double loss_error = 0;
  double gradient_error = 0;
  double first_ratio_error = 0;       ///< of p / old p from 1 before the first update
  std::int64_t loss_tokens = 0;       ///< unique tokens that count
  std::int64_t terminal_rewards = 0;  ///< found on the row of their last token, on its rank
  double log_prob_s = 0;              ///< virtual time of the pass
  double train_s = 0;                 ///< virtual time of all updates
  std::int64_t whole_bytes = 0;       ///< of inputs, sent to the ranks that work on them
  std::int64_t split_bytes = 0;       ///< of fields of the loss
  std::int64_t merged_bytes = 0;      ///< of log-probabilities
};

struct run_result {
  std::vector<iteration_result> iterations;
  std::vector<std::string> failures;
};

/// The same on a thread for each rank. `compare` may be empty.
[[nodiscard]] run_result run_ranks(const run_options& options,
                                   const std::vector<reference_iteration>& compare);

}  // namespace rl_style
