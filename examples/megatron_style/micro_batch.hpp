// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/interfaces.hpp"
#include "model/stage.hpp"
#include "parallel.hpp"
#include "ring_layers.hpp"
#include "samples.hpp"

#include <dyncp/core/rank_range.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/trainer/step_metadata.hpp>
#include <dyncp/trainer/token_share.hpp>
#include <dyncp/trainer/training_step.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace megatron_style {

/// A micro-batch of one chunk on one rank, from its forward to its backward pass. Nothing is shared
/// between chunks: each has views and contexts of its own.
template <class T>
struct micro_batch {
  std::optional<dyncp::packed_seq_params> params;  ///< nothing: the rank is idle
  std::vector<std::int32_t> tokens;                // (rows), on the first virtual stage
  std::vector<std::int32_t> labels;                // (rows), on the last; -1: none
  std::unique_ptr<attention<T>> attend;
  stage_context<T> context;

  [[nodiscard]] model_batch<T> view() const noexcept {
    return {params ? params->local_tokens() : 0, tokens, labels, attend.get()};
  }
};

/// What a process knows of a step: all have the metadata, those that hold data the samples too.
struct known_step {
  dyncp::step_metadata metadata;
  std::optional<dyncp::training_step<token_sample>> data;
};

/// The iterator that the schedule asks for micro-batches: one per chunk.
template <class T, dyncp::backend B>
class chunk_iterator {
 public:
  chunk_iterator(const known_step& step, const dyncp::pipeline_place& place,
                 dyncp::group_pool<B>& pool, communicators<B>& comms, ring_layers<T, B>& layers)
      : metadata_(&step.metadata), place_(place), pool_(&pool), comms_(&comms), layers_(&layers) {
    if (step.data && place.holds_data()) view_ = step.data->view(place);
  }

  [[nodiscard]] std::unique_ptr<micro_batch<T>> next() {
    auto batch = std::make_unique<micro_batch<T>>();
    std::span<const token_sample> samples;
    if (view_) {
      const auto data = view_->next();
      if (!data->idle()) batch->params = *data->params;
      samples = data->samples;
    } else {
      const auto group_of = [this](dyncp::rank_range ranks) { return pool_->group(ranks); };
      batch->params = dyncp::bind(*metadata_, next_, group_of).value();
    }
    ++next_;
    if (!batch->params) return batch;
    const dyncp::packed_seq_params& params = *batch->params;
    batch->attend = layers_->bind(params);
    if (place_.first()) batch->tokens = field(params, samples, &token_sample::tokens, 0);
    if (place_.last()) batch->labels = field(params, samples, &token_sample::labels, -1);
    return batch;
  }

 private:
  /// Tensor rank 0 cuts its share out of the whole samples and tells the others.
  [[nodiscard]] std::vector<std::int32_t> field(const dyncp::packed_seq_params& params,
                                                std::span<const token_sample> samples,
                                                std::vector<std::int32_t> token_sample::*which,
                                                std::int32_t padding) {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(params.local_tokens()));
    if (view_) {
      rows = dyncp::cut_share<std::int32_t>(params, padding, [&](std::int32_t s, std::int32_t at) {
        return (samples[static_cast<std::size_t>(s)].*which)[static_cast<std::size_t>(at)];
      });
    }
    dyncp::broadcast(comms_->tp, std::as_writable_bytes(std::span(rows)), 0).value();
    return rows;
  }

  const dyncp::step_metadata* metadata_;
  dyncp::pipeline_place place_;
  dyncp::group_pool<B>* pool_;
  communicators<B>* comms_;
  ring_layers<T, B>* layers_;
  std::optional<dyncp::stage_view<token_sample>> view_;
  std::int32_t next_ = 0;
};

}  // namespace megatron_style
