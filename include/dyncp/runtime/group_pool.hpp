// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_handle.hpp>
#include <dyncp/runtime/message.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// How a pool makes the groups that plans ask for.
///
/// | strategy | communicators a rank | groups                      | choose it when               |
/// | -------- | -------------------- | --------------------------- | ---------------------------- |
/// | logical  | 1                    | contiguous ranks, any size  | the default: least memory,   |
/// |          |                      |                             | nothing to build per size    |
/// | split    | 1 + one per size     | aligned blocks of the sizes | the library tunes each       |
/// |          |                      |                             | communicator for its members |
///
/// Both need the same order of exchanges on all members of a group, which a plan gives: every
/// rank runs the micro-batches in one order, with at most one group at a time.
enum class pool_strategy : std::int32_t { logical, split };

struct pool_options {
  pool_strategy strategy = pool_strategy::logical;
  /// Sizes of the groups; each divides the number of ranks. Empty: the powers of two that divide
  /// it, and for `logical` any contiguous group besides.
  std::vector<std::int32_t> sizes = {};
  /// Run one small exchange round every ring in both directions, so that the first micro-batch
  /// finds its connections made.
  bool warm_up = true;
  /// More bytes than this for one size is out_of_memory; 0: no limit.
  std::int64_t memory_limit_bytes = 0;
};

/// What making the groups of one size took, on this rank.
struct group_cost {
  std::int32_t size = 0;
  std::int32_t groups = 0;  ///< of this size in the domain
  double milliseconds = 0;
  double mebibytes = 0;
};

/// The CP groups of a DPxCP domain, made once before the first step.
///
/// `create` is collective: every rank calls it with the same options. Groups are made in ascending
/// order of size, the same on all ranks whatever it asks for later; a rank that would make them in
/// another order, or other ones, makes `create` fail on all ranks. A group of one rank has no
/// communicator, that of all ranks is the parent.
///
/// Errors of any exchange poison the pool: this rank's call returns the error, every later call
/// and every call that waits on another rank returns `aborted`. `fail` does the same by hand. To
/// go on, all ranks destroy the pool and create a new one, whose generation differs.
///
/// Memory and time per size are reported by `costs`. Destruction closes splits in reverse order,
/// then the parent. Thread safety: a pool belongs to the thread of its rank.
///
/// Example:
///   auto pool = dyncp::group_pool<decltype(backend)>::create(backend, {});
///   if (!pool) return pool.error();
///   auto group = pool->group(4);  // ranks 4*k..4*k+3, this one among them
template <backend B>
class group_pool {
 public:
  using stream = typename B::device_type::stream;

  [[nodiscard]] static result<group_pool> create(B& backend, const pool_options& options) {
    auto parent = backend.fabric().open();
    if (!parent) return std::move(parent).error();
    group_pool pool(backend, options.strategy, std::move(*parent));
    DYNCP_TRY(pool.agree_on(options));
    if (auto built = pool.build(options); !built) {
      pool.fail(built.error());
      return std::move(built).error();
    }
    return pool;
  }

  group_pool(group_pool&& other) noexcept
      : backend_(std::exchange(other.backend_, nullptr)),
        strategy_(other.strategy_),
        any_group_(other.any_group_),
        sizes_(std::move(other.sizes_)),
        communicators_(std::move(other.communicators_)),
        communicator_sizes_(std::move(other.communicator_sizes_)),
        costs_(std::move(other.costs_)),
        out_(std::move(other.out_)),
        in_(std::move(other.in_)) {}
  group_pool& operator=(group_pool&&) = delete;
  ~group_pool() { close(); }

  /// This rank's aligned group of `size` ranks.
  ///
  /// Errors: invalid_argument for a size that does not divide the ranks, not_created for one that
  /// the pool was not asked to make.
  [[nodiscard]] result<group_handle> group(std::int32_t size) const {
    const std::int32_t ranks = communicators_.front().size();
    if (size < 1 || ranks % size != 0) return does_not_divide(size, ranks);
    return group(rank_range{rank() / size * size, size});
  }

  /// The group of the ranks `range`, this one among them.
  ///
  /// Errors: invalid_argument for ranks outside the domain or without this one, not_created for a
  /// group that the pool was not asked to make.
  [[nodiscard]] result<group_handle> group(rank_range range) const {
    const std::int32_t ranks = communicators_.front().size();
    if (range.size < 1 || range.begin < 0 || range.end() > ranks || !range.contains(rank())) {
      return error{errc::invalid_argument,
                   name_of(range) + " asked for by rank " + std::to_string(rank()) + " of " +
                       std::to_string(ranks),
                   range.size, ranks, "ask for a group of the domain that holds this rank"};
    }
    group_handle handle{generation(), range, rank() - range.begin, 0};
    if (range.size == 1) {
      handle.communicator = -1;
      return handle;
    }
    if (range.size == ranks) return handle;
    const bool made = std::find(sizes_.begin(), sizes_.end(), range.size) != sizes_.end();
    if (!any_group_ && (!made || range.begin % range.size != 0)) {
      return error{errc::not_created, "the " + name_of(range) + " was not created", range.size, 0,
                   made ? "its groups begin at multiples of their size"
                        : "name its size in pool_options::sizes"};
    }
    if (strategy_ == pool_strategy::split) {
      for (std::size_t c = 1; c < communicators_.size(); ++c) {
        if (communicator_sizes_[c] == range.size)
          handle.communicator = static_cast<std::int32_t>(c);
      }
    }
    return handle;
  }

  /// Queues one grouped exchange with members of `group` on `s`; peers count within the group.
  ///
  /// Errors: mismatch for a handle of another pool; those of the fabric, which poison the pool.
  [[nodiscard]] result<void> exchange(const group_handle& group, std::span<const outgoing> out,
                                      std::span<const incoming> in, stream s) {
    return checked(group, out, in, [&](auto& comm, auto o, auto i) {
      return backend_->fabric().exchange(comm, o, i, s);
    });
  }

  /// The same with host memory; returns when it is done.
  [[nodiscard]] result<void> exchange_host(const group_handle& group, std::span<const outgoing> out,
                                           std::span<const incoming> in) {
    return checked(group, out, in, [&](auto& comm, auto o, auto i) {
      return backend_->fabric().exchange_host(comm, o, i);
    });
  }

  /// Waits for `s`, bounded by the fabric's deadline. An error poisons the pool.
  [[nodiscard]] result<void> synchronize(stream s) {
    auto done = backend_->fabric().synchronize(s);
    if (!done) fail(done.error());
    return done;
  }

  /// A group as the `host_channel` of the small collectives. Valid while the pool lives unmoved.
  class channel_type {
   public:
    [[nodiscard]] std::int32_t rank() const noexcept { return group_.index; }
    [[nodiscard]] std::int32_t size() const noexcept { return group_.size(); }
    [[nodiscard]] result<void> exchange_host(std::span<const outgoing> out,
                                             std::span<const incoming> in) {
      return pool_->exchange_host(group_, out, in);
    }

   private:
    friend class group_pool;
    channel_type(group_pool& pool, const group_handle& group) : pool_(&pool), group_(group) {}
    group_pool* pool_;
    group_handle group_;
  };
  [[nodiscard]] channel_type channel(const group_handle& group) {
    return channel_type(*this, group);
  }
  /// All ranks of the domain.
  [[nodiscard]] group_handle everyone() const {
    const std::int32_t ranks = communicators_.front().size();
    return {generation(), {0, ranks}, rank(), ranks == 1 ? -1 : 0};
  }

  /// Poisons the pool on every rank.
  void fail(const error& why) {
    if (backend_ != nullptr) backend_->fabric().fail(communicators_.front(), why);
  }
  /// Success, or `aborted` with the first reason.
  [[nodiscard]] result<void> health() { return backend_->fabric().health(communicators_.front()); }

  [[nodiscard]] std::int32_t rank() const noexcept { return communicators_.front().rank(); }
  [[nodiscard]] std::int32_t ranks() const noexcept { return communicators_.front().size(); }
  [[nodiscard]] std::uint64_t generation() const noexcept {
    return communicators_.front().family();
  }
  [[nodiscard]] pool_strategy strategy() const noexcept { return strategy_; }
  [[nodiscard]] B& owner() const noexcept { return *backend_; }

  /// One entry per size, ascending; the last is the parent's.
  [[nodiscard]] std::span<const group_cost> costs() const noexcept { return costs_; }

 private:
  using communicator = typename B::fabric_type::communicator;

  group_pool(B& backend, pool_strategy strategy, communicator parent)
      : backend_(&backend), strategy_(strategy) {
    communicators_.push_back(std::move(parent));
    communicator_sizes_.push_back(communicators_.front().size());
  }

  [[nodiscard]] static std::string name_of(rank_range range) {
    return "group of ranks " + std::to_string(range.begin) + ".." + std::to_string(range.end() - 1);
  }
  [[nodiscard]] static error does_not_divide(std::int32_t size, std::int32_t ranks) {
    return error{errc::invalid_argument,
                 "a group size of " + std::to_string(size) + " does not divide the " +
                     std::to_string(ranks) + " ranks of the domain",
                 size, ranks,
                 "use a size that divides it, or ask a logical pool for a range of ranks"};
  }

  /// Refuses what all ranks refuse alike, without poison: nobody is left waiting. Agreement comes
  /// before any check, since one that fails on some ranks alone would leave the others behind.
  [[nodiscard]] result<void> agree_on(const pool_options& options) {
    const std::int32_t ranks = communicators_.front().size();
    word_digest digest;
    digest.add(static_cast<std::int32_t>(options.strategy));
    digest.add(options.warm_up);
    for (std::int32_t size : options.sizes) digest.add(size);
    if (ranks > 1) {
      auto all = channel(everyone());
      DYNCP_TRY(agree(all, digest.value(), "the groups of the pool"));
    }

    sizes_ = options.sizes;
    any_group_ = strategy_ == pool_strategy::logical && sizes_.empty();
    if (sizes_.empty()) {
      for (std::int64_t size = 1; size <= ranks; size *= 2) {
        if (ranks % size == 0) sizes_.push_back(static_cast<std::int32_t>(size));
      }
    }
    for (std::int32_t size : sizes_) {
      if (size < 1 || ranks % size != 0) return does_not_divide(size, ranks);
    }
    std::sort(sizes_.begin(), sizes_.end());
    sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
    if (sizes_.empty() || sizes_.back() != ranks) sizes_.push_back(ranks);
    return {};
  }

  [[nodiscard]] result<void> build(const pool_options& options) {
    communicators_.reserve(sizes_.size() + 1);
    for (std::int32_t size : sizes_) DYNCP_TRY(build_size(size, options));
    if (ranks() > 1) {
      auto all = channel(everyone());
      DYNCP_TRY(barrier(all));
    }
    return {};
  }

  [[nodiscard]] result<void> build_size(std::int32_t size, const pool_options& options) {
    const std::int32_t ranks = communicators_.front().size();
    auto& fabric = backend_->fabric();
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t before = fabric.memory_in_use() + backend_->device().memory_in_use();
    if (strategy_ == pool_strategy::split && size > 1 && size < ranks) {
      auto child = fabric.split(communicators_.front(), rank() / size, rank());
      if (!child) return std::move(child).error();
      if (child->size() != size || child->rank() != rank() % size) {
        return error{errc::mismatch,
                     "the split for groups of " + std::to_string(size) + " made one of " +
                         std::to_string(child->size()),
                     child->size(), size, "make the same groups in the same order on all ranks"};
      }
      communicators_.push_back(std::move(*child));
      communicator_sizes_.push_back(size);
    }
    if (options.warm_up && size > 1) {
      auto handle = group(size);
      if (!handle) return std::move(handle).error();
      for (std::int32_t direction : {1, -1}) DYNCP_TRY(greet(*handle, direction));
    }
    const std::int64_t bytes = fabric.memory_in_use() + backend_->device().memory_in_use() - before;
    if (options.memory_limit_bytes > 0 && bytes > options.memory_limit_bytes) {
      return error{errc::out_of_memory,
                   "the groups of " + std::to_string(size) + " ranks take " +
                       std::to_string(bytes) + " bytes",
                   bytes, options.memory_limit_bytes, "use logical groups, or fewer sizes"};
    }
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    costs_.push_back({size, ranks / size, time.count(), static_cast<double>(bytes) / 1048576.0});
    return {};
  }

  /// Tells the neighbour who this is in which group, and checks what the other neighbour says:
  /// groups that were made in different orders are found here, not in the first micro-batch.
  [[nodiscard]] result<void> greet(const group_handle& handle, std::int32_t direction) {
    struct greeting {
      std::int32_t rank;
      std::int32_t size;
    };
    auto& device = backend_->device();
    const stream s = device.comm_stream();
    constexpr std::int64_t bytes = sizeof(greeting);
    auto memory = device.allocate(2 * bytes);
    if (!memory) return std::move(memory).error();
    auto host = device.allocate_staging(2 * bytes);
    if (!host) return std::move(host).error();
    auto* const words = static_cast<greeting*>(host->data());
    auto* const place = static_cast<greeting*>(memory->data());
    const std::int32_t size = handle.size();
    const std::int32_t to = (handle.index + direction + size) % size;
    const std::int32_t from = (handle.index - direction + size) % size;
    words[0] = {rank(), size};
    DYNCP_TRY(device.upload(place, words, bytes, s));
    const outgoing out{to, place, bytes};
    const incoming in{from, place + 1, bytes};
    DYNCP_TRY(exchange(handle, {&out, 1}, {&in, 1}, s));
    DYNCP_TRY(device.download(words + 1, place + 1, bytes, s));
    DYNCP_TRY(synchronize(s));
    if (words[1].rank != handle.ranks.begin + from || words[1].size != size) {
      return error{errc::mismatch,
                   "rank " + std::to_string(words[1].rank) + " of a group of " +
                       std::to_string(words[1].size) + " greets rank " + std::to_string(rank()) +
                       " of a group of " + std::to_string(size),
                   words[1].rank, handle.ranks.begin + from,
                   "make the same groups in the same order on all ranks"};
    }
    return {};
  }

  template <class Call>
  [[nodiscard]] result<void> checked(const group_handle& group, std::span<const outgoing> out,
                                     std::span<const incoming> in, Call call) {
    // Refused without poison: the ranks that hold an old handle hold it together.
    if (group.generation != generation()) {
      return error{errc::mismatch,
                   "a group of pool generation " + std::to_string(group.generation) +
                       " used with generation " + std::to_string(generation()),
                   static_cast<std::int64_t>(group.generation),
                   static_cast<std::int64_t>(generation()),
                   "ask the new pool for the group; contexts saved before cannot be used"};
    }
    auto done = [&]() -> result<void> {
      if (group.communicator < 0) {
        if (out.empty() && in.empty()) return {};
        return error{errc::invalid_argument, "a message in a group of one rank",
                     static_cast<std::int64_t>(out.size() + in.size()), 0, "send none"};
      }
      auto& comm = communicators_[static_cast<std::size_t>(group.communicator)];
      if (group.communicator > 0 || group.size() == ranks()) return call(comm, out, in);
      out_.assign(out.begin(), out.end());
      in_.assign(in.begin(), in.end());
      for (outgoing& m : out_) m.peer = parent_rank(group, m.peer);
      for (incoming& m : in_) m.peer = parent_rank(group, m.peer);
      return call(comm, std::span<const outgoing>(out_), std::span<const incoming>(in_));
    }();
    if (!done) fail(done.error());
    return done;
  }

  // A peer outside the group stays outside the parent, where the fabric refuses it.
  [[nodiscard]] static std::int32_t parent_rank(const group_handle& group,
                                                std::int32_t peer) noexcept {
    return peer < 0 || peer >= group.size() ? -1 : group.ranks.begin + peer;
  }

  void close() noexcept {
    if (backend_ == nullptr) return;
    while (!communicators_.empty()) {
      backend_->fabric().close(communicators_.back());
      communicators_.pop_back();
    }
    backend_ = nullptr;
  }

  B* backend_;
  pool_strategy strategy_;
  bool any_group_ = false;
  std::vector<std::int32_t> sizes_;
  std::vector<communicator> communicators_;       // parent, then splits by ascending size
  std::vector<std::int32_t> communicator_sizes_;  // (communicators)
  std::vector<group_cost> costs_;
  std::vector<outgoing> out_;  // kept between calls, so that they allocate nothing
  std::vector<incoming> in_;
};

}  // namespace v0
}  // namespace dyncp
