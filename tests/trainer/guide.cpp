// SPDX-License-Identifier: Apache-2.0
// The trainer of docs/guide-trainer.md, small enough to run: the page shows the parts between the
// marks, and tests/docs/check_snippets.py compares them with this file.
#include "trainer/batches.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/trainer/data_iterator.hpp>
#include <dyncp/trainer/loss.hpp>
#include <dyncp/trainer/micro_batch_scope.hpp>
#include <dyncp/trainer/share_step.hpp>
#include <dyncp/trainer/token_share.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

/// Stands for a model: the loss of a row is its label, its one layer reads the CP group.
struct toy_model {
  dyncp::cp_context cp;
  std::int32_t largest_group = 0;

  std::vector<double> forward(const std::vector<std::int32_t>& tokens,
                              const std::vector<std::int32_t>& labels) {
    largest_group = std::max(largest_group, cp.group.size());
    std::vector<double> losses(tokens.size());
    for (std::size_t i = 0; i < losses.size(); ++i) losses[i] = labels[i];
    return losses;
  }
};

/// The trainer's own schedule: it knows a number of micro-batches and a function, and no dyncp.
template <class ForwardStep>
void run_schedule(std::int32_t num_micro_batches, ForwardStep forward_step) {
  for (std::int32_t m = 0; m < num_micro_batches; ++m) forward_step(m);
}

using sample = std::vector<std::int32_t>;

sample read_from_disk(std::int64_t id, std::int64_t tokens) {
  return sample(static_cast<std::size_t>(tokens), static_cast<std::int32_t>(id % 7));
}

/// The mean loss of each iteration.
dyncp::result<std::vector<double>> train(dyncp_test::thread_pool& pool,
                                         const std::vector<std::int64_t>& lengths,
                                         std::int64_t budget) {
  // [job]
  dyncp::problem job;
  job.model = dyncp::find_model("llama-13b").value();
  job.cluster = dyncp::find_cluster("h100").value();
  job.parallel.ranks = pool.ranks();        // dp * cp
  job.parallel.pp = 4;
  job.limits.max_tokens_per_rank = budget;  // what one rank can hold of a micro-batch
  job.padding.zigzag = true;
  const dyncp::planner planner{dyncp::analytic_cost(job.model, job.cluster, job.parallel)};
  // [job]

  // [iterator]
  auto batches = dyncp::make_data_iterator(
      lengths, planner, job, {.global_batch_size = 16, .ahead = 1},
      [](const dyncp::sequence& s) { return read_from_disk(s.id, s.length); });
  // [iterator]

  std::vector<double> means;
  toy_model model;
  // [forward]
  const auto forward_step = [&](const dyncp::micro_batch_data<sample>& micro_batch) {
    const dyncp::packed_seq_params& params = *micro_batch.params;
    const dyncp::micro_batch_scope scope(model.cp, params);  // put back on every way out
    auto tokens = dyncp::cut_tokens<std::int32_t>(params, micro_batch.samples, 0);
    auto labels = dyncp::cut_labels<std::int32_t>(params, micro_batch.samples, -1);
    const std::vector<double> losses = model.forward(tokens.value(), labels.value());
    return dyncp::local_loss<double>(params, losses);
  };
  // [forward]
  for (;;) {
    // [step]
    auto step = batches.next(pool);    // the only new call in the training loop
    if (!step) return step.error();    // the same error on every rank
    if (!*step) break;                 // the data has ended
    dyncp::loss_part part;
    const auto one = [&](std::int32_t m) {
      const auto micro_batch = (*step)->micro_batch(m);
      if (!micro_batch.idle()) part += forward_step(micro_batch);
    };
    run_schedule((*step)->num_micro_batches(), one);
    // [step]
    // [loss]
    auto everyone = pool.channel(pool.everyone());
    auto sums = dyncp::all_reduce(everyone, std::span(&part.sum, 1), dyncp::reduction::sum);
    if (!sums) return sums.error();
    auto counts = dyncp::all_reduce(everyone, std::span(&part.tokens, 1), dyncp::reduction::sum);
    if (!counts) return counts.error();
    means.push_back(dyncp::mean(part));  // gradients are scaled by dyncp::gradient_scale(part)
    // [loss]
  }
  return means;
}

/// What a process without data does: stage 1 of 2 of the same rank.
dyncp::result<std::int32_t> follow(dyncp_test::thread_pool& pool,
                                   const std::vector<std::int64_t>& lengths) {
  const dyncp::problem job = dyncp_test::small_job(1);
  auto batches = dyncp::make_data_iterator(lengths, dyncp_test::planner_of(job), job,
                                           {.global_batch_size = 4, .rank = 0},
                                           dyncp_test::make_sample);
  dyncp::lone_channel alone;
  const auto groups = [&](dyncp::rank_range ranks) -> dyncp::result<dyncp::group_handle> {
    return dyncp::group_handle{pool.generation(), ranks, 0, -1};
  };
  const std::int32_t stage = pool.rank();
  auto model_parallel = pool.channel(pool.everyone());
  std::int32_t seen = 0;
  for (;;) {
    // [share]
    dyncp::result<std::optional<dyncp::step_metadata>> known{std::nullopt};
    if (stage == 0) known = dyncp::metadata_of(batches.next(alone, groups));
    known = dyncp::share_step(model_parallel, known, 0);  // one message; errors travel too
    if (!known) return known.error();
    if (!*known) break;
    for (std::int32_t m = 0; m < (*known)->num_micro_batches(); ++m) {
      auto params = dyncp::bind(**known, m, groups);  // with this process's own groups
      if (!params) return params.error();
      seen += *params ? (*params)->layout.sequences() : 0;
    }
    // [share]
  }
  return seen;
}

}  // namespace

TEST_CASE("the trainer of the guide: the loss does not depend on ranks or groups") {
  const auto lengths = dyncp_test::some_lengths(40, 300, 81);
  std::vector<std::vector<double>> runs;
  std::mutex mutex;
  for (const std::int32_t ranks : {1, 4}) {
    const auto results = dyncp_test::run_pool(
        {.ranks = ranks}, [&](dyncp_test::thread_pool& pool) -> dyncp::result<void> {
          auto means = train(pool, lengths, ranks == 1 ? 400 : 100);
          if (!means) return means.error();
          const std::lock_guard lock(mutex);
          runs.push_back(*means);
          return {};
        });
    CHECK(dyncp_test::complaints(results) == "");
  }
  REQUIRE(runs.size() == 5);
  for (const auto& run : runs) {
    REQUIRE(run.size() == 3);
    for (std::size_t k = 0; k < 3; ++k) {
      // Labels are id % 7 for all but the last token of each sample.
      double sum = 0;
      double count = 0;
      for (std::size_t i = 16 * k; i < std::min<std::size_t>(lengths.size(), 16 * k + 16); ++i) {
        sum += static_cast<double>(lengths[i] - 1) * static_cast<double>(i % 7);
        count += static_cast<double>(lengths[i] - 1);
      }
      CHECK(run[k] == doctest::Approx(sum / count).epsilon(1e-12));
    }
  }
}

TEST_CASE("the stages of the guide: those without data see every sequence in the metadata") {
  const std::vector<std::int64_t> lengths = {10, 20, 30, 40, 50};
  const auto results = dyncp_test::run_pool(
      {.ranks = 2}, [&](dyncp_test::thread_pool& pool) -> dyncp::result<void> {
        auto seen = follow(pool, lengths);
        if (!seen) return seen.error();
        return *seen == 5 ? dyncp::result<void>{} : dyncp_test::failed("sequences are missing");
      });
  CHECK(dyncp_test::complaints(results) == "");
}
