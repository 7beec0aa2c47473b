// SPDX-License-Identifier: Apache-2.0
// The example's iteration of reinforcement learning: equal to one rank with whole sequences.
#include "rl_style/formulas.hpp"
#include "rl_style/gain.hpp"
#include "rl_style/rollouts.hpp"
#include "rl_style/run.hpp"
#include "rl_style/worker.hpp"

#include "megatron_style/thread_ranks.hpp"

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
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

/// Iterates with options of its own on the last rank; all ranks must end with one error.
dyncp::error common_error(const run_options& most, const run_options& last) {
  std::mutex mutex;
  std::vector<dyncp::error> errors;
  const auto failures = megatron_style::run_thread_ranks(
      {most.ranks, 1, 1, 1}, [&](backend& world, backend& domain) {
        try {
          worker rank(domain, world.fabric().rank() == most.ranks - 1 ? last : most);
          static_cast<void>(rank.iterate(0, nullptr));
        } catch (const dyncp::bad_result& e) {
          const std::lock_guard lock(mutex);
          errors.push_back(e.error());
        }
      });
  CHECK(failures == std::vector<std::string>{});
  REQUIRE(errors.size() == static_cast<std::size_t>(most.ranks));
  for (const dyncp::error& e : errors) {
    CHECK(dyncp::to_string(e.code) == dyncp::to_string(errors[0].code));
    CHECK(e.message() == errors[0].message());
  }
  return errors[0];
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

TEST_CASE("a rank that alone cannot plan ends the iteration on all ranks alike") {
  const run_options most = small_run();
  for (const bool training : {true, false}) {
    run_options last = most;
    (training ? last.train_tokens_per_rank : last.log_prob_tokens_per_rank) = 8;
    const dyncp::error e = common_error(most, last);
    CHECK(e.code == dyncp::errc::sequence_too_long);
    CHECK_MESSAGE(e.what.find("rank 3: ") == 0, e.what);
  }
}

TEST_CASE("plans of either pass that differ are found before anything is sent") {
  const run_options most = small_run();
  for (int which = 0; which < 3; ++which) {
    run_options last = most;
    if (which == 0) last.plan_by = scheduler::static_cp;
    if (which == 1) last.train_tokens_per_rank += 8;
    if (which == 2) last.log_prob_tokens_per_rank += 8;
    const dyncp::error e = common_error(most, last);
    CHECK(e.code == dyncp::errc::mismatch);
    CHECK_MESSAGE(e.what.find("the plans of iteration 0 differ") == 0, e.what);
  }
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

TEST_CASE("gains of training and end to end, by hand") {
  // Training goes from 2 + 6 to 1 + 4 seconds; 12 seconds pass outside it.
  const auto rows = gains({2.0, 6.0, 12.0}, {1.0, 4.0, 12.0});
  CHECK(rows[0].gain() == doctest::Approx(1.0));
  CHECK(rows[1].gain() == doctest::Approx(0.5));
  CHECK(rows[2].before_s == 8.0);
  CHECK(rows[2].after_s == 5.0);
  CHECK(rows[2].gain() == doctest::Approx(0.6));
  CHECK(rows[3].before_s == 20.0);
  CHECK(rows[3].after_s == 17.0);
  CHECK(rows[3].gain() == doctest::Approx(3.0 / 17.0));
  // Nothing outside: both are the same. All of it outside: nothing is gained.
  const auto alone = gains({2.0, 6.0, 0.0}, {1.0, 4.0, 0.0});
  CHECK(alone[3].gain() == alone[2].gain());
  CHECK(gains({2.0, 6.0, 1e9}, {1.0, 4.0, 1e9})[3].gain() < 1e-8);

  const std::vector<iteration_result> iterations = {{.log_prob_s = 3.0, .train_s = 5.0},
                                                    {.log_prob_s = 2.0, .train_s = 9.0}};
  CHECK(fastest(iterations).log_prob_s == 2.0);
  CHECK(fastest(iterations).train_s == 5.0);
  CHECK(fastest(iterations).training_s() == 7.0);
}
