// SPDX-License-Identifier: Apache-2.0
// Reinforcement learning on Dynamic-CP: see run.hpp for the options, worker.hpp for an iteration.
#include "gain.hpp"
#include "run.hpp"

#include <dyncp/io/table.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace {

using megatron_style::scheduler;

/// Compares with one rank that holds whole sequences; 0 if all agrees within 1e-10.
int show_parity() {
  rl_style::run_options options;
  const std::vector<rl_style::reference_iteration> alone = rl_style::run_alone(options);
  dyncp::text_table table({"", "micro-batches", "log-probs", "advantages", "loss", "gradients",
                           "p / old p - 1"});
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
                 fmt::format("{} + {}", last.log_prob_micro_batches, last.train_micro_batches),
                 error(last.log_prob_error),
                 error(last.advantage_error), error(last.loss_error), error(last.gradient_error),
                 error(last.first_ratio_error)});
    }
  }
  fmt::print(
      "{} rollouts an iteration on {} ranks; a rank holds {} tokens in the pass for "
      "log-probabilities, {} in an update\ndeviations from one rank with whole sequences:\n{}",
      options.rollouts.prompts * options.rollouts.answers, options.ranks,
      options.log_prob_tokens_per_rank, options.train_tokens_per_rank, table.render("  "));
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
  std::vector<rl_style::iteration_times> of;
  for (const scheduler who : {scheduler::static_cp, scheduler::dynamic_cp}) {
    options.plan_by = who;
    const rl_style::run_result run = rl_style::run_ranks(options, {});
    if (!run.failures.empty()) throw std::runtime_error(run.failures.front());
    of.push_back(rl_style::fastest(run.iterations));
  }
  for (rl_style::iteration_times& t : of) t.outside_s = outside * of[0].training_s();
  dyncp::text_table table({"virtual ms of an iteration",
                           fmt::format("static CP {}", options.static_cp), "Dynamic-CP", "gain"});
  for (const rl_style::gain_row& g : rl_style::gains(of[0], of[1])) {
    table.add({g.what, fmt::format("{:.1f}", 1e3 * g.before_s),
               fmt::format("{:.1f}", 1e3 * g.after_s), fmt::format("{:+.0f} %", 100.0 * g.gain())});
  }
  fmt::print("{} rollouts on {} ranks; {:.1f} ms of an iteration are spent outside training\n{}",
             options.rollouts.prompts * options.rollouts.answers, options.ranks,
             1e3 * of[0].outside_s, table.render("  "));
  return 0;
}

constexpr const char* usage =
    "usage: rl_style [--outside TIMES]\n"
    "  TIMES: time without training, as a multiple of a step under static CP (1)\n";

double times_of(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !(value >= 0 && value <= 1e6)) {
    throw std::invalid_argument("--outside takes a number from 0 to 1000000, not '" + text + "'");
  }
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    double outside = 1.0;
    if (words.size() == 2 && words[0] == "--outside") {
      outside = times_of(words[1]);
    } else if (words == std::vector<std::string>{"--help"}) {
      fmt::print("{}", usage);
      return 0;
    } else if (!words.empty()) {
      throw std::invalid_argument(usage);
    }
    const int failed = show_parity();
    return failed + show_gain(outside) == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 2;
  }
}
