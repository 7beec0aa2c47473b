// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/fabric_abi.hpp>
#include <dyncp/cuda/local_world.hpp>
#include <dyncp/cuda/profiler_range.hpp>
#include <dyncp/cuda/used_streams.hpp>
#include <dyncp/runtime/exchange_check.hpp>
#include <dyncp/runtime/fabric.hpp>
#include <dyncp/runtime/message.hpp>
#include <dyncp/runtime/split_order.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// One rank of a `local_world`: ranks are threads of one process, on one GPU or on several that
/// reach each other's memory. For tests, and for trying groups without NCCL.
///
/// Messages are device-to-device copies on the receiver's stream, joined by events both ways. An
/// `exchange` returns when both ends have come to it and the copies are queued, so the hosts of a
/// group go in step; the GPU runs behind them. Steady state allocates nothing.
///
/// Models `fabric`. Errors: timeout, peer_failed, mismatch, aborted, those of the device. Thread
/// safety: an object belongs to the thread of its rank. The world and the device outlive it.
class local_fabric {
 public:
  using stream = cuda::stream;

  /// The ranks of one opening or split. A value without resources.
  class communicator {
   public:
    [[nodiscard]] std::int32_t rank() const noexcept { return index_; }
    [[nodiscard]] std::int32_t size() const noexcept {
      return static_cast<std::int32_t>(members_.size());
    }
    [[nodiscard]] std::uint64_t family() const noexcept { return family_; }

   private:
    friend class local_fabric;
    std::uint64_t family_ = 0;
    std::uint64_t id_ = 0;
    std::uint64_t splits_ = 0;
    std::int32_t index_ = 0;
    std::vector<std::int32_t> members_;  // ranks of the world
  };

  local_fabric(local_world& world, std::int32_t rank, device& local)
      : world_(&world), device_(&local), rank_(rank) {}
  local_fabric(const local_fabric&) = delete;
  local_fabric& operator=(const local_fabric&) = delete;
  ~local_fabric() { world_->leave(rank_); }

  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int32_t ranks() const noexcept { return world_->ranks(); }
  /// 0: messages are copied once, from memory to memory of the callers.
  [[nodiscard]] std::int64_t memory_in_use() const noexcept { return 0; }

  [[nodiscard]] result<communicator> open() {
    communicator all;
    all.family_ = ++opened_;
    all.id_ = world_->communicator_id(0, all.family_, 0);
    all.index_ = rank_;
    for (std::int32_t r = 0; r < ranks(); ++r) all.members_.push_back(r);
    return all;
  }

  [[nodiscard]] result<communicator> split(communicator& parent, std::int32_t color,
                                           std::int32_t key) {
    host_member all{this, &parent};
    auto order = split_order(all, color, key);
    if (!order) return std::move(order).error();
    communicator child;
    child.family_ = parent.family_;
    child.id_ = world_->communicator_id(parent.id_, ++parent.splits_, color);
    for (const std::int32_t rank : *order) {
      if (rank == parent.rank()) child.index_ = child.size();
      child.members_.push_back(parent.members_[static_cast<std::size_t>(rank)]);
    }
    return child;
  }

  void close(communicator& comm) noexcept { comm.members_.clear(); }

  [[nodiscard]] result<void> exchange(communicator& comm, std::span<const outgoing> out,
                                      std::span<const incoming> in, stream s) {
    const profiler_range range("dyncp exchange");
    return run(comm, out, in, &s);
  }

  [[nodiscard]] result<void> exchange_host(communicator& comm, std::span<const outgoing> out,
                                           std::span<const incoming> in) {
    return run(comm, out, in, nullptr);
  }

  [[nodiscard]] result<void> synchronize(stream s) {
    const std::int64_t begin = abi::clock_us();
    for (std::int64_t round = 0;; ++round) {
      auto done = device_->poll(s);
      if (!done) return std::move(done).error();
      if (*done) return {};
      if (abi::clock_us() - begin >= world_->deadline_us()) {
        return late("the work of a stream");
      }
      abi::pause(round);
    }
  }

  void fail(communicator& comm, const error& why) { world_->poison(comm.family_, why, rank_); }
  [[nodiscard]] result<void> health(const communicator& comm) {
    auto healthy = world_->health(comm.family_);
    // Who hears of a failure frees memory that earlier exchanges may use still.
    if (!healthy) used_.settle(*device_, world_->deadline_us());
    return healthy;
  }

 private:
  using message = local_world::message;
  using mailbox = local_world::mailbox;

  struct sending {
    std::int32_t peer = 0;  // of the world
    mailbox* box = nullptr;
    message* sent = nullptr;  // null once it is done
  };
  struct receiving {
    std::int32_t peer = 0;
    mailbox* box = nullptr;
    void* to = nullptr;
    std::int64_t bytes = 0;
    bool done = false;
  };

  struct host_member {
    local_fabric* fabric;
    communicator* comm;
    [[nodiscard]] std::int32_t rank() const noexcept { return comm->rank(); }
    [[nodiscard]] std::int32_t size() const noexcept { return comm->size(); }
    [[nodiscard]] result<void> exchange_host(std::span<const outgoing> out,
                                             std::span<const incoming> in) {
      return fabric->exchange_host(*comm, out, in);
    }
  };

  [[nodiscard]] error late(const std::string& what) const {
    return error{errc::timeout,
                 "rank " + std::to_string(rank_) + " waited " +
                     std::to_string(world_->deadline_us()) + " us for " + what,
                 world_->deadline_us(), world_->deadline_us(),
                 "see why that rank is late, or raise the deadline"};
  }
  [[nodiscard]] std::string where(const communicator& comm, bool host) const {
    return " in exchange " + std::to_string(exchanges_) + " of rank " + std::to_string(rank_) +
           " on communicator " + std::to_string(comm.id_) + (host ? " (host)" : "");
  }

  /// Device memory on stream *s, host memory if s is null.
  [[nodiscard]] result<void> run(communicator& comm, std::span<const outgoing> out,
                                 std::span<const incoming> in, const stream* s) {
    DYNCP_TRY(check_exchange(comm.rank(), comm.size(), out, in));
    DYNCP_TRY(health(comm));
    sending_.clear();
    receiving_.clear();
    if (s != nullptr) used_.add(*s);
    auto done = post_all(comm, out, in, s);
    if (done) done = finish(comm, s);
    if (!sending_.empty() || !receiving_.empty()) ++exchanges_;
    if (done) return done;
    withdraw_all(s);
    if (done.error().code != errc::aborted) world_->poison(comm.family_, done.error(), rank_);
    // What is queued uses memory that the caller may free next.
    used_.settle(*device_, world_->deadline_us());
    return done;
  }

  [[nodiscard]] result<void> post_all(communicator& comm, std::span<const outgoing> out,
                                      std::span<const incoming> in, const stream* s) {
    const std::uint64_t channel = 2 * comm.id_ + (s == nullptr ? 1 : 0);
    for (const incoming& m : in) {
      if (m.bytes == 0) continue;
      const std::int32_t peer = comm.members_[static_cast<std::size_t>(m.peer)];
      receiving_.push_back({peer, &world_->box(channel, peer, rank_), m.data, m.bytes, false});
    }
    for (const outgoing& m : out) {
      if (m.bytes == 0) continue;
      const std::int32_t peer = comm.members_[static_cast<std::size_t>(m.peer)];
      mailbox& box = world_->box(channel, rank_, peer);
      message& place = world_->take_place(box);
      place.data = m.data;
      place.bytes = m.bytes;
      sending_.push_back({peer, &box, &place});
      if (s != nullptr) {
        DYNCP_TRY(make(place.ready));
        DYNCP_TRY(device_->record(*place.ready, *s));
      }
      world_->post(box, place);
    }
    return {};
  }

  [[nodiscard]] result<void> make(std::optional<device::event>& event) {
    if (event.has_value()) return {};
    auto made = device_->make_event();
    if (!made) return std::move(made).error();
    event.emplace(std::move(*made));
    return {};
  }

  /// Takes what arrives and waits until what leaves is taken.
  [[nodiscard]] result<void> finish(const communicator& comm, const stream* s) {
    const std::int64_t begin = abi::clock_us();
    for (std::int64_t round = 0;; ++round) {
      bool waiting = false;
      for (receiving& r : receiving_) {
        if (r.done) continue;
        message* const m = world_->claim(*r.box);
        if (m != nullptr) {
          auto copied = receive(comm, r, *m, s);
          world_->settle(*m, copied.has_value());
          if (!copied) return copied;
          r.done = true;
          continue;
        }
        // A rank leaves when all that it sent is taken.
        if (world_->gone(r.peer)) return left(comm, r.peer, s == nullptr);
        waiting = true;
      }
      for (sending& x : sending_) {
        if (x.sent == nullptr) continue;
        const bool gone = world_->gone(x.peer);  // asked first: it may take the message, then go
        const auto where_is_it = world_->state_of(*x.sent);
        if (where_is_it == message::state::taken) {
          // The next work of this stream may overwrite what was sent.
          if (s != nullptr) DYNCP_TRY(device_->wait(*s, *x.sent->copied));
          world_->free(*x.box, *x.sent);
          x.sent = nullptr;
          continue;
        }
        if (gone && where_is_it == message::state::posted) {
          return left(comm, x.peer, s == nullptr);
        }
        waiting = true;
      }
      if (!waiting) return {};
      DYNCP_TRY(world_->health(comm.family_));
      if (abi::clock_us() - begin >= world_->deadline_us()) {
        return late(waits_for() + where(comm, s == nullptr));
      }
      abi::pause(round);
    }
  }

  [[nodiscard]] result<void> receive(const communicator& comm, const receiving& r, message& m,
                                     const stream* s) {
    if (m.bytes != r.bytes) {
      return error{errc::mismatch,
                   "rank " + std::to_string(r.peer) + " sent " + std::to_string(m.bytes) +
                       " bytes where " + std::to_string(r.bytes) + " were expected" +
                       where(comm, s == nullptr),
                   m.bytes, r.bytes, "derive sizes from one plan on both ranks"};
    }
    if (s == nullptr) {
      std::memcpy(r.to, m.data, static_cast<std::size_t>(r.bytes));
      return {};
    }
    DYNCP_TRY(device_->wait(*s, *m.ready));
    DYNCP_TRY(device_->copy(r.to, m.data, r.bytes, *s));
    DYNCP_TRY(make(m.copied));
    return device_->record(*m.copied, *s);
  }

  [[nodiscard]] error left(const communicator& comm, std::int32_t peer, bool host) const {
    return error{errc::peer_failed,
                 "rank " + std::to_string(peer) + " left while rank " + std::to_string(rank_) +
                     " waits for it" + where(comm, host),
                 peer, 0, "see the error of that rank"};
  }

  [[nodiscard]] std::string waits_for() const {
    std::string text;
    const auto add = [&text](const std::string& more) {
      text += (text.empty() ? "" : " and ") + more;
    };
    for (const receiving& r : receiving_) {
      if (!r.done) add("a message from rank " + std::to_string(r.peer));
    }
    for (const sending& x : sending_) {
      if (x.sent != nullptr) add("rank " + std::to_string(x.peer) + " to take its message");
    }
    return text;
  }

  /// Takes back what nobody has claimed, and waits for those that are at it: the memory is the
  /// caller's again after this. A receiver that has claimed a message does not wait for anybody.
  void withdraw_all(const stream* s) {
    for (sending& x : sending_) {
      if (x.sent == nullptr) continue;
      for (std::int64_t round = 0; !world_->withdraw(*x.box, *x.sent); ++round) abi::pause(round);
      if (s != nullptr && world_->state_of(*x.sent) == message::state::taken) {
        static_cast<void>(device_->wait(*s, *x.sent->copied));
      }
      world_->free(*x.box, *x.sent);
      x.sent = nullptr;
    }
  }

  local_world* world_;
  device* device_;
  std::int32_t rank_;
  std::uint64_t opened_ = 0;
  std::int64_t exchanges_ = 0;
  std::vector<sending> sending_;  // of the exchange that runs; kept, so that it allocates nothing
  std::vector<receiving> receiving_;
  detail::used_streams used_;
};

static_assert(dyncp::fabric<local_fabric>);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
