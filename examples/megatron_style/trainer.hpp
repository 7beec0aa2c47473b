// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "descent.hpp"
#include "micro_batch.hpp"
#include "model/stage.hpp"
#include "parallel.hpp"
#include "ring_layers.hpp"
#include "schedule.hpp"
#include "virtual_clock.hpp"

#include <dyncp/attention/ring_context.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/trainer/loss.hpp>
#include <dyncp/trainer/training_step.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace megatron_style {

struct job {
  model_config model;
  world_shape world;
  dyncp::ring_limits limits;
  double learning_rate = 0.05;
  double momentum = 0.9;
};

/// What a step was like. Times are virtual; sums and the mean are over all ranks of the job.
struct step_report {
  double loss = 0;
  std::int64_t loss_tokens = 0;
  double makespan_s = 0;
  double busy_share = 0;       ///< of ranks * makespan; the rest is bubble and waits
  double pipeline_wait_s = 0;  ///< of a rank for other stages, mean
  double group_wait_s = 0;     ///< of a rank for its group, mean
  std::int64_t ring_bytes = 0;
  std::int64_t pipeline_bytes = 0;
  std::int64_t gradient_bytes = 0;

  /// The share of the time that is neither work nor waiting for the group: waiting for other
  /// stages, and for the last of them at the end.
  [[nodiscard]] double bubble_share() const noexcept {
    return makespan_s > 0 ? 1.0 - busy_share - group_wait_s / makespan_s : 0.0;
  }
};

/// What the schedule calls: a stage whose operations are timed and counted.
template <class T, dyncp::backend B>
class timed_stage {
 public:
  timed_stage(stage<T>& model, dyncp::group_pool<B>& pool, communicators<B>& comms,
              virtual_clock& clock)
      : model_(&model), pool_(&pool), comms_(&comms), clock_(&clock) {}

  [[nodiscard]] matrix<T> forward(std::int32_t chunk, std::unique_ptr<micro_batch<T>>& batch,
                                  matrix<T> x) {
    const double before = thread_seconds();
    matrix<T> y = model_->forward(chunk, batch->view(), std::move(x), batch->context);
    if (batch->params && model_->part().last(chunk)) loss += loss_of(*batch);
    advance(*batch, thread_seconds() - before);
    return y;
  }

  [[nodiscard]] matrix<T> backward(std::int32_t chunk, std::unique_ptr<micro_batch<T>>& batch,
                                   matrix<T> dy) {
    const double before = thread_seconds();
    matrix<T> dx = model_->backward(chunk, batch->view(), std::move(dy), batch->context);
    advance(*batch, thread_seconds() - before);
    return dx;
  }

  dyncp::loss_part loss;

 private:
  [[nodiscard]] static dyncp::loss_part loss_of(const micro_batch<T>& batch) {
    std::vector<std::uint8_t> mask;
    for (std::int32_t label : batch.labels) mask.push_back(label >= 0 ? 1 : 0);
    return dyncp::local_loss<T>(*batch.params, batch.context.head.losses, mask);
  }

  /// The members of the CP group and the tensor-parallel ranks run an operation together.
  void advance(const micro_batch<T>& batch, double cpu_s) {
    if (!batch.params) return;
    const operation_time own{clock_->now_s(), cpu_s};
    operation_time group = own;
    const auto meet = [&group](auto& members) {
      if (members.size() == 1) return;
      const std::vector<operation_time> all = dyncp::all_gather_value(members, group).value();
      for (const operation_time& t : all) group = together(group, t);
    };
    auto cp = pool_->channel(batch.params->group);
    meet(cp);
    meet(comms_->tp);
    clock_->operated(own, group);
  }

  stage<T>* model_;
  dyncp::group_pool<B>* pool_;
  communicators<B>* comms_;
  virtual_clock* clock_;
};

/// One rank of the job. Exceptions carry the typed errors of the library.
template <class T, dyncp::backend B>
class trainer {
 public:
  /// Collective: `world` connects all ranks of the job, `domain` those of this rank's DPxCP domain.
  trainer(B& world, B& domain, const job& what)
      : job_(what),
        comms_(world, what.world),
        pool_(std::move(dyncp::group_pool<B>::create(domain, {}).value())),
        tp_(comms_.tp),
        model_(what.model, part_of(comms_.at, what.world), tp_),
        layers_(pool_, what.model, what.world.tp, what.limits),
        pipe_(world, comms_, what.world, what.model.hidden, clock_),
        optimizer_(model_.parameters(), what.learning_rate, what.momentum) {}

  /// Forward and backward passes of all micro-batches; then the gradients are those of the mean
  /// loss of a token, summed over all ranks.
  [[nodiscard]] step_report run(const known_step& step) {
    const bytes before = bytes_sent();
    clock_.reset();
    parameters().clear_gradients();
    timed_stage<T, B> timed(model_, pool_, comms_, clock_);
    std::vector<chunk_iterator<T, B>> iterators;
    for (std::int32_t c = 0; c < job_.world.chunks; ++c) {
      iterators.emplace_back(step,
                             dyncp::pipeline_place{comms_.at.stage, job_.world.stages, c,
                                                   job_.world.chunks, comms_.at.tp},
                             pool_, comms_, layers_);
    }
    const schedule_place place{comms_.at.stage, job_.world.stages, job_.world.chunks};
    const std::int32_t micro_batches = step.metadata.num_micro_batches();
    if (place.chunks == 1) {
      forward_backward_1f1b(timed, pipe_, std::span(iterators), place, micro_batches);
    } else {
      forward_backward_interleaved(timed, pipe_, std::span(iterators), place, micro_batches);
    }
    pipe_.drain();
    const dyncp::loss_part total = sum_losses(timed.loss);
    sum_gradients(total);
    return report(total, before);
  }

  void update() { optimizer_.step(); }

  [[nodiscard]] parameter_set<T>& parameters() noexcept { return model_.parameters(); }
  [[nodiscard]] const coordinates& at() const noexcept { return comms_.at; }
  [[nodiscard]] dyncp::group_pool<B>& pool() noexcept { return pool_; }
  [[nodiscard]] communicators<B>& comms() noexcept { return comms_; }
  [[nodiscard]] const stage<T>& model() const noexcept { return model_; }

 private:
  struct bytes {
    std::int64_t ring = 0;
    std::int64_t pipeline = 0;
  };

  [[nodiscard]] static model_part part_of(const coordinates& at, const world_shape& world) {
    return {at.stage, world.stages, world.chunks, at.tp, world.tp};
  }
  [[nodiscard]] bytes bytes_sent() const noexcept {
    return {layers_.bytes_sent(), pipe_.bytes_sent()};
  }

  /// Over DPxCP on the last stage, which then tells the others.
  [[nodiscard]] dyncp::loss_part sum_losses(const dyncp::loss_part& own) {
    auto domain = pool_.channel(pool_.everyone());
    dyncp::loss_part total;
    const std::vector<dyncp::loss_part> parts = dyncp::all_gather_value(domain, own).value();
    for (const dyncp::loss_part& part : parts) total += part;
    const std::int32_t last = (job_.world.stages - 1) * job_.world.tp;
    dyncp::broadcast(comms_.model, std::as_writable_bytes(std::span(&total, 1)), last).value();
    return total;
  }

  void sum_gradients(const dyncp::loss_part& total) {
    parameter_set<T>& p = parameters();
    auto domain = pool_.channel(pool_.everyone());
    dyncp::all_reduce(domain, p.gradients(), dyncp::reduction::sum).value();
    if (job_.world.stages > 1 && comms_.ends.size() > 1) {
      matrix_map<T> shared = p.gradient(p.embedding());
      dyncp::all_reduce(comms_.ends,
                        std::span(shared.data(), static_cast<std::size_t>(shared.size())),
                        dyncp::reduction::sum)
          .value();
    }
    const T scale = static_cast<T>(dyncp::gradient_scale(total));
    for (T& g : p.gradients()) g *= scale;
  }

  [[nodiscard]] step_report report(const dyncp::loss_part& total, const bytes& before) {
    step_report out;
    const bytes after = bytes_sent();
    out.loss = dyncp::mean(total);
    out.loss_tokens = total.tokens;
    std::vector<double> sums = {clock_.busy_s(), clock_.pipeline_wait_s(), clock_.group_wait_s()};
    std::vector<double> latest = {clock_.now_s()};
    const std::int64_t gradients =
        static_cast<std::int64_t>(parameters().gradients().size() * sizeof(T)) *
        (job_.world.domain - 1);
    std::vector<std::int64_t> counts = {after.ring - before.ring, after.pipeline - before.pipeline,
                                        gradients};
    dyncp::all_reduce(comms_.all, std::span<double>(sums), dyncp::reduction::sum).value();
    dyncp::all_reduce(comms_.all, std::span<double>(latest), dyncp::reduction::maximum).value();
    dyncp::all_reduce(comms_.all, std::span<std::int64_t>(counts), dyncp::reduction::sum).value();
    const double ranks = job_.world.ranks();
    out.makespan_s = latest[0];
    out.busy_share = out.makespan_s > 0 ? sums[0] / (ranks * out.makespan_s) : 0.0;
    out.pipeline_wait_s = sums[1] / ranks;
    out.group_wait_s = sums[2] / ranks;
    out.ring_bytes = counts[0];
    out.pipeline_bytes = counts[1];
    out.gradient_bytes = counts[2];
    return out;
  }

  job job_;
  communicators<B> comms_;
  dyncp::group_pool<B> pool_;
  channel_tensor_parallel<T, typename communicators<B>::channel_type> tp_;
  stage<T> model_;
  ring_layers<T, B> layers_;
  virtual_clock clock_;
  stage_pipe<T, B> pipe_;
  descent<T> optimizer_;
};

}  // namespace megatron_style
