// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cuda/device.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {

struct local_world_options {
  std::int32_t ranks = 1;
  std::int64_t deadline_us = 60'000'000;  ///< of an exchange, from when it begins
};

/// Where the ranks of one process find each other's messages: host memory and events, no calls.
///
/// A rank posts what it sends, with an event behind the work that makes the bytes; the receiver
/// claims the message, queues the copy behind that event and hands back an event of its own, behind
/// which the sender's stream goes on. See local_fabric.
///
/// Thread safety: all members may be called concurrently, with a rank of its own per thread. No
/// member waits. The world outlives its fabrics, and keeps their GPUs until it goes.
class local_world {
 public:
  struct message {
    enum class state : std::int32_t {
      free,
      posted,
      claimed,   ///< its receiver is at it; the memory must stay
      taken,     ///< the copy is queued, `copied` behind it
      withdrawn  ///< claimed by a receiver that failed
    };
    state where = state::free;
    const void* data = nullptr;
    std::int64_t bytes = 0;
    // Kept from one message of this place to the next. They live here, not with the rank that
    // records them: the other one may still have to wait when that has left.
    std::optional<device::event> ready;   ///< behind what makes the bytes; the sender's
    std::optional<device::event> copied;  ///< behind the copy; the receiver's
  };
  /// The messages of one direction between two ranks of one communicator, in order.
  struct mailbox {
    std::deque<message> all;  // places stay where they are
    std::deque<message*> posted;
    std::vector<message*> spare;
  };

  explicit local_world(local_world_options options)
      : options_(options), gone_(static_cast<std::size_t>(options.ranks), false) {}
  local_world(const local_world&) = delete;
  local_world& operator=(const local_world&) = delete;

  [[nodiscard]] std::int32_t ranks() const noexcept { return options_.ranks; }
  [[nodiscard]] std::int64_t deadline_us() const noexcept { return options_.deadline_us; }

  /// The box of messages from `from` to `to` in `channel`; it lives as long as the world.
  [[nodiscard]] mailbox& box(std::uint64_t channel, std::int32_t from, std::int32_t to) {
    const std::lock_guard lock(mutex_);
    return boxes_[{channel, from, to}];
  }

  /// A place for the next message, not posted yet. Its events are those of an earlier message.
  [[nodiscard]] message& take_place(mailbox& box) {
    const std::lock_guard lock(mutex_);
    if (box.spare.empty()) return box.all.emplace_back();
    message* const m = box.spare.back();
    box.spare.pop_back();
    return *m;
  }
  void post(mailbox& box, message& m) {
    const std::lock_guard lock(mutex_);
    m.where = message::state::posted;
    box.posted.push_back(&m);
  }
  /// The first posted message, now claimed; null if there is none.
  [[nodiscard]] message* claim(mailbox& box) {
    const std::lock_guard lock(mutex_);
    if (box.posted.empty()) return nullptr;
    message* const m = box.posted.front();
    box.posted.pop_front();
    m->where = message::state::claimed;
    return m;
  }
  /// Ends a claim: the copy is queued, or it failed.
  void settle(message& m, bool taken) {
    const std::lock_guard lock(mutex_);
    m.where = taken ? message::state::taken : message::state::withdrawn;
  }
  [[nodiscard]] message::state state_of(const message& m) const {
    const std::lock_guard lock(mutex_);
    return m.where;
  }
  /// Takes back a message that nobody has claimed. False if it is too late.
  [[nodiscard]] bool withdraw(mailbox& box, message& m) {
    const std::lock_guard lock(mutex_);
    if (m.where != message::state::posted) return m.where != message::state::claimed;
    std::erase(box.posted, &m);
    m.where = message::state::withdrawn;
    return true;
  }
  /// The sender needs the place no more.
  void free(mailbox& box, message& m) {
    const std::lock_guard lock(mutex_);
    m.where = message::state::free;
    m.data = nullptr;
    box.spare.push_back(&m);
  }

  /// Poisons `family`; the first reason stays.
  void poison(std::uint64_t family, const error& why, std::int32_t rank) {
    const std::lock_guard lock(mutex_);
    families_.try_emplace(
        family, error{errc::aborted,
                      "rank " + std::to_string(rank) + " failed first: " + why.what, rank, 0,
                      "open a new pool; the old one cannot be used any more"});
  }
  [[nodiscard]] result<void> health(std::uint64_t family) const {
    const std::lock_guard lock(mutex_);
    const auto found = families_.find(family);
    if (found == families_.end()) return {};
    return found->second;
  }

  /// `rank` takes no part any more: who waits for it fails.
  void leave(std::int32_t rank) {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
  }
  [[nodiscard]] bool gone(std::int32_t rank) const {
    const std::lock_guard lock(mutex_);
    return gone_[static_cast<std::size_t>(rank)];
  }

  /// The number of the communicator with this ancestry, the same for all its members.
  [[nodiscard]] std::uint64_t communicator_id(std::uint64_t parent, std::uint64_t split,
                                              std::int32_t color) {
    const std::lock_guard lock(mutex_);
    const auto [place, added] = communicators_.try_emplace({parent, split, color}, 0);
    if (added) place->second = communicators_.size();
    return place->second;
  }

  /// Messages that nobody has claimed: 0 once all ranks have left.
  [[nodiscard]] std::int64_t messages_in_flight() const {
    const std::lock_guard lock(mutex_);
    std::size_t n = 0;
    for (const auto& [key, box] : boxes_) n += box.posted.size();
    return static_cast<std::int64_t>(n);
  }

 private:
  struct box_key {
    std::uint64_t channel = 0;
    std::int32_t from = 0;
    std::int32_t to = 0;
    friend auto operator<=>(const box_key&, const box_key&) = default;
  };
  struct communicator_key {
    std::uint64_t parent = 0;
    std::uint64_t split = 0;
    std::int32_t color = 0;
    friend auto operator<=>(const communicator_key&, const communicator_key&) = default;
  };

  local_world_options options_;
  mutable std::mutex mutex_;
  std::vector<bool> gone_;
  std::map<box_key, mailbox> boxes_;
  std::map<std::uint64_t, error> families_;
  std::map<communicator_key, std::uint64_t> communicators_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
