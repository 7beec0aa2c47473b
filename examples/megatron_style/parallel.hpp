// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/interfaces.hpp"
#include "model/tensor.hpp"
#include "virtual_clock.hpp"

#include <dyncp/core/result.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/message.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace megatron_style {

/// The sizes of the job. A rank of the DPxCP domain stands for tp * stages processes.
struct world_shape {
  std::int32_t domain = 1;  ///< dp * cp
  std::int32_t stages = 1;
  std::int32_t chunks = 1;  ///< virtual stages a rank
  std::int32_t tp = 1;

  [[nodiscard]] constexpr std::int32_t ranks() const noexcept { return domain * stages * tp; }
  friend constexpr bool operator==(const world_shape&, const world_shape&) = default;
};

/// Where a rank stands; in the trainer's order tp-cp-dp-pp.
struct coordinates {
  std::int32_t domain = 0;
  std::int32_t stage = 0;
  std::int32_t tp = 0;

  [[nodiscard]] static constexpr coordinates of(std::int32_t rank, const world_shape& w) noexcept {
    return {rank / w.tp % w.domain, rank / (w.tp * w.domain), rank % w.tp};
  }
  [[nodiscard]] constexpr std::int32_t rank(const world_shape& w) const noexcept {
    return (stage * w.domain + domain) * w.tp + tp;
  }
};

/// A communicator of the trainer with its fabric: a `dyncp::host_channel`.
template <class Fabric>
class channel {
 public:
  channel(Fabric& fabric, typename Fabric::communicator comm)
      : fabric_(&fabric), comm_(std::move(comm)) {}
  channel(channel&&) noexcept = default;
  channel& operator=(channel&&) = delete;
  ~channel() { fabric_->close(comm_); }

  [[nodiscard]] std::int32_t rank() const noexcept { return comm_.rank(); }
  [[nodiscard]] std::int32_t size() const noexcept { return comm_.size(); }
  [[nodiscard]] dyncp::result<void> exchange_host(std::span<const dyncp::outgoing> out,
                                                  std::span<const dyncp::incoming> in) {
    return fabric_->exchange_host(comm_, out, in);
  }
  [[nodiscard]] Fabric& fabric() noexcept { return *fabric_; }
  [[nodiscard]] typename Fabric::communicator& communicator() noexcept { return comm_; }

 private:
  Fabric* fabric_;
  typename Fabric::communicator comm_;
};

/// The trainer's own communicators, beside the pool of the DPxCP domain, which is the library's.
template <dyncp::backend B>
struct communicators {
  using channel_type = channel<typename B::fabric_type>;

  /// Collective over all ranks of the job.
  communicators(B& world, const world_shape& shape)
      : at(coordinates::of(world.fabric().rank(), shape)),
        all(open(world)),
        tp(split(at.stage * shape.domain + at.domain, at.tp)),
        model(split(at.domain, at.stage * shape.tp + at.tp)),
        forward(split(at.domain * shape.tp + at.tp, at.stage)),
        backward(split(at.domain * shape.tp + at.tp, at.stage)),
        ends(split(at.stage == 0 || at.stage == shape.stages - 1 ? at.domain * shape.tp + at.tp
                                                                 : shape.ranks() + at.rank(shape),
                   at.stage)) {}

  coordinates at;
  channel_type all;
  channel_type tp;        ///< ranks that share matrices
  channel_type model;     ///< the stages * tp processes of one rank of the domain
  channel_type forward;   ///< stages, for activations
  channel_type backward;  ///< stages, for gradients: messages of the two must not meet
  channel_type ends;      ///< first and last stage, which share the embedding

 private:
  static channel_type open(B& world) {
    auto comm = world.fabric().open();
    return channel_type(world.fabric(), std::move(comm.value()));
  }
  channel_type split(std::int32_t color, std::int32_t key) {
    auto comm = all.fabric().split(all.communicator(), color, key);
    return channel_type(all.fabric(), std::move(comm.value()));
  }
};

/// `tensor_parallel` over a channel.
template <class T, class Channel>
class channel_tensor_parallel final : public tensor_parallel<T> {
 public:
  explicit channel_tensor_parallel(Channel& tp) : tp_(&tp) {}
  void sum(std::span<T> values) override {
    if (tp_->size() > 1) dyncp::all_reduce(*tp_, values, dyncp::reduction::sum).value();
  }
  void maximum(std::span<T> values) override {
    if (tp_->size() > 1) dyncp::all_reduce(*tp_, values, dyncp::reduction::maximum).value();
  }

 private:
  Channel* tp_;
};

/// Point-to-point between pipeline stages. Sends are queued, each on a stream of its own, and done
/// when the neighbour takes them; a header with the shape goes before the rows, since micro-batches
/// differ, and with the sender's virtual time.
template <class T, dyncp::backend B>
class stage_pipe {
 public:
  using channel_type = typename communicators<B>::channel_type;

  stage_pipe(B& world, communicators<B>& comms, const world_shape& shape, std::int32_t width,
             virtual_clock& clock)
      : world_(&world),
        forward_(&comms.forward),
        backward_(&comms.backward),
        stage_(comms.at.stage),
        shape_(shape),
        width_(width),
        clock_(&clock),
        incoming_(world.device().make_stream()) {}
  stage_pipe(const stage_pipe&) = delete;
  stage_pipe& operator=(const stage_pipe&) = delete;
  /// What a failed step has not sent is withdrawn before its memory goes.
  ~stage_pipe() { world_->device().discard(); }

  [[nodiscard]] matrix<T> receive_forward(std::int32_t chunk) {
    if (stage_ == 0 && chunk == 0) return {};
    return receive(*forward_, previous());
  }
  void send_forward(std::int32_t chunk, matrix<T> x) {
    if (stage_ == shape_.stages - 1 && chunk == shape_.chunks - 1) return;
    send(*forward_, next(), std::move(x));
  }
  [[nodiscard]] matrix<T> receive_backward(std::int32_t chunk) {
    if (stage_ == shape_.stages - 1 && chunk == shape_.chunks - 1) return {};
    return receive(*backward_, next());
  }
  void send_backward(std::int32_t chunk, matrix<T> dx) {
    if (stage_ == 0 && chunk == 0) return;
    send(*backward_, previous(), std::move(dx));
  }

  /// Waits until all sends have been taken.
  void drain() {
    for (parcel& p : parcels_) {
      world_->fabric().synchronize(p.head_stream).value();
      world_->fabric().synchronize(p.rows_stream).value();
    }
  }
  [[nodiscard]] std::int64_t bytes_sent() const noexcept { return bytes_sent_; }

 private:
  struct header {
    std::int64_t rows = 0;
    double sent_s = 0;
  };
  using stream = typename B::device_type::stream;
  struct parcel {
    stream head_stream;
    stream rows_stream;
    header head;
    matrix<T> rows;
  };

  [[nodiscard]] std::int32_t next() const noexcept { return (stage_ + 1) % shape_.stages; }
  [[nodiscard]] std::int32_t previous() const noexcept {
    return (stage_ + shape_.stages - 1) % shape_.stages;
  }

  // One stage that is both ends of the pipe hands its activations to itself.
  void send(channel_type& to, std::int32_t peer, matrix<T> x) {
    if (shape_.stages == 1) {
      (&to == forward_ ? own_forward_ : own_backward_).push_back(std::move(x));
      return;
    }
    parcel& p = free_parcel();
    p.rows = std::move(x);
    p.head = {p.rows.rows(), clock_->now_s()};
    post(to, peer, &p.head, sizeof(header), p.head_stream);
    const std::int64_t bytes = p.rows.size() * static_cast<std::int64_t>(sizeof(T));
    if (bytes > 0) post(to, peer, p.rows.data(), bytes, p.rows_stream);
    bytes_sent_ += bytes;
  }

  [[nodiscard]] parcel& free_parcel() {
    auto& device = world_->device();
    static_cast<void>(device.pump().value());
    for (parcel& p : parcels_) {
      if (device.idle(p.head_stream) && device.idle(p.rows_stream)) return p;
    }
    return parcels_.emplace_back(parcel{device.make_stream(), device.make_stream(), {}, {}});
  }

  [[nodiscard]] matrix<T> receive(channel_type& from, std::int32_t peer) {
    if (shape_.stages == 1) {
      auto& queue = &from == forward_ ? own_forward_ : own_backward_;
      matrix<T> x = std::move(queue.front());
      queue.pop_front();
      return x;
    }
    header head;
    take(from, peer, &head, sizeof(header));
    matrix<T> x(head.rows, width_);
    const std::int64_t bytes = x.size() * static_cast<std::int64_t>(sizeof(T));
    if (bytes > 0) take(from, peer, x.data(), bytes);
    clock_->received(head.sent_s);
    return x;
  }

  void post(channel_type& to, std::int32_t peer, const void* data, std::int64_t bytes, stream s) {
    const dyncp::outgoing out{peer, data, bytes};
    world_->fabric().exchange(to.communicator(), {&out, 1}, {}, s).value();
  }
  void take(channel_type& from, std::int32_t peer, void* data, std::int64_t bytes) {
    const dyncp::incoming in{peer, data, bytes};
    world_->fabric().exchange(from.communicator(), {}, {&in, 1}, incoming_).value();
    world_->fabric().synchronize(incoming_).value();
  }

  B* world_;
  channel_type* forward_;
  channel_type* backward_;
  std::int32_t stage_;
  world_shape shape_;
  std::int32_t width_;
  virtual_clock* clock_;
  stream incoming_;
  std::deque<parcel> parcels_;
  std::deque<matrix<T>> own_forward_;
  std::deque<matrix<T>> own_backward_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace megatron_style
