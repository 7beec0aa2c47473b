// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/config.hpp"
#include "model/interfaces.hpp"
#include "model/tensor.hpp"

#include <dyncp/attention/ring_attention.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/cpu/attention.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/trainer/rope.hpp>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace megatron_style {

/// The library's rotary embedding and ring attention as the attention of all layers of a stage.
/// `bind` gives that of one micro-batch, whose group and layout come from its packed_seq_params.
template <class T, dyncp::backend B>
class ring_layers {
  using ring_type = dyncp::ring_attention<T, B, dyncp::cpu::attention<>>;
  using context_type = typename ring_type::context;

 public:
  /// The pool outlives the layers. Limits: `dyncp::ring_limits`.
  ring_layers(dyncp::group_pool<B>& pool, const model_config& config, std::int32_t tp,
              const dyncp::ring_limits& limits)
      : pool_(&pool),
        ring_(std::move(ring_type::create(pool, {}, shape_of(config, tp), limits).value())),
        turns_(dyncp::rope_table::make({.dim = config.head_dim, .base = config.rope_base},
                                       std::int64_t{limits.tokens_per_rank} * limits.max_cp)
                   .value()),
        heads_(config.q_heads / tp),
        head_dim_(config.head_dim) {}

  [[nodiscard]] std::unique_ptr<attention<T>> bind(const dyncp::packed_seq_params& params) {
    std::unique_ptr<context_type> context;
    if (spare_.empty()) {
      context = std::make_unique<context_type>(std::move(ring_.make_context().value()));
    } else {
      context = std::move(spare_.back());
      spare_.pop_back();
    }
    ring_.prepare(*context, params, dyncp::attention_mask::causal, main_stream()).value();
    return std::make_unique<bound>(*this, std::move(context), params);
  }

  /// Bytes that this rank has sent around rings.
  [[nodiscard]] std::int64_t bytes_sent() const noexcept { return bytes_sent_; }

 private:
  class bound final : public attention<T> {
   public:
    bound(ring_layers& layers, std::unique_ptr<context_type> context,
          const dyncp::packed_seq_params& params)
        : layers_(&layers), context_(std::move(context)), params_(params) {}
    bound(const bound&) = delete;
    bound& operator=(const bound&) = delete;
    ~bound() override { layers_->spare_.push_back(std::move(context_)); }

    void forward(matrix<T>& q, matrix<T>& kv, matrix<T>& out, matrix<T>& lse) override {
      turn(q, kv, dyncp::rope_direction::forward);
      out.resize(q.rows(), q.cols());
      lse.resize(q.rows(), layers_->heads());
      const T* const v = kv.data() + q.rows() * kv.cols();
      layers_->ring_
          .forward(*context_,
                   {{q.data(), q.cols()},
                    {kv.data(), kv.cols()},
                    {v, kv.cols()},
                    {out.data(), out.cols()},
                    {lse.data(), lse.cols()}},
                   layers_->main_stream())
          .value();
      layers_->finish(layers_->ring_.forward_bytes(*context_));
    }

    void backward(const matrix<T>& q, const matrix<T>& kv, const matrix<T>& out,
                  const matrix<T>& lse, const matrix<T>& dout, matrix<T>& dq,
                  matrix<T>& dkv) override {
      const std::int64_t half = q.rows() * kv.cols();
      layers_->ring_
          .backward(*context_,
                    {{q.data(), q.cols()},
                     {kv.data(), kv.cols()},
                     {kv.data() + half, kv.cols()},
                     {out.data(), out.cols()},
                     {lse.data(), lse.cols()},
                     {dout.data(), dout.cols()},
                     {dq.data(), dq.cols()},
                     {dkv.data(), dkv.cols()},
                     {dkv.data() + half, dkv.cols()}},
                    layers_->main_stream())
          .value();
      layers_->finish(layers_->ring_.backward_bytes(*context_));
      turn(dq, dkv, dyncp::rope_direction::backward);
    }

   private:
    void turn(matrix<T>& q, matrix<T>& kv, dyncp::rope_direction direction) const {
      const std::int32_t dim = layers_->head_dim_;
      dyncp::apply_rope<T>(layers_->turns_, params_, {q.data(), q.cols()},
                           static_cast<std::int32_t>(q.cols()) / dim, dim, direction)
          .value();
      dyncp::apply_rope<T>(layers_->turns_, params_, {kv.data(), kv.cols()},
                           static_cast<std::int32_t>(kv.cols()) / dim, dim, direction)
          .value();
    }

    ring_layers* layers_;
    std::unique_ptr<context_type> context_;
    dyncp::packed_seq_params params_;
  };

  [[nodiscard]] static dyncp::attention_shape shape_of(const model_config& config,
                                                       std::int32_t tp) {
    return {config.q_heads / tp, config.kv_heads / tp, config.head_dim, config.head_dim,
            dyncp::default_scale(config.head_dim)};
  }
  [[nodiscard]] auto main_stream() { return pool_->owner().device().main_stream(); }
  [[nodiscard]] Eigen::Index heads() const { return heads_; }

  // The model computes on the host, behind the stream's back: it waits for each call.
  void finish(std::int64_t bytes) {
    pool_->synchronize(main_stream()).value();
    bytes_sent_ += bytes;
  }

  dyncp::group_pool<B>* pool_;
  ring_type ring_;
  dyncp::rope_table turns_;
  std::int32_t heads_;
  std::int32_t head_dim_;
  std::vector<std::unique_ptr<context_type>> spare_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace megatron_style
