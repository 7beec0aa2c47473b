// SPDX-License-Identifier: Apache-2.0
#pragma once

// The trainer's pipeline schedules, as they were before Dynamic-CP: they ask an iterator for the
// next micro-batch, run it, and talk to their neighbours. That micro-batches differ in rows, and
// steps in their number, comes in through the arguments alone.
//
//   Model:    forward(chunk, batch, input) -> output
//             backward(chunk, batch, output_gradient) -> input_gradient
//   Pipe:     receive_forward(chunk) -> input           (empty for the first virtual stage)
//             send_forward(chunk, output)               (does nothing after the last)
//             receive_backward(chunk) -> output_gradient
//             send_backward(chunk, input_gradient)      sends do not wait for the receiver
//   Iterator: next() -> batch, a copy or a handle that lives until its backward pass

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace megatron_style {

struct schedule_place {
  std::int32_t stage = 0;
  std::int32_t stages = 1;
  std::int32_t chunks = 1;  ///< above 1: micro-batches are a multiple of `stages`
};

namespace detail {

/// The two moves of both schedules, with the micro-batches that wait for their backward pass.
template <class Model, class Pipe, class Iterator>
class schedule_steps {
  using batch_type = decltype(std::declval<Iterator&>().next());

 public:
  schedule_steps(Model& model, Pipe& pipe, std::span<Iterator> iterators)
      : model_(&model), pipe_(&pipe), iterators_(iterators), waiting_(iterators.size()) {}

  void forward(std::int32_t chunk) {
    const auto c = static_cast<std::size_t>(chunk);
    auto input = pipe_->receive_forward(chunk);
    batch_type batch = iterators_[c].next();
    pipe_->send_forward(chunk, model_->forward(chunk, batch, std::move(input)));
    waiting_[c].push_back(std::move(batch));
  }

  void backward(std::int32_t chunk) {
    const auto c = static_cast<std::size_t>(chunk);
    auto gradient = pipe_->receive_backward(chunk);
    batch_type batch = std::move(waiting_[c].front());
    waiting_[c].pop_front();
    pipe_->send_backward(chunk, model_->backward(chunk, batch, std::move(gradient)));
  }

 private:
  Model* model_;
  Pipe* pipe_;
  std::span<Iterator> iterators_;                // (chunks)
  std::vector<std::deque<batch_type>> waiting_;  // (chunks), in order
};

}  // namespace detail

/// One forward, one backward: warm-up, steady state, cool-down. `iterators` has one entry.
template <class Model, class Pipe, class Iterator>
void forward_backward_1f1b(Model& model, Pipe& pipe, std::span<Iterator> iterators,
                           schedule_place place, std::int32_t micro_batches) {
  detail::schedule_steps<Model, Pipe, Iterator> steps(model, pipe, iterators);
  const std::int32_t warmup = std::min(place.stages - place.stage - 1, micro_batches);
  for (std::int32_t i = 0; i < warmup; ++i) steps.forward(0);
  for (std::int32_t i = warmup; i < micro_batches; ++i) {
    steps.forward(0);
    steps.backward(0);
  }
  for (std::int32_t i = 0; i < warmup; ++i) steps.backward(0);
}

/// Interleaved 1F1B: groups of `stages` micro-batches pass through chunk 0, then chunk 1, ...
/// `iterators` has one entry per chunk.
template <class Model, class Pipe, class Iterator>
void forward_backward_interleaved(Model& model, Pipe& pipe, std::span<Iterator> iterators,
                                  schedule_place place, std::int32_t micro_batches) {
  detail::schedule_steps<Model, Pipe, Iterator> steps(model, pipe, iterators);
  const std::int32_t all = micro_batches * place.chunks;
  const std::int32_t warmup =
      micro_batches == place.stages
          ? all
          : std::min(2 * (place.stages - place.stage - 1) + (place.chunks - 1) * place.stages, all);
  const auto chunk_of = [&](std::int32_t k) {
    return k % (place.stages * place.chunks) / place.stages;
  };
  const auto forward = [&](std::int32_t k) { steps.forward(chunk_of(k)); };
  const auto backward = [&](std::int32_t k) { steps.backward(place.chunks - 1 - chunk_of(k)); };
  for (std::int32_t k = 0; k < warmup; ++k) forward(k);
  for (std::int32_t k = warmup; k < all; ++k) {
    forward(k);
    backward(k - warmup);
  }
  for (std::int32_t k = all - warmup; k < all; ++k) backward(k);
}

}  // namespace megatron_style
