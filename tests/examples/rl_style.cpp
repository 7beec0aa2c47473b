// SPDX-License-Identifier: Apache-2.0
// The example's iteration of reinforcement learning: equal to one rank with whole sequences.
#include "rl_style/formulas.hpp"
#include "rl_style/rollouts.hpp"
#include "rl_style/run.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace rl_style;
using megatron_style::scheduler;

namespace {

run_options small_run() {
  run_options o;
  o.rollouts = {.prompts = 6, .answers = 2, .longest = 200, .seed = 3};
  o.iterations = 2;
  o.train_tokens_per_rank = 72;
  o.log_prob_tokens_per_rank = 160;
  return o;
}

std::int64_t response_tokens(const run_options& o, std::int64_t iteration) {
  std::int64_t sum = 0;
  for (const rollout& r : make_rollouts(o.rollouts, iteration)) sum += r.response;
  return sum;
}

void check_equal(const run_options& o, const run_result& run) {
  REQUIRE(run.failures == std::vector<std::string>{});
  REQUIRE(run.iterations.size() == static_cast<std::size_t>(o.iterations));
  for (std::size_t k = 0; k < run.iterations.size(); ++k) {
    const iteration_result& i = run.iterations[k];
    CHECK(i.log_prob_error <= 1e-10);
    CHECK(i.advantage_error <= 1e-10);
    CHECK(i.loss_error <= 1e-10);
    CHECK(i.gradient_error <= 1e-10);
    // Each token counts once, however many ranks share its sequence.
    CHECK(i.loss_tokens == response_tokens(o, static_cast<std::int64_t>(k)));
    CHECK(i.terminal_rewards == o.rollouts.prompts * o.rollouts.answers);
  }
}

}  // namespace

TEST_CASE("losses and gradients are those of one rank, under static and dynamic CP") {
  run_options o = small_run();
  const auto alone = run_alone(o);
  for (const scheduler who : {scheduler::static_cp, scheduler::dynamic_cp}) {
    o.plan_by = who;
    const run_result run = run_ranks(o, alone);
    check_equal(o, run);
    // The pass without gradients has a budget, and so a plan, of its own.
    CHECK(run.iterations[0].log_prob_micro_batches < run.iterations[0].train_micro_batches);
    CHECK(run.iterations[0].whole_bytes > 0);
    CHECK(run.iterations[0].split_bytes > 0);
    CHECK(run.iterations[0].merged_bytes > 0);
  }
}

TEST_CASE("over one plan the log-probabilities of both passes are the same bits") {
  run_options o = small_run();
  o.reuse = dyncp::plan_reuse::always;
  const run_result run = run_ranks(o, run_alone(o));
  check_equal(o, run);
  for (const iteration_result& i : run.iterations) {
    CHECK(i.first_ratio_error == 0.0);
    CHECK(i.log_prob_micro_batches == i.train_micro_batches);
  }
}

TEST_CASE("a budget of 0 for the log-probabilities is that of training") {
  run_options o = small_run();
  o.iterations = 1;
  o.log_prob_tokens_per_rank = 0;
  const run_result run = run_ranks(o, run_alone(o));
  check_equal(o, run);
  CHECK(run.iterations[0].log_prob_micro_batches == run.iterations[0].train_micro_batches);
}

TEST_CASE("images are whole where their loss is split") {
  run_options o = small_run();
  o.iterations = 1;
  bool split_image = false;
  for (const rollout& r : make_rollouts(o.rollouts, 0)) {
    // Longer than one rank's budget: several ranks share it, and all need the mean of its patches.
    split_image = split_image || (r.patches > 0 && r.length > o.train_tokens_per_rank);
  }
  CHECK(split_image);
  check_equal(o, run_ranks(o, run_alone(o)));
}

TEST_CASE("the clipped loss and its weight") {
  const algorithm a{.clip = 0.2};
  // Inside the clip the weight is the derivative by -log p.
  const token_loss inside = policy_loss(-1.0, -1.05, 2.0, a);
  CHECK(inside.loss == doctest::Approx(-2.0 * std::exp(0.05)));
  CHECK(inside.weight == doctest::Approx(2.0 * std::exp(0.05)));
  // Beyond it, in the direction that the advantage asks for, nothing pulls further.
  CHECK(policy_loss(-1.0, -2.0, 2.0, a).weight == 0.0);
  CHECK(policy_loss(-1.0, -2.0, 2.0, a).loss == doctest::Approx(-2.4));
  CHECK(policy_loss(-2.0, -1.0, -2.0, a).weight == 0.0);
  CHECK(policy_loss(-1.0, -2.0, -2.0, a).weight < 0.0);
}
