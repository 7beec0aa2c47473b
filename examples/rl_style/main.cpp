// SPDX-License-Identifier: Apache-2.0
// Reinforcement learning on Dynamic-CP: see run.hpp for the options, worker.hpp for an iteration.
#include "run.hpp"

#include <dyncp/io/table.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using megatron_style::scheduler;

/// The fastest iteration of several.
struct times {
  double log_prob_s = 0;
  double train_s = 0;
  [[nodiscard]] double all_s() const noexcept { return log_prob_s + train_s; }
};

times fastest(const rl_style::run_result& run) {
  times out{run.iterations.front().log_prob_s, run.iterations.front().train_s};
  for (const rl_style::iteration_result& i : run.iterations) {
    out.log_prob_s = std::min(out.log_prob_s, i.log_prob_s);
    out.train_s = std::min(out.train_s, i.train_s);
  }
  return out;
}

/// Compares with one rank that holds whole sequences; 0 if all agrees within 1e-10.
int show_parity() {
  rl_style::run_options options;
  const std::vector<rl_style::reference_iteration> alone = rl_style::run_alone(options);
  dyncp::text_table table({"", "M train", "M log-probs", "log-probs", "advantages", "loss",
                           "gradients", "p / old p - 1"});
  int failed = 0;
  rl_style::iteration_result last;
  for (const bool one_plan : {false, true}) {
    options.reuse = one_plan ? dyncp::plan_reuse::always : dyncp::plan_reuse::if_equal;
    const rl_style::run_result run = rl_style::run_ranks(options, alone);
    if (!run.failures.empty()) throw std::runtime_error(run.failures.front());
    for (std::size_t i = 0; i < run.iterations.size(); ++i) {
      last = run.iterations[i];
      const double worst = std::max(
          {last.log_prob_error, last.advantage_error, last.loss_error, last.gradient_error});
      failed += worst <= 1e-10 ? 0 : 1;
      const auto error = [](double e) { return fmt::format("{:.1e}", e); };
      table.add({fmt::format("iteration {}, {}", i, one_plan ? "one plan" : "two budgets"),
                 std::to_string(last.train_micro_batches),
                 std::to_string(last.log_prob_micro_batches), error(last.log_prob_error),
                 error(last.advantage_error), error(last.loss_error), error(last.gradient_error),
                 error(last.first_ratio_error)});
    }
  }
  fmt::print(
      "{} rollouts an iteration, {} ranks, {} tokens a rank in training, {} for the "
      "log-probabilities\ndeviations from one rank with whole sequences:\n{}",
      options.rollouts.prompts * options.rollouts.answers, options.ranks,
      options.train_tokens_per_rank, options.log_prob_tokens_per_rank, table.render("  "));
  fmt::print(
      "  {} tokens in the loss; inputs sent whole {:.1f} KiB, split {:.1f} KiB, merged "
      "{:.1f} KiB\n\n",
      last.loss_tokens, static_cast<double>(last.whole_bytes) / 1024,
      static_cast<double>(last.split_bytes) / 1024, static_cast<double>(last.merged_bytes) / 1024);
  return failed;
}

/// `outside`: time without training (generating, judging), in training steps under static CP.
int show_gain(double outside) {
  rl_style::run_options options;
  options.ranks = 8;
  options.static_cp = 8;
  options.rollouts = {.prompts = 16, .answers = 4, .longest = 600, .seed = 5};
  options.iterations = 3;
  options.updates = 1;
  std::vector<times> of;
  for (const scheduler who : {scheduler::static_cp, scheduler::dynamic_cp}) {
    options.plan_by = who;
    const rl_style::run_result run = rl_style::run_ranks(options, {});
    if (!run.failures.empty()) throw std::runtime_error(run.failures.front());
    of.push_back(fastest(run));
  }
  const double outside_s = outside * of[0].all_s();
  const auto gain = [](double before, double after) { return 100.0 * (before / after - 1.0); };
  fmt::print("{} rollouts, {} ranks; virtual times of static CP {} and Dynamic-CP\n",
             options.rollouts.prompts * options.rollouts.answers, options.ranks, options.static_cp);
  fmt::print("  log-probabilities {:.1f} ms, {:.1f} ms: {:+.0f} %\n", 1e3 * of[0].log_prob_s,
             1e3 * of[1].log_prob_s, gain(of[0].log_prob_s, of[1].log_prob_s));
  fmt::print("  updates           {:.1f} ms, {:.1f} ms: {:+.0f} %\n", 1e3 * of[0].train_s,
             1e3 * of[1].train_s, gain(of[0].train_s, of[1].train_s));
  fmt::print("  end to end, with {:.1f} ms outside: {:+.0f} %\n", 1e3 * outside_s,
             gain(of[0].all_s() + outside_s, of[1].all_s() + outside_s));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    double outside = 1.0;
    if (argc == 3 && std::string(argv[1]) == "--outside") {
      outside = std::atof(argv[2]);
    } else if (argc > 1) {
      throw std::invalid_argument(
          "usage: rl_style [--outside TIMES]\n"
          "  TIMES: time without training, as a multiple of a step under static CP (1)");
    }
    const int failed = show_parity();
    return failed + show_gain(outside) == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 2;
  }
}
