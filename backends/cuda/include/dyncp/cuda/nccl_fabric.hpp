// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cuda/bootstrap.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/fabric_abi.hpp>
#include <dyncp/cuda/library.hpp>
#include <dyncp/cuda/profiler_range.hpp>
#include <dyncp/cuda/used_streams.hpp>
#include <dyncp/runtime/exchange_check.hpp>
#include <dyncp/runtime/fabric.hpp>
#include <dyncp/runtime/message.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// What becomes of a communicator that the caller gave.
///
/// | adoption         | pools run on                 | after a failure                            |
/// | ---------------- | ---------------------------- | ------------------------------------------ |
/// | child            | a split of it for each pool  | the splits are aborted, it is left alone   |
/// | direct           | itself, one at a time        | it is left alone; what hangs on it hangs   |
/// | direct_may_abort | itself                       | it is aborted, and the caller's no more    |
enum class adoption : std::int32_t { child, direct, direct_may_abort };

struct nccl_options {
  std::int64_t deadline_us = 60'000'000;  ///< of every wait, from when it begins
  /// Splits share buffers with their parent (ncclConfig_t::splitShare): less memory, but a failure
  /// of one is a failure of all, and operations of parent and child must not overlap.
  bool share_resources = false;
  std::int32_t max_ctas = 0;  ///< blocks of NCCL's kernels, which attention lacks; 0: NCCL decides
  /// Before each exchange of device memory both ends compare sizes, with a host round trip. NCCL
  /// itself does not notice sizes that differ: it hangs, or delivers garbage. For finding bugs.
  bool compare_sizes = false;
  adoption adopted = adoption::child;
};

/// Success if the NCCL that the program runs with serves the compiled library.
///
/// Errors: unsupported without NCCL, mismatch for an older NCCL or another major version than the
/// library was compiled with.
[[nodiscard]] inline result<void> check_nccl(std::int64_t compiled, std::int64_t running) {
  if (compiled == 0) {
    return make_error(errc::unsupported, "the CUDA library was built without NCCL",
                      "build dyncp with -Dnccl=enabled");
  }
  if (running < compiled || running / 10000 != compiled / 10000) {
    return error{errc::mismatch,
                 "the CUDA library was compiled with NCCL " + std::to_string(compiled) +
                     ", the program runs with " + std::to_string(running),
                 running, compiled,
                 "put an NCCL of the same major version, that one or later, first in the path of "
                 "libraries"};
  }
  return {};
}

/// One rank of a job whose GPUs NCCL connects.
///
/// Models `fabric`. Communicators are nonblocking: every wait is a loop that asks NCCL for errors,
/// hears of other ranks' failures and knows its deadline. The first failure of a family aborts all
/// communicators of the family, before memory is freed; the other ranks hear of it from the
/// bootstrap, or find their deadline. Nothing is created, and no memory taken, once a pool is made
/// and warmed up.
///
/// Host messages travel through NCCL, too, in a pair of buffers made at creation, 32 KiB for each
/// other rank: order among all exchanges is that of the calls. `memory_in_use` is what the GPU lost
/// while communicators and connections were made; what another program took at that moment is
/// counted, too.
///
/// Thread safety: an object belongs to the thread of its rank. The device outlives it. Errors:
/// timeout, peer_failed, mismatch, aborted, backend_failure with NCCL's words, those of the device.
class nccl_fabric {
  /// A communicator of NCCL. Stays where it is: NCCL writes the handle of a split late.
  struct entry {
    nccl_handle handle = nullptr;
    std::uint64_t family = 0;
    std::int64_t number = 0;  // 1, 2, ... for people
    bool owned = true;
    bool may_abort = true;
    bool aborted = false;
    std::vector<bool> met;  // peers with a connection, 2 * peer + direction
  };

 public:
  using stream = cuda::stream;

  class communicator {
   public:
    [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
    [[nodiscard]] std::int32_t size() const noexcept { return size_; }
    [[nodiscard]] std::uint64_t family() const noexcept { return family_; }
    /// ncclComm_t, for what NCCL offers beyond exchanges; null once its family has failed.
    [[nodiscard]] nccl_handle native() const noexcept {
      return entry_ == nullptr ? nullptr : entry_->handle;
    }

   private:
    friend class nccl_fabric;
    std::shared_ptr<entry> entry_;
    std::uint64_t family_ = 0;
    std::int32_t rank_ = 0;
    std::int32_t size_ = 1;
  };

  /// Collective over the ranks of `connection`; each pool gets a communicator of its own.
  ///
  /// Errors: those of check_nccl; out_of_memory; invalid_argument for a bootstrap without
  /// broadcast.
  [[nodiscard]] static result<std::unique_ptr<nccl_fabric>> create(
      device& local, const bootstrap& connection, const nccl_options& options = {}) {
    if (connection.ranks < 1 || connection.rank < 0 || connection.rank >= connection.ranks ||
        (connection.ranks > 1 && !connection.broadcast)) {
      return error{errc::invalid_argument,
                   "a bootstrap of rank " + std::to_string(connection.rank) + " of " +
                       std::to_string(connection.ranks) +
                       (connection.broadcast ? "" : " without a broadcast"),
                   connection.rank, connection.ranks,
                   "give rank, number of ranks, and a function that copies rank 0's bytes to all"};
    }
    std::unique_ptr<nccl_fabric> out(new nccl_fabric(local, connection, options));
    DYNCP_TRY(out->prepare());
    return out;
  }

  /// On a communicator of the caller's, which outlives the fabric and is destroyed by the caller.
  /// It should be nonblocking (ncclConfig_t::blocking = 0): on a blocking one, making a split of it
  /// waits as long as NCCL does.
  ///
  /// `connection` may be empty; only its `tell` and `hear` are used. No rank has operations of its
  /// own on `comm` in flight while a pool is made. Errors: as create; invalid_argument if `comm` is
  /// null or on another GPU than `local`.
  [[nodiscard]] static result<std::unique_ptr<nccl_fabric>> adopt(
      device& local, nccl_handle comm, const nccl_options& options = {},
      const bootstrap& connection = {}) {
    if (comm == nullptr) {
      return make_error(errc::invalid_argument, "no communicator to adopt");
    }
    std::unique_ptr<nccl_fabric> out(new nccl_fabric(local, connection, options));
    out->adopted_ = std::make_shared<entry>();
    out->adopted_->handle = comm;
    out->adopted_->owned = false;
    out->adopted_->may_abort = options.adopted == adoption::direct_may_abort;
    DYNCP_TRY(check_library());
    DYNCP_TRY(check_nccl(loaded_library().nccl_version, abi::nccl_runtime_version()));
    std::int32_t rank = 0;
    std::int32_t ranks = 1;
    std::int32_t ordinal = 0;
    DYNCP_TRY(out->called(abi::nccl_describe(local.handle(), comm, &rank, &ranks, &ordinal)));
    if (ordinal != local.ordinal()) {
      return error{errc::invalid_argument,
                   "rank " + std::to_string(rank) + ": the communicator is on GPU " +
                       std::to_string(ordinal) + ", the device is GPU " +
                       std::to_string(local.ordinal()),
                   ordinal, local.ordinal(), "open the device of the communicator"};
    }
    out->connection_.rank = rank;
    out->connection_.ranks = ranks;
    DYNCP_TRY(out->prepare());
    return out;
  }

  nccl_fabric(const nccl_fabric&) = delete;
  nccl_fabric& operator=(const nccl_fabric&) = delete;
  ~nccl_fabric() {
    // Pools are gone; what is left belongs to communicators that were lost on the way.
    abort_if([](const entry& e) { return e.owned; });
    // The buffers of host messages may be in use by what was cut short: not beyond the deadline.
    static_cast<void>(drain(device_->comm_stream()));
  }

  [[nodiscard]] std::int32_t rank() const noexcept { return connection_.rank; }
  [[nodiscard]] std::int32_t ranks() const noexcept { return connection_.ranks; }
  [[nodiscard]] std::int64_t memory_in_use() const noexcept { return taken_bytes_; }

  [[nodiscard]] result<communicator> open() {
    const profiler_range range("dyncp open");
    lost_work_.reset();
    const std::uint64_t family = ++opened_;
    if (adopted_ != nullptr && options_.adopted != adoption::child) return open_adopted(family);
    auto e = add_entry(family);
    const std::int64_t before = free_bytes();
    auto made = adopted_ != nullptr ? split_into(*e, *adopted_, 0, rank()) : begin_into(*e);
    if (made) made = finish_making(*e, "all ranks at the opening of a communicator");
    count_memory(before);
    if (!made) return poison(family, made.error());
    return describe(std::move(e));
  }

  [[nodiscard]] result<communicator> split(communicator& parent, std::int32_t color,
                                           std::int32_t key) {
    const profiler_range range("dyncp split");
    DYNCP_TRY(health(parent));
    if (color < 0) {
      return error{errc::invalid_argument, "a split with color " + std::to_string(color), color, 0,
                   "count colors from 0"};
    }
    auto e = add_entry(parent.family_);
    const std::int64_t before = free_bytes();
    // NCCL wants no operation of the parent in flight.
    auto made = drain(device_->comm_stream());
    if (made) made = split_into(*e, *parent.entry_, color, key);
    if (made) made = finish_making(*e, "all ranks at a split of a communicator");
    count_memory(before);
    if (!made) return poison(parent.family_, made.error());
    return describe(std::move(e));
  }

  void close(communicator& comm) noexcept {
    const std::shared_ptr<entry> e = std::exchange(comm.entry_, nullptr);
    if (e == nullptr) return;
    if (e->handle != nullptr && e->owned) {
      const std::int64_t before = free_bytes();
      auto ended = end(*e);
      if (ended) {
        abi::nccl_free(device_->handle(), std::exchange(e->handle, nullptr));
      } else {
        // It is not aborted alone: others of its family may hang as it does.
        static_cast<void>(poison(e->family, std::move(ended).error()));
      }
      count_memory(before);
    }
    std::erase(entries_, e);
  }

  [[nodiscard]] result<void> exchange(communicator& comm, std::span<const outgoing> out,
                                      std::span<const incoming> in, stream s) {
    const profiler_range range("dyncp exchange");
    DYNCP_TRY(check_exchange(comm.rank(), comm.size(), out, in));
    DYNCP_TRY(health(comm));
    if (options_.compare_sizes) DYNCP_TRY(compare_sizes(comm, out, in));
    gather_messages(out, in);
    return judged(comm, queue(comm, s));
  }

  [[nodiscard]] result<void> exchange_host(communicator& comm, std::span<const outgoing> out,
                                           std::span<const incoming> in) {
    DYNCP_TRY(check_exchange(comm.rank(), comm.size(), out, in));
    DYNCP_TRY(health(comm));
    return judged(comm, exchange_parts(comm, out, in));
  }

  [[nodiscard]] result<void> synchronize(stream s) {
    auto done = drain(s);
    if (!done) {
      // Nobody can tell which pool it belongs to: none may go on.
      std::vector<std::uint64_t> families;
      for (const auto& e : entries_) families.push_back(e->family);
      poison_all(families, done.error());
      lost_work_.reset();
      return done;
    }
    // What an abort cut short is done as far as the stream knows.
    if (lost_work_) {
      error why = std::move(*lost_work_);
      lost_work_.reset();
      return why;
    }
    return {};
  }

  void fail(communicator& comm, const error& why) {
    static_cast<void>(poison(comm.family_, why));
  }
  [[nodiscard]] result<void> health(const communicator& comm) {
    listen();
    if (const auto found = poisoned_.find(comm.family_); found != poisoned_.end()) {
      return found->second;
    }
    return {};
  }

 private:
  // The first message of a host exchange carries its size and as much as fits beside it; pieces of
  // the rest follow. So both ends agree on every message that NCCL sees, whatever they think.
  struct head {
    std::int64_t bytes = 0;
    std::array<std::byte, 248> data = {};
  };
  static constexpr std::int64_t piece_bytes = 16384;
  static constexpr std::size_t marks_kept = 32;

  struct host_part {
    std::int32_t peer = 0;
    const std::byte* from = nullptr;  // null: arrives
    std::byte* to = nullptr;
    std::int64_t bytes = 0;
  };
  /// An exchange of device memory, for the text of a timeout.
  struct mark {
    std::optional<device::event> event;
    std::int64_t number = -1;
    std::int64_t communicator = 0;
    std::string peers;
  };

  nccl_fabric(device& local, const bootstrap& connection, const nccl_options& options)
      : device_(&local), connection_(connection), options_(options) {}

  [[nodiscard]] result<void> prepare() {
    DYNCP_TRY(check_library());
    DYNCP_TRY(check_nccl(loaded_library().nccl_version, abi::nccl_runtime_version()));
    return provide_slots();
  }

  [[nodiscard]] result<void> called(const abi::status& s) const { return abi::to_result(s); }

  // --- memory

  [[nodiscard]] std::int64_t free_bytes() const noexcept {
    std::int64_t bytes = 0;
    return abi::free_memory(device_->handle(), &bytes).failed != 0 ? 0 : bytes;
  }
  void count_memory(std::int64_t before) noexcept {
    const std::int64_t after = free_bytes();
    if (before > 0 && after > 0) taken_bytes_ = std::max<std::int64_t>(0, taken_bytes_ + before -
                                                                              after);
  }

  /// Room for the host messages of any exchange, one for each other rank and direction. To take
  /// pinned memory later could wait for the GPU, where an exchange may wait for this rank.
  [[nodiscard]] result<void> provide_slots() {
    const std::int64_t bytes = 2 * std::int64_t{ranks() - 1} * piece_bytes;
    auto memory = device_->allocate(bytes);
    if (!memory) return std::move(memory).error();
    auto host = device_->allocate_staging(bytes);
    if (!host) return std::move(host).error();
    memory_ = std::move(*memory);
    host_ = std::move(*host);
    return {};
  }

  // --- communicators

  [[nodiscard]] std::shared_ptr<entry> add_entry(std::uint64_t family) {
    auto e = std::make_shared<entry>();
    e->family = family;
    e->number = ++communicators_;
    entries_.push_back(e);
    return e;
  }

  [[nodiscard]] abi::nccl_request request() const noexcept {
    return {options_.share_resources ? 1 : 0, options_.max_ctas};
  }

  [[nodiscard]] result<void> begin_into(entry& e) {
    struct {
      std::int32_t good;
      std::array<char, abi::nccl_id_bytes> id;
    } frame = {};
    abi::status made;
    if (rank() == 0) {
      made = abi::nccl_make_id(device_->handle(), frame.id.data());
      frame.good = made.failed == 0 ? 1 : 0;
    }
    // Sent even if rank 0 has none: the others wait for it.
    if (ranks() > 1) {
      DYNCP_TRY(detail::call_back(rank(), "broadcast", [&] {
        return connection_.broadcast(std::as_writable_bytes(std::span(&frame, 1)));
      }));
    }
    DYNCP_TRY(called(made));
    if (frame.good == 0) {
      return make_error(errc::peer_failed, "rank 0 could not make an id for NCCL",
                        "see the error of rank 0");
    }
    return called(abi::nccl_begin(device_->handle(), frame.id.data(), ranks(), rank(), request(),
                                  &e.handle));
  }

  [[nodiscard]] result<void> split_into(entry& e, entry& parent, std::int32_t color,
                                        std::int32_t key) {
    DYNCP_TRY(called(abi::nccl_begin_split(device_->handle(), parent.handle, color, key, request(),
                                           &e.handle)));
    auto made = wait_for(e.family, [] { return "all ranks at a split of a communicator"; }, parent);
    // A parent that is not aborted goes on with it, and may write the handle after this object has
    // gone: the few bytes are left to it for good.
    if (!made && !parent.may_abort) {
      for (const auto& kept : entries_) {
        if (kept.get() == &e) static_cast<void>(new std::shared_ptr<entry>(kept));
      }
    }
    return made;
  }

  [[nodiscard]] result<void> finish_making(entry& e, const char* what) {
    if (e.handle == nullptr) {
      return make_error(errc::backend_failure,
                        "rank " + std::to_string(rank()) + ": NCCL made no communicator");
    }
    return wait_for(e.family, [what] { return what; }, e);
  }

  [[nodiscard]] result<communicator> open_adopted(std::uint64_t family) {
    if (adopted_->aborted || adopted_failed_) {
      return make_error(errc::unsupported, "rank " + std::to_string(rank()) +
                        ": a pool failed on the adopted communicator itself",
                        "give a new communicator, or adopt with adoption::child");
    }
    if (std::find(entries_.begin(), entries_.end(), adopted_) != entries_.end()) {
      return make_error(errc::unsupported, "rank " + std::to_string(rank()) +
                        ": a second pool on the adopted communicator itself",
                        "close the first pool, or adopt with adoption::child");
    }
    adopted_->family = family;
    adopted_->number = ++communicators_;
    entries_.push_back(adopted_);
    return describe(adopted_);
  }

  [[nodiscard]] result<communicator> describe(std::shared_ptr<entry> e) {
    communicator out;
    out.family_ = e->family;
    std::int32_t ordinal = 0;
    DYNCP_TRY(called(abi::nccl_describe(device_->handle(), e->handle, &out.rank_, &out.size_,
                                        &ordinal)));
    e->met.assign(2 * static_cast<std::size_t>(out.size_), false);
    out.entry_ = std::move(e);
    return out;
  }

  /// Aborts all for which which(entry) holds, at once: NCCL frees in the same call, which waits for
  /// the GPU, and so for what hangs on a communicator that is not aborted yet.
  template <class F>
  void abort_if(F which) noexcept {
    std::vector<nccl_handle> lost;
    for (const auto& e : entries_) {
      if (e->handle == nullptr || !e->may_abort || !which(*e)) continue;
      e->aborted = true;
      lost.push_back(std::exchange(e->handle, nullptr));
    }
    if (lost.empty()) return;
    abi::nccl_abort(device_->handle(), lost.data(), static_cast<std::int32_t>(lost.size()));
  }

  // --- failures

  /// An error of its own poisons the family; one that was heard of has done so.
  [[nodiscard]] result<void> judged(const communicator& comm, result<void> done) {
    if (done || done.error().code == errc::aborted) return done;
    return poison(comm.family_, std::move(done).error());
  }

  /// Tells all other ranks and poisons the family here; returns `why`, or the first reason if it
  /// was poisoned before.
  error poison(std::uint64_t family, error why) {
    if (const auto found = poisoned_.find(family); found != poisoned_.end()) return found->second;
    if (why.code == errc::aborted) why.code = errc::backend_failure;
    poison_all({&family, 1}, why);
    return why;
  }

  /// The others hear of it first: to abort may take a while, and they wait meanwhile.
  void poison_all(std::span<const std::uint64_t> families, const error& why) {
    failure_notice notice;
    notice.rank = rank();
    const std::size_t length = std::min(why.what.size(), notice.text.size() - 1);
    std::memcpy(notice.text.data(), why.what.data(), length);
    bool fresh = false;
    for (const std::uint64_t family : families) {
      if (!remember(family, rank(), why.what)) continue;
      fresh = true;
      if (!connection_.tell) continue;
      notice.family = family;
      static_cast<void>(detail::call_back(rank(), "tell", [&]() -> result<void> {
        connection_.tell(notice);
        return {};
      }));
    }
    if (fresh) end_poisoned();
  }

  void listen() {
    if (!connection_.hear) return;
    failure_notice notice;
    bool fresh = false;
    for (bool more = true; more;) {
      more = false;
      static_cast<void>(detail::call_back(rank(), "hear", [&]() -> result<void> {
        more = connection_.hear(notice);
        return {};
      }));
      if (!more) break;
      notice.text.back() = '\0';
      fresh = remember(notice.family, notice.rank, notice.text.data()) || fresh;
    }
    if (fresh) end_poisoned();
  }

  /// From now on calls on this family fail; false if they did before.
  bool remember(std::uint64_t family, std::int32_t from, const std::string& what) {
    const error why{errc::aborted, "rank " + std::to_string(from) + " failed first: " + what, from,
                    0, "open a new pool; the old one cannot be used any more"};
    if (!poisoned_.try_emplace(family, why).second) return false;
    if (queued_family_ == family) lost_work_ = why;
    return true;
  }

  /// Aborts what poisoned families have.
  void end_poisoned() {
    const auto lost = [this](const entry& e) { return poisoned_.contains(e.family); };
    for (const auto& e : entries_) {
      if (e == adopted_ && lost(*e)) adopted_failed_ = true;
    }
    abort_if(lost);
    // What was aborted ends soon; until then it uses memory that the caller may free next.
    if (!adopted_failed_ || options_.adopted == adoption::direct_may_abort) {
      used_.settle(*device_, options_.deadline_us);
    }
  }

  // --- waits

  [[nodiscard]] error late(const std::string& what) const {
    return error{errc::timeout,
                 "rank " + std::to_string(rank()) + " waited " +
                     std::to_string(options_.deadline_us) + " us for " + what,
                 options_.deadline_us, options_.deadline_us,
                 "see why that rank is late, or raise the deadline"};
  }

  /// Until nothing that was begun on `e` is on its way; what() tells for whom it waits.
  template <class Text>
  [[nodiscard]] result<void> wait_for(std::uint64_t family, Text what, entry& e) {
    const std::int64_t begin = abi::clock_us();
    for (std::int64_t round = 0;; ++round) {
      bool done = false;
      if (e.handle != nullptr) {
        DYNCP_TRY(called(abi::nccl_poll(device_->handle(), e.handle, &done)));
      }
      if (done) return {};
      listen();
      if (const auto found = poisoned_.find(family); found != poisoned_.end()) {
        return found->second;
      }
      if (abi::clock_us() - begin >= options_.deadline_us) return late(what());
      abi::pause(round);
    }
  }

  /// Ends a communicator in order, whatever is heard meanwhile.
  [[nodiscard]] result<void> end(entry& e) {
    DYNCP_TRY(called(abi::nccl_begin_close(device_->handle(), e.handle)));
    const std::int64_t begin = abi::clock_us();
    for (std::int64_t round = 0;; ++round) {
      bool done = false;
      DYNCP_TRY(called(abi::nccl_poll(device_->handle(), e.handle, &done)));
      if (done) return {};
      if (abi::clock_us() - begin >= options_.deadline_us) {
        return late("the end of communicator " + std::to_string(e.number));
      }
      abi::pause(round);
    }
  }

  /// Until the work of `s` is done. A failure that comes meanwhile ends it.
  [[nodiscard]] result<void> drain(stream s) {
    const std::int64_t begin = abi::clock_us();
    for (std::int64_t round = 0;; ++round) {
      // Asked first: hearing of a failure takes time, and ends the work that is waited for.
      const bool expired = abi::clock_us() - begin >= options_.deadline_us;
      auto done = device_->poll(s);
      if (!done) return std::move(done).error();
      // Also when it is done: an operation that failed is over, too.
      DYNCP_TRY(ask_all());
      if (*done) return {};
      if (expired) return late(stuck_exchange());
      listen();
      abi::pause(round);
    }
  }

  /// Asks NCCL for errors of all communicators.
  [[nodiscard]] result<void> ask_all() {
    for (const auto& e : entries_) {
      if (e->handle == nullptr || poisoned_.contains(e->family)) continue;
      bool quiet_now = false;
      auto polled = called(abi::nccl_poll(device_->handle(), e->handle, &quiet_now));
      if (!polled) return poison(e->family, std::move(polled).error());
    }
    return {};
  }

  [[nodiscard]] std::string stuck_exchange() {
    const mark* first = nullptr;
    for (mark& m : marks_) {
      if (m.number < 0 || !m.event) continue;
      bool done = false;
      if (abi::poll_event(device_->handle(), m.event->native(), &done).failed != 0 || done) {
        continue;
      }
      if (first == nullptr || m.number < first->number) first = &m;
    }
    if (first == nullptr) return "the work of a stream";
    return "exchange " + std::to_string(first->number) + " on communicator " +
           std::to_string(first->communicator) + " with " + first->peers;
  }

  // --- exchanges

  void gather_messages(std::span<const outgoing> out, std::span<const incoming> in) {
    messages_.clear();
    for (const incoming& m : in) {
      if (m.bytes > 0) messages_.push_back({m.peer, 0, m.data, m.bytes});
    }
    for (const outgoing& m : out) {
      if (m.bytes > 0) messages_.push_back({m.peer, 1, const_cast<void*>(m.data), m.bytes});
    }
  }

  [[nodiscard]] std::string peers_of_messages() const {
    std::string text;
    for (const abi::nccl_message& m : messages_) {
      text += (text.empty() ? "member " : ", member ") + std::to_string(m.peer) +
              (m.out != 0 ? " to take its message" : "'s message");
    }
    return text;
  }

  /// Queues `messages_` on `s`, and waits until NCCL has queued them.
  [[nodiscard]] result<void> queue(communicator& comm, stream s) {
    if (messages_.empty()) return {};
    entry& e = *comm.entry_;
    bool new_peer = false;
    for (const abi::nccl_message& m : messages_) {
      const auto place = static_cast<std::size_t>(2 * m.peer + m.out);
      new_peer = new_peer || !e.met[place];
      e.met[place] = true;
    }
    const std::int64_t before = new_peer ? free_bytes() : 0;
    queued_family_ = comm.family_;
    used_.add(s);
    ++exchanges_;
    auto done = called(abi::nccl_exchange(device_->handle(), e.handle, messages_.data(),
                                          static_cast<std::int32_t>(messages_.size()), s));
    // In the background NCCL connects new peers and launches; an event recorded before that is over
    // would come before the exchange.
    if (done) {
      bool quick = false;
      done = called(abi::nccl_poll(device_->handle(), e.handle, &quick));
      if (done && !quick) done = wait_for(comm.family_, [this] { return peers_of_messages(); }, e);
    }
    if (new_peer) count_memory(before);
    if (done) done = set_mark(e, s);
    return done;
  }

  [[nodiscard]] result<void> set_mark(const entry& e, stream s) {
    if (marks_.size() < marks_kept) {
      auto event = device_->make_event();
      if (!event) return std::move(event).error();
      marks_.emplace_back().event.emplace(std::move(*event));
      next_mark_ = marks_.size() - 1;
    } else {
      // The oldest goes: an exchange that is stuck keeps the later ones stuck, too.
      next_mark_ = (next_mark_ + 1) % marks_kept;
    }
    mark& m = marks_[next_mark_];
    m.number = exchanges_;
    m.communicator = e.number;
    m.peers.clear();
    for (const abi::nccl_message& message : messages_) {
      if (!m.peers.empty()) m.peers += ", ";
      m.peers += "member ";
      m.peers += std::to_string(message.peer);
    }
    return device_->record(*m.event, s);
  }

  [[nodiscard]] std::byte* host_slot(std::size_t slot) {
    return static_cast<std::byte*>(host_.data()) + slot * piece_bytes;
  }
  [[nodiscard]] std::byte* device_slot(std::size_t slot) {
    return static_cast<std::byte*>(memory_.data()) + slot * piece_bytes;
  }

  [[nodiscard]] result<void> exchange_parts(communicator& comm, std::span<const outgoing> out,
                                            std::span<const incoming> in) {
    parts_.clear();
    for (const incoming& m : in) {
      if (m.bytes == 0) continue;
      parts_.push_back({m.peer, nullptr, static_cast<std::byte*>(m.data), m.bytes});
    }
    for (const outgoing& m : out) {
      if (m.bytes == 0) continue;
      parts_.push_back({m.peer, static_cast<const std::byte*>(m.data), nullptr, m.bytes});
    }
    if (parts_.empty()) return {};

    constexpr auto beside = static_cast<std::int64_t>(sizeof(head::data));
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const host_part& p = parts_[i];
      if (p.from == nullptr) continue;
      head h;
      h.bytes = p.bytes;
      std::memcpy(h.data.data(), p.from, static_cast<std::size_t>(std::min(p.bytes, beside)));
      std::memcpy(host_slot(i), &h, sizeof h);
    }
    DYNCP_TRY(round_trip(comm, [](const host_part&) { return std::int64_t{sizeof(head)}; }));
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const host_part& p = parts_[i];
      longest = std::max(longest, p.bytes);
      if (p.from != nullptr) continue;
      head h;
      std::memcpy(&h, host_slot(i), sizeof h);
      if (h.bytes != p.bytes) {
        return error{errc::mismatch,
                     "member " + std::to_string(p.peer) + " sent " + std::to_string(h.bytes) +
                         " bytes where " + std::to_string(p.bytes) + " were expected by rank " +
                         std::to_string(rank()),
                     h.bytes, p.bytes, "derive sizes from one plan on both ranks"};
      }
      std::memcpy(p.to, h.data.data(), static_cast<std::size_t>(std::min(p.bytes, beside)));
    }
    for (std::int64_t done = beside; done < longest; done += piece_bytes) {
      const auto rest = [done](const host_part& p) {
        return std::clamp<std::int64_t>(p.bytes - done, 0, piece_bytes);
      };
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        const host_part& p = parts_[i];
        if (p.from == nullptr || rest(p) == 0) continue;
        std::memcpy(host_slot(i), p.from + done, static_cast<std::size_t>(rest(p)));
      }
      DYNCP_TRY(round_trip(comm, rest));
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        const host_part& p = parts_[i];
        if (p.from != nullptr || rest(p) == 0) continue;
        std::memcpy(p.to + done, host_slot(i), static_cast<std::size_t>(rest(p)));
      }
    }
    return {};
  }

  /// bytes_of(part) of each slot, from the host of one rank to that of the other.
  template <class F>
  [[nodiscard]] result<void> round_trip(communicator& comm, F bytes_of) {
    const stream s = device_->comm_stream();
    messages_.clear();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const host_part& p = parts_[i];
      const std::int64_t bytes = bytes_of(p);
      if (bytes == 0) continue;
      if (p.from != nullptr) DYNCP_TRY(device_->upload(device_slot(i), host_slot(i), bytes, s));
      messages_.push_back({p.peer, p.from != nullptr ? 1 : 0, device_slot(i), bytes});
    }
    DYNCP_TRY(queue(comm, s));
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const host_part& p = parts_[i];
      const std::int64_t bytes = bytes_of(p);
      if (p.from != nullptr || bytes == 0) continue;
      DYNCP_TRY(device_->download(host_slot(i), device_slot(i), bytes, s));
    }
    DYNCP_TRY(drain(s));
    if (const auto found = poisoned_.find(comm.family_); found != poisoned_.end()) {
      return found->second;
    }
    return {};
  }

  /// The messages of an exchange as sizes alone, on the host.
  [[nodiscard]] result<void> compare_sizes(communicator& comm, std::span<const outgoing> out,
                                           std::span<const incoming> in) {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> theirs(in.size(), 0);
    std::vector<outgoing> o;
    std::vector<incoming> i;
    sizes.reserve(out.size());
    for (const outgoing& m : out) {
      if (m.bytes == 0) continue;
      sizes.push_back(m.bytes);
      o.push_back({m.peer, &sizes.back(), sizeof(std::int64_t)});
    }
    for (std::size_t k = 0; k < in.size(); ++k) {
      if (in[k].bytes > 0) i.push_back({in[k].peer, &theirs[k], sizeof(std::int64_t)});
    }
    DYNCP_TRY(exchange_host(comm, o, i));
    for (std::size_t k = 0; k < in.size(); ++k) {
      if (in[k].bytes == 0 || theirs[k] == in[k].bytes) continue;
      return poison(comm.family_,
                    error{errc::mismatch,
                          "member " + std::to_string(in[k].peer) + " sends " +
                              std::to_string(theirs[k]) + " bytes where " +
                              std::to_string(in[k].bytes) + " are expected by rank " +
                              std::to_string(rank()),
                          theirs[k], in[k].bytes, "derive sizes from one plan on both ranks"});
    }
    return {};
  }

  device* device_;
  bootstrap connection_;
  nccl_options options_;
  std::shared_ptr<entry> adopted_;
  bool adopted_failed_ = false;
  std::uint64_t opened_ = 0;
  std::int64_t communicators_ = 0;
  std::int64_t exchanges_ = 0;
  std::int64_t taken_bytes_ = 0;
  std::vector<std::shared_ptr<entry>> entries_;  // that live, parents first
  std::map<std::uint64_t, error> poisoned_;
  std::uint64_t queued_family_ = 0;   // of the last exchange
  std::optional<error> lost_work_;    // for the next synchronize
  device::buffer memory_;             // slots of host messages
  device::staging host_;
  std::vector<abi::nccl_message> messages_;  // of the exchange that runs
  std::vector<host_part> parts_;
  std::vector<mark> marks_;
  std::size_t next_mark_ = 0;  // the newest
  detail::used_streams used_;
};

static_assert(dyncp::fabric<nccl_fabric>);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
