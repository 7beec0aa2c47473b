// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cpu/fault.hpp>
#include <dyncp/cpu/op_queue.hpp>

#include <algorithm>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cpu {

enum class time_source : std::int32_t {
  wall,         ///< deadlines and delays are real
  virtual_time  ///< time stands still while a rank can go on, and jumps when none can
};

struct thread_world_options {
  std::int32_t ranks = 1;
  std::int64_t deadline_us = 60'000'000;  ///< of an exchange, from when it begins
  time_source time = time_source::wall;
  std::vector<fault> faults = {};
};

/// The mailboxes through which the ranks of one process, a thread each, exchange messages.
///
/// A message is copied once, by its receiver, out of the sender's memory; the sender's exchange
/// ends when all its messages are taken, as with NCCL and with MPI's large messages. So a program
/// that would hang there hangs here, and here it is told: when every live rank is blocked and no
/// message is on its way, all of them return `deadlock` with who waits for whom. A rank whose peer
/// died or left returns `peer_failed`; one that waits longer than the deadline, `timeout`.
///
/// Nothing spins: a blocked thread sleeps on a condition variable. Determinism: with virtual time
/// the outcome of an exchange never depends on the speed of a thread. Thread safety: all members
/// may be called concurrently, with a rank of its own per thread.
class thread_world {
 public:
  struct message {
    enum class state : std::int32_t { queued, copying, taken };
    const void* data = nullptr;
    std::int64_t bytes = 0;
    std::int64_t visible_us = 0;
    std::uint64_t number = 0;
    state where = state::queued;
    message* next = nullptr;
  };

  /// One exchange of one rank, from when it begins until it is done.
  struct exchange {
    struct part {
      std::int32_t peer = 0;  // of the world
      const void* from = nullptr;
      void* to = nullptr;
      std::int64_t bytes = 0;
      message* sent = nullptr;
      bool done = false;
    };
    std::int32_t rank = 0;
    std::uint64_t family = 0;
    std::uint64_t channel = 0;
    std::vector<part> out;
    std::vector<part> in;
    bool begun = false;
    std::int64_t step = 0;
    std::int64_t deadline_us = 0;
  };

  /// Where a communicator comes from: the first of its family has no parent, that is 0.
  struct ancestry {
    std::uint64_t family = 0;
    std::uint64_t parent = 0;
    std::uint64_t split = 0;  // of the parent: 1, 2, ...
    std::int32_t color = 0;
    friend auto operator<=>(const ancestry&, const ancestry&) = default;
  };

  explicit thread_world(thread_world_options options)
      : options_(std::move(options)),
        ranks_(static_cast<std::size_t>(options_.ranks)),
        start_(std::chrono::steady_clock::now()) {
    for (auto& rank : ranks_) rank = std::make_unique<rank_state>();
    live_ = options_.ranks;
  }
  thread_world(const thread_world&) = delete;
  thread_world& operator=(const thread_world&) = delete;

  [[nodiscard]] std::int32_t ranks() const noexcept { return options_.ranks; }
  [[nodiscard]] std::int64_t deadline_us() const noexcept { return options_.deadline_us; }

  /// Messages that nobody has taken or withdrawn: 0 once all ranks have left.
  [[nodiscard]] std::int64_t messages_in_flight() const {
    const std::lock_guard lock(mutex_);
    return in_flight_;
  }
  /// Bytes of the mailboxes themselves.
  [[nodiscard]] std::int64_t memory_in_use() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(messages_.size() * sizeof(message) +
                                     boxes_.size() * sizeof(boxes_type::value_type));
  }
  /// Mailboxes, communicators and failures that are kept: 0 once every communicator is closed.
  [[nodiscard]] std::int64_t entries() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(boxes_.size() + communicators_.size() + families_.size());
  }
  [[nodiscard]] std::int64_t now_us() const {
    const std::lock_guard lock(mutex_);
    return now();
  }
  /// Exchanges that `rank` has begun: the steps that faults count.
  [[nodiscard]] std::int64_t exchanges(std::int32_t rank) const {
    const std::lock_guard lock(mutex_);
    return at(rank).steps;
  }

  /// A number that changes whenever something happens that a blocked `rank` may wait for.
  [[nodiscard]] std::uint64_t activity(std::int32_t rank) const {
    const std::lock_guard lock(mutex_);
    return at(rank).activity;
  }

  /// Posts the messages of `x`, or tries to take those that it waits for.
  ///
  /// On an error the messages of `x` are withdrawn and its family is poisoned.
  [[nodiscard]] result<progress> advance(exchange& x) {
    std::unique_lock lock(mutex_);
    if (!x.begun) {
      if (auto begun = begin(x); !begun) return std::move(begun).error();
    }
    return poll(x, lock);
  }

  /// Withdraws what an exchange that is thrown away has posted.
  void withdraw(exchange& x) {
    std::unique_lock lock(mutex_);
    if (x.begun) finish(x, lock);
  }

  /// Sleeps until the activity of `rank` is no longer `seen`, or its next deadline.
  ///
  /// Requires that the rank has begun an exchange that is not done.
  void block(std::int32_t rank, std::uint64_t seen) {
    std::unique_lock lock(mutex_);
    rank_state& me = at(rank);
    if (me.activity != seen) return;
    me.blocked = true;
    ++blocked_;
    settle();
    while (me.blocked) {
      if (options_.time == time_source::virtual_time) {
        me.wake.wait(lock);
        continue;
      }
      // Clocks count in nanoseconds: a deadline beyond them is waited for an hour at a time.
      const std::int64_t until = next_event(rank);
      const std::int64_t hour = now() + 3'600'000'000;
      me.wake.wait_until(lock, start_ + std::chrono::microseconds(std::min(until, hour)));
      if (now() >= until) unblock(me);
    }
  }

  /// True while `rank` has an exchange that is not done.
  [[nodiscard]] bool exchanging(std::int32_t rank) const {
    const std::lock_guard lock(mutex_);
    return !at(rank).active.empty();
  }

  /// Poisons `family`: all its waiting and later exchanges return `aborted`. The first reason
  /// stays.
  void poison(std::uint64_t family, const error& why, std::int32_t rank) {
    const std::lock_guard lock(mutex_);
    poison_locked(family, why, rank, false);
  }
  [[nodiscard]] result<void> health(std::uint64_t family) const {
    const std::lock_guard lock(mutex_);
    const auto found = families_.find(family);
    if (found == families_.end()) return {};
    return aborted(found->second);
  }

  /// The number of the communicator with this ancestry, the same for all its `members`.
  [[nodiscard]] std::uint64_t open(const ancestry& comm, std::int32_t members) {
    const std::lock_guard lock(mutex_);
    const auto [place, added] = communicators_.try_emplace(comm);
    if (added) place->second = {++numbered_, members};
    return place->second.number;
  }
  /// A member is done with `comm`. With the last one its mailboxes go; with the last of a family's
  /// first, all that is kept of the family.
  void close(const ancestry& comm) {
    const std::lock_guard lock(mutex_);
    const auto found = communicators_.find(comm);
    if (found == communicators_.end() || --found->second.open_members > 0) return;
    auto last = std::next(found);
    if (comm.parent == 0) {
      last = communicators_.lower_bound({comm.family + 1, 0, 0, 0});
      families_.erase(comm.family);
    }
    for (auto c = found; c != last; ++c) {
      const std::uint64_t channel = 2 * c->second.number;
      boxes_.erase(boxes_.lower_bound({channel, 0, 0}), boxes_.lower_bound({channel + 2, 0, 0}));
    }
    communicators_.erase(found, last);
  }

  /// `rank` takes no part any more: what it posted is withdrawn, waiting for it fails.
  void leave(std::int32_t rank) {
    std::unique_lock lock(mutex_);
    depart(rank, rank_state::life::left, lock);
  }

 private:
  struct rank_state {
    enum class life : std::int32_t { live, left, dead };
    life state = life::live;
    std::uint64_t activity = 0;
    bool blocked = false;
    std::int64_t steps = 0;
    std::vector<exchange*> active;
    std::condition_variable wake;
  };
  struct mailbox {
    message* head = nullptr;
    message* tail = nullptr;
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
  };
  struct box_key {
    std::uint64_t channel = 0;
    std::int32_t src = 0;
    std::int32_t dst = 0;
    friend auto operator<=>(const box_key&, const box_key&) = default;
  };
  struct communicator_state {
    std::uint64_t number = 0;
    std::int32_t open_members = 0;
  };
  struct poisoning {
    error why;
    std::int32_t rank = 0;
    bool shared = false;  // every rank is part of it and reports it as its own
  };
  using boxes_type = std::map<box_key, mailbox>;

  static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max() / 4;

  [[nodiscard]] rank_state& at(std::int32_t rank) {
    return *ranks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const rank_state& at(std::int32_t rank) const {
    return *ranks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] bool gone(std::int32_t rank) const {
    return at(rank).state != rank_state::life::live;
  }
  [[nodiscard]] std::int64_t now() const {
    if (options_.time == time_source::virtual_time) return virtual_now_us_;
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 start_)
        .count();
  }

  void unblock(rank_state& rank) {
    if (!rank.blocked) return;
    rank.blocked = false;
    --blocked_;
  }
  void bump(std::int32_t rank) {
    rank_state& state = at(rank);
    ++state.activity;
    unblock(state);
    state.wake.notify_all();
  }
  void bump_all() {
    for (std::int32_t r = 0; r < options_.ranks; ++r) bump(r);
  }

  [[nodiscard]] message* new_message() {
    ++in_flight_;
    if (free_.empty()) {
      messages_.emplace_back();
      free_.reserve(messages_.size());
      return &messages_.back();
    }
    message* const m = free_.back();
    free_.pop_back();
    *m = message{};
    return m;
  }
  void free_message(message* m) {
    --in_flight_;
    free_.push_back(m);
  }

  [[nodiscard]] static std::string where(const exchange& x) {
    return " in exchange " + std::to_string(x.step) + " of rank " + std::to_string(x.rank) +
           " on communicator " + std::to_string(x.channel / 2) +
           (x.channel % 2 == 0 ? "" : " (host)");
  }
  [[nodiscard]] static error aborted(const poisoning& p) {
    return error{errc::aborted, "rank " + std::to_string(p.rank) + " failed first: " + p.why.what,
                 p.rank, 0, "open a new pool; the old one cannot be used any more"};
  }

  result<void> begin(exchange& x) {
    rank_state& me = at(x.rank);
    if (const auto poisoned = families_.find(x.family); poisoned != families_.end()) {
      return aborted(poisoned->second);
    }
    if (me.state != rank_state::life::live) return stopped(x);
    x.step = me.steps++;
    std::int64_t delay_us = 0;
    bool drop = false;
    bool wrong_size = false;
    for (const fault& f : options_.faults) {
      if (f.rank != x.rank || f.step != x.step) continue;
      switch (f.kind) {
        case fault_kind::drop: drop = true; break;
        case fault_kind::delay: delay_us += f.amount_us; break;
        case fault_kind::wrong_size: wrong_size = true; break;
        case fault_kind::kill: {
          me.state = rank_state::life::dead;
          --live_;
          bump_all();
          settle();
          return stopped(x);
        }
      }
    }
    x.begun = true;
    x.deadline_us = now() + std::min(options_.deadline_us, never);
    me.active.push_back(&x);
    for (exchange::part& part : x.out) {
      mailbox& box = boxes_[{x.channel, x.rank, part.peer}];
      const std::uint64_t number = box.sent++;
      if (drop) {
        part.done = true;
        continue;
      }
      message* const m = new_message();
      m->data = part.from;
      m->bytes = part.bytes + (wrong_size ? 1 : 0);
      m->visible_us = delay_us > 0 ? now() + delay_us : 0;
      m->number = number;
      part.sent = m;
      (box.tail == nullptr ? box.head : box.tail->next) = m;
      box.tail = m;
      bump(part.peer);
    }
    return {};
  }

  [[nodiscard]] static error stopped(const exchange& x) {
    return error{errc::aborted,
                 "rank " + std::to_string(x.rank) + " was stopped by its fault" + where(x),
                 x.rank,
                 x.step,
                 {}};
  }

  result<progress> poll(exchange& x, std::unique_lock<std::mutex>& lock) {
    if (auto bad = poisoned_error(x, lock)) return std::move(*bad);
    bool waiting = false;
    for (exchange::part& part : x.in) {
      if (part.done) continue;
      mailbox& box = boxes_[{x.channel, part.peer, x.rank}];
      message* const m = box.head;
      if (m == nullptr || m->visible_us > now()) {
        if (m == nullptr && gone(part.peer)) return peer_failed(x, part.peer, lock);
        waiting = true;
        continue;
      }
      if (m->number != box.taken) {
        return failure(
            x, lock,
            error{errc::mismatch,
                  "a message from rank " + std::to_string(part.peer) + " was lost" + where(x),
                  part.peer, 0, "the fabric dropped a message"});
      }
      if (m->bytes != part.bytes) {
        return failure(
            x, lock,
            error{errc::mismatch,
                  "rank " + std::to_string(part.peer) + " sent " + std::to_string(m->bytes) +
                      " bytes where " + std::to_string(part.bytes) + " were expected" + where(x),
                  m->bytes, part.bytes, "derive sizes from one plan on both ranks"});
      }
      box.head = m->next;
      if (box.head == nullptr) box.tail = nullptr;
      ++box.taken;
      m->where = message::state::copying;
      lock.unlock();
      std::memcpy(part.to, m->data, static_cast<std::size_t>(part.bytes));
      lock.lock();
      m->where = message::state::taken;
      part.done = true;
      bump(part.peer);
      if (auto bad = poisoned_error(x, lock)) return std::move(*bad);
    }
    for (exchange::part& part : x.out) {
      if (part.done) continue;
      if (part.sent->where == message::state::taken) {
        free_message(part.sent);
        part.done = true;
        continue;
      }
      if (part.sent->where == message::state::queued && gone(part.peer)) {
        return peer_failed(x, part.peer, lock);
      }
      waiting = true;
    }
    if (!waiting) {
      finish(x, lock);
      return progress::done;
    }
    if (now() >= x.deadline_us) {
      return failure(
          x, lock,
          error{errc::timeout,
                "rank " + std::to_string(x.rank) + " waited " +
                    std::to_string(options_.deadline_us) + " us for " + waits_for(x) + where(x),
                options_.deadline_us, options_.deadline_us,
                "see why that rank is late, or raise the deadline"});
    }
    return progress::pending;
  }

  std::unique_ptr<error> poisoned_error(exchange& x, std::unique_lock<std::mutex>& lock) {
    const auto poisoned = families_.find(x.family);
    if (poisoned == families_.end()) return nullptr;
    auto out = std::make_unique<error>(poisoned->second.shared ? poisoned->second.why
                                                               : aborted(poisoned->second));
    finish(x, lock);
    return out;
  }

  error peer_failed(exchange& x, std::int32_t peer, std::unique_lock<std::mutex>& lock) {
    const bool dead = at(peer).state == rank_state::life::dead;
    return failure(x, lock,
                   error{errc::peer_failed,
                         "rank " + std::to_string(peer) + (dead ? " died" : " left") +
                             " while rank " + std::to_string(x.rank) + " waits for it" + where(x),
                         peer, 0, "see the error of that rank"});
  }

  error failure(exchange& x, std::unique_lock<std::mutex>& lock, error why) {
    poison_locked(x.family, why, x.rank, false);
    finish(x, lock);
    return why;
  }

  void poison_locked(std::uint64_t family, const error& why, std::int32_t rank, bool shared) {
    if (families_.try_emplace(family, poisoning{why, rank, shared}).second) bump_all();
  }

  /// Ends `x`: what was not taken is withdrawn; what is being copied is waited for, since its
  /// memory may go away after this.
  void finish(exchange& x, std::unique_lock<std::mutex>& lock) {
    rank_state& me = at(x.rank);
    for (exchange::part& part : x.out) {
      if (part.done || part.sent == nullptr) continue;
      me.wake.wait(lock, [&] { return part.sent->where != message::state::copying; });
      if (part.sent->where == message::state::queued) unlink(x, part);
      free_message(part.sent);
      part.done = true;
    }
    std::erase(me.active, &x);
    x.begun = false;
  }

  void unlink(const exchange& x, const exchange::part& part) {
    const auto found = boxes_.find({x.channel, x.rank, part.peer});
    if (found == boxes_.end()) return;  // closed by all
    mailbox& box = found->second;
    message* before = nullptr;
    for (message* m = box.head; m != nullptr; before = m, m = m->next) {
      if (m != part.sent) continue;
      (before == nullptr ? box.head : before->next) = m->next;
      if (box.tail == m) box.tail = before;
      return;
    }
  }

  void depart(std::int32_t rank, rank_state::life how, std::unique_lock<std::mutex>& lock) {
    rank_state& me = at(rank);
    while (!me.active.empty()) finish(*me.active.back(), lock);
    if (me.state == rank_state::life::live) {
      me.state = how;
      --live_;
    }
    bump_all();
    settle();
  }

  [[nodiscard]] static std::string waits_for(const exchange& x) {
    std::string text;
    for (const exchange::part& part : x.in) {
      if (part.done) continue;
      text += (text.empty() ? "" : " and ") + ("a message from rank " + std::to_string(part.peer));
    }
    for (const exchange::part& part : x.out) {
      if (part.done) continue;
      text += (text.empty() ? "" : " and ") +
              ("rank " + std::to_string(part.peer) + " to take its message");
    }
    return text;
  }

  /// When `rank` has to look again although nobody told it to.
  [[nodiscard]] std::int64_t next_event(std::int32_t rank) const {
    std::int64_t first = now() + never;
    for (const exchange* x : at(rank).active) {
      first = std::min(first, x->deadline_us);
      for (const exchange::part& part : x->in) {
        if (part.done) continue;
        const auto box = boxes_.find({x->channel, part.peer, rank});
        if (box == boxes_.end() || box->second.head == nullptr) continue;
        first = std::min(first, std::max(box->second.head->visible_us, now()));
      }
    }
    return first;
  }

  /// Called when a rank blocks or is gone. If no live rank can go on: moves virtual time to the
  /// next event, or reports the deadlock when none is ahead that delivers something.
  void settle() {
    if (live_ == 0 || blocked_ < live_) return;
    std::int64_t delivery = never;
    std::int64_t deadline = never;
    std::int32_t receiver = 0;
    std::int32_t late = 0;
    for (std::int32_t r = 0; r < options_.ranks; ++r) {
      if (gone(r)) continue;
      for (const exchange* x : at(r).active) {
        if (x->deadline_us < deadline) {
          deadline = x->deadline_us;
          late = r;
        }
        for (const exchange::part& part : x->in) {
          if (part.done) continue;
          const auto box = boxes_.find({x->channel, part.peer, r});
          if (box == boxes_.end() || box->second.head == nullptr) continue;
          if (box->second.head->visible_us >= delivery) continue;
          delivery = box->second.head->visible_us;
          receiver = r;
        }
      }
    }
    if (delivery == never) {
      report_deadlock();
    } else if (options_.time == time_source::virtual_time) {
      virtual_now_us_ = std::max(virtual_now_us_, std::min(delivery, deadline));
      bump(delivery <= deadline ? receiver : late);
    }
  }

  void report_deadlock() {
    std::string graph;
    std::vector<std::uint64_t> families;
    std::int32_t first = -1;
    for (std::int32_t r = 0; r < options_.ranks; ++r) {
      if (gone(r)) continue;
      for (const exchange* x : at(r).active) {
        graph += (graph.empty() ? "" : "; ") +
                 ("rank " + std::to_string(r) + " waits for " + waits_for(*x) + where(*x));
        families.push_back(x->family);
        if (first < 0) first = r;
      }
    }
    const error why{errc::deadlock, "every live rank is blocked: " + graph, live_, live_,
                    "call the same exchanges on all ranks, in the same order"};
    for (std::uint64_t family : families) poison_locked(family, why, first, true);
  }

  thread_world_options options_;
  std::vector<std::unique_ptr<rank_state>> ranks_;
  std::chrono::steady_clock::time_point start_;
  mutable std::mutex mutex_;
  std::int64_t virtual_now_us_ = 0;
  std::int32_t live_ = 0;
  std::int32_t blocked_ = 0;
  std::int64_t in_flight_ = 0;
  std::deque<message> messages_;
  std::vector<message*> free_;
  boxes_type boxes_;
  std::map<std::uint64_t, poisoning> families_;
  std::map<ancestry, communicator_state> communicators_;
  std::uint64_t numbered_ = 0;
};

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
