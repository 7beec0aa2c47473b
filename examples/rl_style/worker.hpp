// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "megatron_style/ring_layers.hpp"
#include "megatron_style/virtual_clock.hpp"
#include "policy.hpp"
#include "rollouts.hpp"
#include "routes.hpp"
#include "run.hpp"

#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/trainer/loss.hpp>
#include <dyncp/trainer/pass_plans.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace rl_style {

/// One rank: it owns every ranks-th rollout, which it "generated", and works on the packs that the
/// plans give it.
class worker {
 public:
  worker(backend& domain, const run_options& options);

  /// One iteration: log-probabilities, rewards and advantages, updates. Collective.
  [[nodiscard]] iteration_result iterate(std::int64_t iteration,
                                         const reference_iteration* compare);

 private:
  /// Rows of a micro-batch as the policy takes them, with what the attention needs.
  struct work {
    std::optional<dyncp::packed_seq_params> params;
    policy_rows rows;
    std::unique_ptr<attention<double>> attend;
    std::size_t begin = 0;  ///< of the rows in the rank's shares
  };
  /// Fields of the rollouts of this rank, whole, one behind the other.
  struct owned_fields {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> labels_plus_one;  // so that the zeros of padding are no labels
    std::vector<double> pixels;                 // (rows, patch_width)
    std::vector<double> log_probs;              // before the first update
    std::vector<double> frozen_log_probs;
    std::vector<double> terminal;  // 1 where a score belongs, else 0
    std::vector<double> advantages;
  };

  [[nodiscard]] dyncp::pass_plans plan_both(std::int64_t iteration);
  [[nodiscard]] std::unique_ptr<routes> routes_of(const dyncp::plan& plan);
  void load_owned();
  [[nodiscard]] std::vector<work> prepare(routes& way);
  [[nodiscard]] std::vector<double> log_probs(policy& model, routes& way,
                                              const std::vector<work>& works);
  void make_advantages();
  [[nodiscard]] dyncp::loss_part update(const std::vector<work>& works,
                                        std::span<const double> old_log_probs,
                                        std::span<const double> advantages, double& ratio_error);
  [[nodiscard]] std::int64_t terminal_rewards(routes& way);
  [[nodiscard]] std::vector<double> summed_gradients(const dyncp::loss_part& total);

  void advance(const work& w, double cpu_s);
  [[nodiscard]] dyncp::loss_part total(const dyncp::loss_part& mine);
  [[nodiscard]] double largest(double mine);
  [[nodiscard]] std::int64_t sum(std::int64_t mine);
  [[nodiscard]] double owned_error(const std::vector<std::vector<double>>& want,
                                   std::span<const double> have);
  template <class Visit>
  void for_each_owned(Visit visit) const;

  run_options options_;
  pool_type pool_;
  megatron_style::ring_layers<double, backend> layers_;
  policy model_;
  policy frozen_;
  megatron_style::virtual_clock clock_;
  std::vector<rollout> batch_;
  std::vector<dyncp::sequence> sequences_;  // (rollouts)
  std::vector<std::int32_t> owners_;        // (rollouts)
  owned_fields owned_;
};

}  // namespace rl_style
