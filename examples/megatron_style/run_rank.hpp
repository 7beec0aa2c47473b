// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "micro_batch.hpp"
#include "planning.hpp"
#include "run.hpp"
#include "samples.hpp"
#include "trainer.hpp"

#include <dyncp/problem/problem.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/trainer/data_iterator.hpp>
#include <dyncp/trainer/share_step.hpp>
#include <dyncp/trainer/step_vote.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace megatron_style {
namespace detail {

[[nodiscard]] inline std::vector<dyncp::sequence> lengths_of(const std::vector<sample>& samples) {
  std::vector<dyncp::sequence> out;
  for (const sample& s : samples) out.push_back({s.id, s.length, -1});
  return out;
}

[[nodiscard]] inline job job_of(const run_options& o) {
  job out;
  out.model = o.model;
  out.world = o.world;
  out.limits = {static_cast<std::int32_t>(o.max_tokens_per_rank),
                static_cast<std::int32_t>(o.global_batch_size), o.world.domain};
  out.learning_rate = o.learning_rate;
  out.momentum = o.momentum;
  return out;
}

/// A NaN would slip through comparisons and through the maximum over ranks: it counts as infinite.
[[nodiscard]] inline double comparable(double error) noexcept {
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

/// The largest difference of this rank's gradients from the reference's, of its largest.
template <class T>
[[nodiscard]] double gradient_error(parameter_set<T>& mine, const reference<T>& all,
                                    std::size_t step) {
  const std::vector<T>& want = all.gradients[step];
  double largest = 0;
  for (const T g : want) largest = std::max(largest, std::abs(static_cast<double>(g)));
  double worst = 0;
  for (const parameter& p : mine.all()) {
    const auto whole = std::find_if(all.parameters.begin(), all.parameters.end(),
                                    [&](const parameter& q) { return q.name == p.name; });
    for (std::int64_t r = 0; r < p.rows; ++r) {
      for (std::int64_t c = 0; c < p.cols; ++c) {
        const double got = static_cast<double>(
            mine.gradients()[p.offset + static_cast<std::size_t>(r * p.cols + c)]);
        const double wanted = static_cast<double>(
            want[whole->offset + static_cast<std::size_t>((p.row + r) * whole->cols + p.col + c)]);
        worst = std::max(worst, comparable(std::abs(got - wanted)));
      }
    }
  }
  return comparable(worst / largest);
}

/// What all processes of one rank of the domain do next; nothing at the end of the data. Tensor
/// rank 0 of the first stage tells the others. The last stage reads and plans by itself and may
/// fail, or plan something else: before the first collective of the step all compare what they are
/// about to do, and throw the same error if they differ.
template <dyncp::host_channel C>
[[nodiscard]] std::optional<dyncp::step_metadata> agreed_step(
    C& model, bool holds_data, std::int64_t steps_done,
    const dyncp::result<std::optional<dyncp::step_metadata>>& own) {
  auto shared = dyncp::share_step(model, own, 0);
  const auto& mine = holds_data && shared ? own : shared;
  const bool more = mine && mine->has_value();
  dyncp::agree_on_step(model, more ? (*mine)->iteration : steps_done, more ? (*mine)->digest : 0,
                       mine ? nullptr : &mine.error())
      .value();
  return std::move(shared).value();
}

}  // namespace detail

/// One rank from its first step to its last. Collective over all ranks of the job.
template <class T, dyncp::backend B>
[[nodiscard]] std::vector<step_result> run_rank(B& world, B& domain, const run_options& options,
                                                const reference<T>* compare) {
  trainer<T, B> model(world, domain, detail::job_of(options));
  const coordinates at = model.at();
  const dyncp::problem problem =
      make_problem(options.model, options.world, options.static_cp, options.max_tokens_per_rank,
                   static_cast<std::int32_t>(sizeof(T)), options.cluster);
  dyncp::data_iterator_options reading;
  reading.global_batch_size = options.global_batch_size;
  reading.ahead = options.plans_ahead;
  auto batches = dyncp::make_data_iterator(
      detail::lengths_of(options.samples), batch_scheduler(options.plan_by, problem), problem,
      reading, [&options](const dyncp::sequence& s) {
        return options.read(options.samples[static_cast<std::size_t>(s.id)],
                            options.model.vocabulary);
      });

  // Tensor rank 0 of the first and of the last stage hold data, each with an iterator of its own.
  const bool holds_data = at.tp == 0 && (at.stage == 0 || at.stage == options.world.stages - 1);
  std::vector<step_result> results;
  for (std::size_t i = 0;; ++i) {
    auto read = holds_data ? batches.next(model.pool())
                           : dyncp::result<std::optional<dyncp::training_step<token_sample>>>(
                                 std::optional<dyncp::training_step<token_sample>>{});
    auto metadata =
        detail::agreed_step(model.comms().model, holds_data, static_cast<std::int64_t>(i),
                            dyncp::metadata_of(read));
    if (!metadata) return results;
    const known_step step{std::move(*metadata), std::move(read).value()};

    step_result result;
    result.report = model.run(step);
    if (compare != nullptr) {
      const double loss = compare->losses[i];
      std::vector<double> errors = {
          detail::comparable(std::abs(result.report.loss - loss) / std::abs(loss)),
          detail::gradient_error(model.parameters(), *compare, i)};
      dyncp::all_reduce(model.comms().all, std::span(errors), dyncp::reduction::maximum).value();
      result.from_reference = {errors[0], errors[1]};
    }
    if (step.data) {
      result.plan = step.data->statistics();
      result.plan_wait_s = step.data->costs().plan_wait_s;
    }
    results.push_back(std::move(result));
    model.update();
  }
}

}  // namespace megatron_style
