// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/splitmix.hpp>
#include <dyncp/cpu/op_queue.hpp>
#include <dyncp/runtime/device.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cpu {

/// In which order queued work of different streams runs.
enum class stream_order : std::int32_t {
  eager,     ///< at once, unless it waits for a message or an event
  shuffled,  ///< any order that streams and events allow, from a seed: it finds missing events
};

struct device_options {
  stream_order order = stream_order::eager;
  std::uint64_t seed = 1;               ///< of the shuffled order
  bool poison_memory = false;           ///< fill new memory with NaN of every type
  std::int64_t memory_limit_bytes = 0;  ///< more in use is out_of_memory; 0: no limit
};

/// Host memory as a device, with streams that are queues of the rank's own thread.
///
/// Nothing runs beside the thread: queued work runs inside calls of the device or the fabric. A
/// stream that waits for a message lets the others go on, so an exchange is posted as early as its
/// stream allows and taken as late as somebody waits for it, as on a GPU.
///
/// Models `device`. Thread safety: an object belongs to the thread of its rank. An object stays
/// where it was made and outlives its buffers, events and queued work.
class device {
  struct event_state {
    std::uint64_t era = 0;
    std::uint64_t recorded = 0;
    std::uint64_t reached = 0;
  };

 public:
  struct stream {
    std::int32_t index = 0;
    friend bool operator==(stream, stream) = default;
  };

  class event {
   public:
    event() : state_(std::make_shared<event_state>()) {}

   private:
    friend class device;
    std::shared_ptr<event_state> state_;
  };

  /// Aligned host memory, freed with its owner.
  class buffer {
   public:
    buffer() = default;
    buffer(buffer&& other) noexcept { swap(other); }
    buffer& operator=(buffer&& other) noexcept {
      buffer moved(std::move(other));
      swap(moved);
      return *this;
    }
    ~buffer() {
      if (data_ == nullptr) return;
      owner_->in_use_bytes_ -= bytes_;
      ::operator delete (data_, std::align_val_t{device_alignment_bytes});
    }
    [[nodiscard]] void* data() noexcept { return data_; }
    [[nodiscard]] const void* data() const noexcept { return data_; }
    [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

   private:
    friend class device;
    void swap(buffer& other) noexcept {
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      std::swap(owner_, other.owner_);
    }
    void* data_ = nullptr;
    std::int64_t bytes_ = 0;
    device* owner_ = nullptr;
  };
  using staging = buffer;

  explicit device(device_options options = {}) : options_(options), random_(options.seed) {
    queues_.resize(2);
  }
  device(const device&) = delete;
  device& operator=(const device&) = delete;

  [[nodiscard]] result<buffer> allocate(std::int64_t bytes) {
    buffer out;
    if (bytes < 0) {
      return error{errc::invalid_argument, "an allocation of " + std::to_string(bytes) + " bytes",
                   bytes, 0, "ask for 0 bytes or more"};
    }
    if (options_.memory_limit_bytes > 0 && bytes > options_.memory_limit_bytes - in_use_bytes_) {
      return error{errc::out_of_memory,
                   std::to_string(bytes) + " bytes beside the " + std::to_string(in_use_bytes_) +
                       " in use exceed the device's " + std::to_string(options_.memory_limit_bytes),
                   bytes, options_.memory_limit_bytes - in_use_bytes_,
                   "lower the tokens per rank or the size of the largest group"};
    }
    if (bytes == 0) return out;
    out.data_ = ::operator new (static_cast<std::size_t>(bytes),
                                std::align_val_t{device_alignment_bytes}, std::nothrow);
    if (out.data_ == nullptr) {
      return error{errc::out_of_memory, "the host has no " + std::to_string(bytes) + " bytes left",
                   bytes, 0, "lower the tokens per rank"};
    }
    out.bytes_ = bytes;
    out.owner_ = this;
    in_use_bytes_ += bytes;
    ++allocations_;
    // All bits set is a NaN in float, double and bfloat16.
    if (options_.poison_memory) std::memset(out.data_, 0xff, static_cast<std::size_t>(bytes));
    return out;
  }
  [[nodiscard]] result<staging> allocate_staging(std::int64_t bytes) { return allocate(bytes); }

  /// Bytes in buffers that live.
  [[nodiscard]] std::int64_t memory_in_use() const noexcept { return in_use_bytes_; }
  /// Buffers allocated so far: a steady state adds none.
  [[nodiscard]] std::int64_t allocations() const noexcept { return allocations_; }

  /// The stream of the caller that has no other.
  [[nodiscard]] stream main_stream() const noexcept { return {0}; }
  [[nodiscard]] stream comm_stream() const noexcept { return {1}; }
  [[nodiscard]] stream make_stream() {
    queues_.emplace_back();
    return {static_cast<std::int32_t>(queues_.size()) - 1};
  }

  [[nodiscard]] result<event> make_event() { return event{}; }
  [[nodiscard]] result<void> record(event& e, stream s) {
    e.state_->era = era_;
    const std::uint64_t ticket = ++e.state_->recorded;
    return submit(s, [state = e.state_, ticket]() noexcept -> result<progress> {
      if (state->reached < ticket) state->reached = ticket;
      return progress::done;
    });
  }
  [[nodiscard]] result<void> wait(stream s, const event& e) {
    // Never recorded, or recorded by work that a failure threw away.
    if (e.state_->recorded == 0 || e.state_->era != era_) return {};
    return submit(s, [state = e.state_, ticket = e.state_->recorded]() -> result<progress> {
      return state->reached >= ticket ? progress::done : progress::pending;
    });
  }

  [[nodiscard]] result<void> fill_zero(void* to, std::int64_t bytes, stream s) {
    return run(s, [=] {
      if (bytes > 0) std::memset(to, 0, static_cast<std::size_t>(bytes));
    });
  }
  [[nodiscard]] result<void> copy(void* to, const void* from, std::int64_t bytes, stream s) {
    return run(s, [=] {
      if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
    });
  }
  [[nodiscard]] result<void> copy_strided(void* to, std::int64_t to_stride, const void* from,
                                          std::int64_t from_stride, std::int64_t row_bytes,
                                          std::int64_t rows, stream s) {
    if (to_stride == row_bytes && from_stride == row_bytes)
      return copy(to, from, row_bytes * rows, s);
    return run(s, [=] {
      for (std::int64_t row = 0; row < rows; ++row) {
        std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                    static_cast<const std::byte*>(from) + row * from_stride,
                    static_cast<std::size_t>(row_bytes));
      }
    });
  }
  [[nodiscard]] result<void> upload(void* to, const void* from, std::int64_t bytes, stream s) {
    return copy(to, from, bytes, s);
  }
  [[nodiscard]] result<void> download(void* to, const void* from, std::int64_t bytes, stream s) {
    return copy(to, from, bytes, s);
  }
  [[nodiscard]] result<void> copy_rows(void* to, const void* from, std::span<const row_copy> table,
                                       std::int64_t rows, std::int64_t row_bytes, stream s) {
    static_cast<void>(rows);
    return run(s, [=] {
      auto* const out = static_cast<std::byte*>(to);
      const auto* const in = static_cast<const std::byte*>(from);
      for (const row_copy& c : table) {
        const auto bytes = static_cast<std::size_t>(c.rows * row_bytes);
        if (bytes == 0) continue;
        if (c.src < 0) {
          std::memset(out + c.dst * row_bytes, 0, bytes);
        } else {
          std::memcpy(out + c.dst * row_bytes, in + c.src * row_bytes, bytes);
        }
      }
    });
  }

  /// Queues `work()`, which cannot fail, on stream `s`. The call shape of every kernel.
  template <class Work>
  [[nodiscard]] result<void> run(stream s, Work work) {
    return submit(s, [work = std::move(work)]() -> result<progress> {
      work();
      return progress::done;
    });
  }

  /// Queues `op`, a callable that returns result<progress>, on stream `s`. An error throws away
  /// the queued work of all streams and is returned by the call in which it came up.
  template <class Op>
  [[nodiscard]] result<void> submit(stream s, Op op) {
    op_queue& queue = queues_[static_cast<std::size_t>(s.index)];
    if (options_.order == stream_order::eager && queue.empty()) {
      result<progress> tried = op();
      if (!tried) return drop(std::move(tried).error());
      if (*tried == progress::done) return {};
    }
    queue.push(queued_op(std::move(op)));
    if (auto moved = options_.order == stream_order::eager ? pump() : pump_some(); !moved) {
      return std::move(moved).error();
    }
    return {};
  }

  /// Runs what can run without waiting; true if something was done.
  [[nodiscard]] result<bool> pump() {
    bool any = false;
    if (options_.order == stream_order::shuffled) return pump_shuffled();
    for (bool again = true; again;) {
      again = false;
      for (std::size_t q = 0; q < queues_.size(); ++q) {
        while (!queues_[q].empty()) {
          auto tried = try_front(q);
          if (!tried) return std::move(tried).error();
          if (!*tried) break;
          any = again = true;
        }
      }
    }
    return any;
  }

  [[nodiscard]] bool idle(stream s) const noexcept {
    return queues_[static_cast<std::size_t>(s.index)].empty();
  }

  /// Throws away all queued work, as a failure does; events of that work count as reached.
  void discard() noexcept {
    for (op_queue& queue : queues_) queue.clear();
    ++era_;
  }

 private:
  [[nodiscard]] error drop(error why) {
    discard();
    return why;
  }

  result<bool> try_front(std::size_t q) {
    result<progress> tried = queues_[q].front().run();
    if (!tried) return drop(std::move(tried).error());
    if (*tried == progress::pending) return false;
    queues_[q].pop();
    return true;
  }

  result<bool> pump_some() {
    for (std::uint64_t tries = random_.next() % 3; tries > 0; --tries) {
      const std::size_t q = random_.next() % queues_.size();
      if (queues_[q].empty()) continue;
      auto tried = try_front(q);
      if (!tried) return std::move(tried).error();
    }
    return true;
  }

  result<bool> pump_shuffled() {
    bool any = false;
    for (;;) {
      // One piece of work of a random stream, then draw again. A stream that cannot go on is
      // skipped until another did.
      const std::size_t first = random_.next() % queues_.size();
      bool moved = false;
      for (std::size_t i = 0; i < queues_.size() && !moved; ++i) {
        const std::size_t q = (first + i) % queues_.size();
        if (queues_[q].empty()) continue;
        auto tried = try_front(q);
        if (!tried) return std::move(tried).error();
        moved = *tried;
      }
      if (!moved) return any;
      any = true;
    }
  }

  device_options options_;
  splitmix random_;
  std::vector<op_queue> queues_;
  std::uint64_t era_ = 1;
  std::int64_t in_use_bytes_ = 0;
  std::int64_t allocations_ = 0;
};

static_assert(dyncp::device<device>);

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
