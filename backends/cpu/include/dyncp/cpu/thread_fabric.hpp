// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cpu/device.hpp>
#include <dyncp/cpu/op_queue.hpp>
#include <dyncp/cpu/thread_world.hpp>
#include <dyncp/runtime/exchange_check.hpp>
#include <dyncp/runtime/fabric.hpp>
#include <dyncp/runtime/message.hpp>
#include <dyncp/runtime/split_order.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cpu {

/// One rank of a `thread_world`, on the streams of its `device`.
///
/// Models `fabric`. Thread safety: an object belongs to the thread of its rank. The world and the
/// device outlive it.
class thread_fabric {
 public:
  using stream = device::stream;

  /// The ranks of one opening or split.
  class communicator {
   public:
    [[nodiscard]] std::int32_t rank() const noexcept { return index_; }
    [[nodiscard]] std::int32_t size() const noexcept {
      return static_cast<std::int32_t>(members_.size());
    }
    [[nodiscard]] std::uint64_t family() const noexcept { return ancestry_.family; }

   private:
    friend class thread_fabric;
    thread_world::ancestry ancestry_;
    std::uint64_t id_ = 0;
    std::uint64_t splits_ = 0;
    std::int32_t index_ = 0;
    std::vector<std::int32_t> members_;  // ranks of the world
  };

  thread_fabric(thread_world& world, std::int32_t rank, device& local)
      : world_(&world), device_(&local), rank_(rank) {
    for (int i = 0; i < 64; ++i) spare_.push_back(new_state());
  }
  thread_fabric(const thread_fabric&) = delete;
  thread_fabric& operator=(const thread_fabric&) = delete;
  ~thread_fabric() { device_->discard(); }

  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int32_t ranks() const noexcept { return world_->ranks(); }
  [[nodiscard]] std::int64_t memory_in_use() const { return world_->memory_in_use(); }

  [[nodiscard]] result<communicator> open() {
    communicator all;
    all.ancestry_ = {++opened_, 0, 0, 0};
    all.id_ = world_->open(all.ancestry_, ranks());
    all.index_ = rank_;
    all.members_.resize(static_cast<std::size_t>(ranks()));
    for (std::int32_t r = 0; r < ranks(); ++r) all.members_[static_cast<std::size_t>(r)] = r;
    return all;
  }

  [[nodiscard]] result<communicator> split(communicator& parent, std::int32_t color,
                                           std::int32_t key) {
    host_member all{this, &parent};
    auto order = split_order(all, color, key);
    if (!order) return std::move(order).error();
    communicator child;
    child.ancestry_ = {parent.family(), parent.id_, ++parent.splits_, color};
    for (const std::int32_t rank : *order) {
      if (rank == parent.rank()) child.index_ = child.size();
      child.members_.push_back(parent.members_[static_cast<std::size_t>(rank)]);
    }
    child.id_ = world_->open(child.ancestry_, child.size());
    return child;
  }

  void close(communicator& comm) noexcept {
    if (comm.members_.empty()) return;
    world_->close(comm.ancestry_);
    comm.members_.clear();
  }

  [[nodiscard]] result<void> exchange(communicator& comm, std::span<const outgoing> out,
                                      std::span<const incoming> in, stream s) {
    DYNCP_TRY(check_exchange(comm.rank(), comm.size(), out, in));
    DYNCP_TRY(health(comm));
    auto x = prepare(comm, out, in, 0);
    if (x->out.empty() && x->in.empty()) {
      spare_.push_back(std::move(x));
      return {};
    }
    return device_->submit(s, pending_exchange{this, std::move(x)});
  }

  [[nodiscard]] result<void> exchange_host(communicator& comm, std::span<const outgoing> out,
                                           std::span<const incoming> in) {
    DYNCP_TRY(check_exchange(comm.rank(), comm.size(), out, in));
    DYNCP_TRY(health(comm));
    pending_exchange x{this, prepare(comm, out, in, 1)};
    if (x.state->out.empty() && x.state->in.empty()) return {};
    for (;;) {
      const std::uint64_t seen = world_->activity(rank_);
      auto state = x();
      if (!state) return std::move(state).error();
      if (*state == progress::done) return {};
      // Streams go on meanwhile, as they do beside a host that waits.
      auto moved = device_->pump();
      if (!moved) return std::move(moved).error();
      if (!*moved) world_->block(rank_, seen);
    }
  }

  [[nodiscard]] result<void> synchronize(stream s) {
    for (;;) {
      const std::uint64_t seen = world_->activity(rank_);
      auto moved = device_->pump();
      if (!moved) return std::move(moved).error();
      if (device_->idle(s)) return {};
      if (*moved) continue;
      if (!world_->exchanging(rank_)) {
        device_->discard();
        return make_error(errc::invalid_argument,
                          "the stream waits for an event that no stream will record");
      }
      world_->block(rank_, seen);
    }
  }

  void fail(communicator& comm, const error& why) {
    world_->poison(comm.family(), why, rank_);
    device_->discard();
  }
  [[nodiscard]] result<void> health(const communicator& comm) const {
    return world_->health(comm.family());
  }

 private:
  using state_ptr = std::unique_ptr<thread_world::exchange>;

  /// Queued work that posts and takes the messages of one exchange.
  struct pending_exchange {
    thread_fabric* fabric = nullptr;
    state_ptr state;

    pending_exchange(thread_fabric* owner, state_ptr x) : fabric(owner), state(std::move(x)) {}
    pending_exchange(pending_exchange&& other) noexcept = default;
    pending_exchange& operator=(pending_exchange&&) = delete;
    ~pending_exchange() {
      if (state == nullptr) return;
      fabric->world_->withdraw(*state);
      fabric->spare_.push_back(std::move(state));
    }
    result<progress> operator()() { return fabric->world_->advance(*state); }
  };

  struct host_member {
    thread_fabric* fabric;
    communicator* comm;
    [[nodiscard]] std::int32_t rank() const noexcept { return comm->rank(); }
    [[nodiscard]] std::int32_t size() const noexcept { return comm->size(); }
    [[nodiscard]] result<void> exchange_host(std::span<const outgoing> out,
                                             std::span<const incoming> in) {
      return fabric->exchange_host(*comm, out, in);
    }
  };

  static state_ptr new_state() {
    auto x = std::make_unique<thread_world::exchange>();
    x->out.reserve(2);
    x->in.reserve(2);
    return x;
  }

  state_ptr prepare(const communicator& comm, std::span<const outgoing> out,
                    std::span<const incoming> in, std::uint64_t plane) {
    state_ptr x;
    if (spare_.empty()) {
      x = new_state();
    } else {
      x = std::move(spare_.back());
      spare_.pop_back();
    }
    x->rank = rank_;
    x->family = comm.family();
    x->channel = 2 * comm.id_ + plane;
    x->begun = false;
    x->out.clear();
    x->in.clear();
    for (const outgoing& m : out) {
      if (m.bytes == 0) continue;
      x->out.push_back({comm.members_[static_cast<std::size_t>(m.peer)], m.data, nullptr, m.bytes});
    }
    for (const incoming& m : in) {
      if (m.bytes == 0) continue;
      x->in.push_back({comm.members_[static_cast<std::size_t>(m.peer)], nullptr, m.data, m.bytes});
    }
    return x;
  }

  thread_world* world_;
  device* device_;
  std::int32_t rank_;
  std::uint64_t opened_ = 0;
  std::vector<state_ptr> spare_;
};

static_assert(dyncp::fabric<thread_fabric>);

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
