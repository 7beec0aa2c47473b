// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cpu/device.hpp>
#include <dyncp/cpu/op_queue.hpp>
#include <dyncp/runtime/exchange_check.hpp>
#include <dyncp/runtime/fabric.hpp>
#include <dyncp/runtime/message.hpp>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace mpi {

struct fabric_options {
  std::int64_t deadline_us = 60'000'000;  ///< of an exchange or collective, from when it begins
  /// Messages of more bytes are described to MPI in blocks of this size, since its counts are
  /// int. At most 2^31 - 1.
  std::int64_t block_bytes = std::int64_t{1} << 30;
};

/// One process of an MPI communicator, on the streams of its CPU device.
///
/// Models `fabric`. MPI makes progress inside calls alone, so a queued exchange moves whenever the
/// device or the fabric is called. MPI has no bounded waits and no abort: every wait here is a loop
/// of tests with the deadline, and a failure is told to all ranks on a communicator of its own,
/// which each wait looks at. A process that vanished is found by the deadline.
///
/// Freeing a communicator is collective, so closing one of all ranks, and the end of the fabric,
/// wait for all ranks, at most for the deadline. A rank that an exception takes away does not wait:
/// its peers are in the middle of a step, and are told. After a failure the communicators of the family
/// are left to MPI_Finalize, and memory of messages that were in flight must not be freed before
/// the peers failed too, at most one deadline later. MPI does not tell what memory it uses:
/// memory_in_use() is 0.
///
/// Requires MPI_Init before, destruction before MPI_Finalize. The communicator of the caller is
/// duplicated, never used, freed or aborted. Thread safety: an object belongs to the thread that
/// may call MPI.
class fabric {
 public:
  using stream = cpu::device::stream;

  class communicator {
   public:
    [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
    [[nodiscard]] std::int32_t size() const noexcept { return size_; }
    [[nodiscard]] std::uint64_t family() const noexcept { return family_; }

   private:
    friend class fabric;
    MPI_Comm comm_ = MPI_COMM_NULL;
    std::uint64_t family_ = 0;
    std::int32_t rank_ = 0;
    std::int32_t size_ = 1;
    bool opened_ = false;  // of all ranks, not a split
  };

  /// Collective over `parent`.
  [[nodiscard]] static result<std::unique_ptr<fabric>> create(MPI_Comm parent, cpu::device& local,
                                                              fabric_options options = {}) {
    std::unique_ptr<fabric> out(new fabric(local, options));
    DYNCP_TRY(called(MPI_Comm_dup(parent, &out->all_), "MPI_Comm_dup"));
    DYNCP_TRY(called(MPI_Comm_dup(parent, &out->control_), "MPI_Comm_dup"));
    for (MPI_Comm comm : {out->all_, out->control_}) {
      DYNCP_TRY(
          called(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    }
    int rank = 0;
    int size = 1;
    DYNCP_TRY(called(MPI_Comm_rank(out->all_, &rank), "MPI_Comm_rank"));
    DYNCP_TRY(called(MPI_Comm_size(out->all_, &size), "MPI_Comm_size"));
    out->rank_ = rank;
    out->ranks_ = size;
    return out;
  }
  fabric(const fabric&) = delete;
  fabric& operator=(const fabric&) = delete;
  ~fabric() {
    device_->discard();
    if (all_ == MPI_COMM_NULL || control_ == MPI_COMM_NULL) return;
    // A rank that failed tells all others and does not come to the meeting: all of them free, or
    // none does.
    const bool agreed = !unwinding() && listen().has_value() && poisoned_.empty() &&
                        meet(all_, 0, "the end of the fabric");
    end_notices();
    if (!agreed) return;
    MPI_Comm_free(&control_);
    MPI_Comm_free(&all_);
  }

  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int32_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::int64_t memory_in_use() const noexcept { return 0; }

  [[nodiscard]] result<communicator> open() {
    communicator out;
    out.family_ = ++opened_;
    DYNCP_TRY(meet(all_, out.family_, "the opening of a communicator"));
    DYNCP_TRY(called(MPI_Comm_dup(all_, &out.comm_), "MPI_Comm_dup"));
    DYNCP_TRY(describe(out));
    out.opened_ = true;
    return out;
  }
  [[nodiscard]] result<communicator> split(communicator& parent, std::int32_t color,
                                           std::int32_t key) {
    DYNCP_TRY(health(parent));
    communicator out;
    out.family_ = parent.family_;
    // MPI_Comm_split blocks: go in only when all ranks have come to it.
    DYNCP_TRY(meet(parent.comm_, parent.family_, "a split of the communicator"));
    DYNCP_TRY(called(MPI_Comm_split(parent.comm_, color, key, &out.comm_), "MPI_Comm_split"));
    DYNCP_TRY(describe(out));
    return out;
  }
  void close(communicator& comm) noexcept {
    if (comm.comm_ == MPI_COMM_NULL) return;
    closed_.push_back({comm.family_, comm.comm_});
    // Splits wait for their parent of all ranks: a rank that failed may be no member of the split.
    if (comm.opened_) {
      if (unwinding()) {
        poison(comm.family_, make_error(errc::peer_failed, "it left by an exception"));
      }
      free_family(comm.family_, health(comm) && meet(comm.comm_, comm.family_, "a closing"));
    }
    comm.comm_ = MPI_COMM_NULL;
  }

  [[nodiscard]] result<void> exchange(communicator& comm, std::span<const outgoing> out,
                                      std::span<const incoming> in, stream s) {
    DYNCP_TRY(check_exchange(comm.rank(), comm.size(), out, in));
    DYNCP_TRY(health(comm));
    auto x = prepare(comm, out, in, stream_tag);
    if (x->parts.empty()) {
      spare_.push_back(std::move(x));
      return {};
    }
    return device_->submit(s, pending_exchange{this, std::move(x)});
  }

  [[nodiscard]] result<void> exchange_host(communicator& comm, std::span<const outgoing> out,
                                           std::span<const incoming> in) {
    DYNCP_TRY(check_exchange(comm.rank(), comm.size(), out, in));
    DYNCP_TRY(health(comm));
    pending_exchange x{this, prepare(comm, out, in, host_tag)};
    if (x.state->parts.empty()) return {};
    for (patience idle;;) {
      auto state = x();
      if (!state) return std::move(state).error();
      if (*state == cpu::progress::done) return {};
      auto moved = device_->pump();
      if (!moved) return std::move(moved).error();
      idle.after(*moved);
    }
  }

  [[nodiscard]] result<void> synchronize(stream s) {
    if (missed_ != nullptr) return std::move(*std::exchange(missed_, nullptr));
    for (patience idle;;) {
      auto moved = device_->pump();
      if (!moved) return std::move(moved).error();
      if (device_->idle(s)) return {};
      if (!*moved && active_ == 0) {
        device_->discard();
        return make_error(errc::invalid_argument,
                          "the stream waits for an event that no stream will record");
      }
      idle.after(*moved);
    }
  }

  void fail(communicator& comm, const error& why) {
    poison(comm.family_, why);
    device_->discard();
    missed_ = nullptr;
  }
  [[nodiscard]] result<void> health(const communicator& comm) {
    if (auto listened = listen(); !listened) return listened;
    const auto found = poisoned_.find(comm.family_);
    if (found == poisoned_.end()) return {};
    return found->second;
  }

 private:
  static constexpr int stream_tag = 0;
  static constexpr int host_tag = 1;
  using clock = std::chrono::steady_clock;

  /// Yields the processor, and after a while sleeps: ranks may outnumber cores.
  struct patience {
    int rounds = 0;
    void after(bool moved) {
      if (moved) {
        rounds = 0;
      } else if (++rounds < 64) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  };

  struct part {
    std::int32_t peer = 0;
    bool out = false;
    void* data = nullptr;  // not written to when out
    std::int64_t bytes = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    bool done = false;
  };
  struct state {
    MPI_Comm comm = MPI_COMM_NULL;
    std::uint64_t family = 0;
    int tag = 0;
    std::vector<part> parts;  // incoming first
    bool begun = false;
    clock::time_point deadline;
  };
  using state_ptr = std::unique_ptr<state>;

  struct pending_exchange {
    fabric* owner = nullptr;
    state_ptr state;

    pending_exchange(fabric* f, state_ptr x) : owner(f), state(std::move(x)) {}
    pending_exchange(pending_exchange&&) noexcept = default;
    pending_exchange& operator=(pending_exchange&&) = delete;
    ~pending_exchange() {
      if (state == nullptr) return;
      owner->withdraw(*state);
      owner->spare_.push_back(std::move(state));
    }
    result<cpu::progress> operator()() { return owner->advance(*state); }
  };

  /// What a failing rank tells the others. Plain bytes on the wire.
  struct notice {
    std::uint64_t family = 0;
    std::int32_t rank = 0;
    std::array<char, 500> text = {};
  };
  struct notice_out {
    notice content;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct closed_comm {
    std::uint64_t family = 0;
    MPI_Comm comm = MPI_COMM_NULL;
  };

  fabric(cpu::device& local, fabric_options options) : device_(&local), options_(options) {
    for (int i = 0; i < 64; ++i) spare_.push_back(new_state());
  }

  static state_ptr new_state() {
    auto x = std::make_unique<state>();
    x->parts.reserve(4);
    return x;
  }

  [[nodiscard]] static result<void> called(int code, std::string_view function) {
    if (code == MPI_SUCCESS) return {};
    std::array<char, MPI_MAX_ERROR_STRING> text = {};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    return error{
        errc::backend_failure,
        std::string(function) + ": " + std::string(text.data(), static_cast<std::size_t>(length)),
        code,
        0,
        {}};
  }

  [[nodiscard]] result<void> describe(communicator& comm) {
    int rank = 0;
    int size = 1;
    DYNCP_TRY(
        called(MPI_Comm_set_errhandler(comm.comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    DYNCP_TRY(called(MPI_Comm_rank(comm.comm_, &rank), "MPI_Comm_rank"));
    DYNCP_TRY(called(MPI_Comm_size(comm.comm_, &size), "MPI_Comm_size"));
    comm.rank_ = rank;
    comm.size_ = size;
    return {};
  }

  /// The end of a wait that begins now; the clock's, if the deadline is beyond it.
  [[nodiscard]] clock::time_point latest() const {
    const auto now = clock::now();
    const std::chrono::microseconds wait(options_.deadline_us);
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(clock::time_point::max() - now);
    return wait < left ? now + wait : clock::time_point::max();
  }

  /// Why `family`, or for 0 any, is poisoned; nullptr if it is not.
  [[nodiscard]] const error* poison_of(std::uint64_t family) const {
    const auto found = family == 0 ? poisoned_.begin() : poisoned_.find(family);
    return found == poisoned_.end() ? nullptr : &found->second;
  }

  /// A barrier with a deadline, before a call of MPI that blocks. Streams go on meanwhile: a peer
  /// may wait for what they send before it comes.
  [[nodiscard]] result<void> meet(MPI_Comm comm, std::uint64_t family, const char* what) {
    MPI_Request request = MPI_REQUEST_NULL;
    DYNCP_TRY(called(MPI_Ibarrier(comm, &request), "MPI_Ibarrier"));
    const auto deadline = latest();
    for (patience idle;;) {
      int done = 0;
      DYNCP_TRY(called(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
      if (done != 0) return {};
      DYNCP_TRY(listen());
      if (const error* const why = poison_of(family)) return *why;
      auto moved = device_->pump();
      if (!moved && missed_ == nullptr) missed_ = std::make_unique<error>(moved.error());
      if (clock::now() >= deadline) {
        return poison(
            family, error{errc::timeout,
                          "rank " + std::to_string(rank_) + " waited " +
                              std::to_string(options_.deadline_us) + " us for all ranks at " + what,
                          options_.deadline_us, options_.deadline_us,
                          "call it on all ranks, in the same order"});
      }
      idle.after(moved.has_value() && *moved);
    }
  }

  [[nodiscard]] bool unwinding() const noexcept {
    return std::uncaught_exceptions() > exceptions_;
  }

  void free_family(std::uint64_t family, bool agreed) noexcept {
    for (closed_comm& c : closed_) {
      if (c.family == family && agreed) MPI_Comm_free(&c.comm);
    }
    std::erase_if(closed_, [family](const closed_comm& c) { return c.family == family; });
  }

  state_ptr prepare(const communicator& comm, std::span<const outgoing> out,
                    std::span<const incoming> in, int tag) {
    state_ptr x;
    if (spare_.empty()) {
      x = new_state();
    } else {
      x = std::move(spare_.back());
      spare_.pop_back();
    }
    x->comm = comm.comm_;
    x->family = comm.family_;
    x->tag = tag;
    x->begun = false;
    x->parts.clear();
    for (const incoming& m : in) {
      if (m.bytes > 0) x->parts.push_back({m.peer, false, m.data, m.bytes});
    }
    for (const outgoing& m : out) {
      if (m.bytes > 0) x->parts.push_back({m.peer, true, const_cast<void*>(m.data), m.bytes});
    }
    return x;
  }

  /// Describes `bytes` to MPI, whose counts are int: a type of its own beyond one block.
  struct wire_type {
    MPI_Datatype type = MPI_BYTE;
    int count = 0;

    wire_type(std::int64_t bytes, std::int64_t block) {
      if (bytes <= block) {
        count = static_cast<int>(bytes);
        return;
      }
      const std::int64_t blocks = bytes / block;
      MPI_Datatype whole = MPI_DATATYPE_NULL;
      MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &whole);
      const std::array<int, 2> lengths = {static_cast<int>(blocks),
                                          static_cast<int>(bytes % block)};
      const std::array<MPI_Aint, 2> places = {0, static_cast<MPI_Aint>(blocks * block)};
      const std::array<MPI_Datatype, 2> types = {whole, MPI_BYTE};
      MPI_Type_create_struct(2, lengths.data(), places.data(), types.data(), &type);
      MPI_Type_commit(&type);
      MPI_Type_free(&whole);
      count = 1;
    }
    wire_type(const wire_type&) = delete;
    wire_type& operator=(const wire_type&) = delete;
    ~wire_type() {
      if (type != MPI_BYTE) MPI_Type_free(&type);
    }
  };

  [[nodiscard]] result<void> begin(state& x) {
    x.begun = true;
    ++active_;
    x.deadline = latest();
    for (part& p : x.parts) {
      const wire_type wire(p.bytes, options_.block_bytes);
      DYNCP_TRY(
          p.out
              ? called(MPI_Isend(p.data, wire.count, wire.type, p.peer, x.tag, x.comm, &p.request),
                       "MPI_Isend")
              : called(MPI_Irecv(p.data, wire.count, wire.type, p.peer, x.tag, x.comm, &p.request),
                       "MPI_Irecv"));
    }
    return {};
  }

  [[nodiscard]] result<cpu::progress> advance(state& x) {
    if (auto listened = listen(); !listened) return std::move(listened).error();
    if (const auto found = poisoned_.find(x.family); found != poisoned_.end()) {
      withdraw(x);
      return found->second;
    }
    if (!x.begun) {
      if (auto begun = begin(x); !begun) return failure(x, begun.error());
    }
    bool waiting = false;
    for (part& p : x.parts) {
      if (p.done) continue;
      int done = 0;
      MPI_Status status;
      status.MPI_ERROR = MPI_SUCCESS;
      const int code = MPI_Test(&p.request, &done, &status);
      if (code != MPI_SUCCESS) {
        int kind = MPI_SUCCESS;
        MPI_Error_class(code, &kind);
        if (kind == MPI_ERR_TRUNCATE) return failure(x, wrong_size(p, -1));
        return failure(x, called(code, "MPI_Test").error());
      }
      if (done == 0) {
        waiting = true;
        continue;
      }
      p.done = true;
      if (p.out) continue;
      MPI_Count received = 0;
      MPI_Get_elements_x(&status, MPI_BYTE, &received);
      if (received != p.bytes)
        return failure(x, wrong_size(p, static_cast<std::int64_t>(received)));
    }
    if (!waiting) {
      withdraw(x);
      return cpu::progress::done;
    }
    if (clock::now() >= x.deadline) {
      std::string peers;
      for (const part& p : x.parts) {
        if (p.done) continue;
        peers += (peers.empty() ? "" : " and ") +
                 (p.out ? "member " + std::to_string(p.peer) + " to take its message"
                        : "a message from member " + std::to_string(p.peer));
      }
      return failure(x, error{errc::timeout,
                              "rank " + std::to_string(rank_) + " waited " +
                                  std::to_string(options_.deadline_us) + " us for " + peers +
                                  (x.tag == host_tag ? " (host)" : ""),
                              options_.deadline_us, options_.deadline_us,
                              "see why that rank is late, or raise the deadline"});
    }
    return cpu::progress::pending;
  }

  [[nodiscard]] error wrong_size(const part& p, std::int64_t received) const {
    return error{errc::mismatch,
                 "member " + std::to_string(p.peer) + " sent " +
                     (received < 0 ? std::string("more bytes than the ")
                                   : std::to_string(received) + " bytes where ") +
                     std::to_string(p.bytes) + (received < 0 ? "" : " were") +
                     " expected by rank " + std::to_string(rank_),
                 received, p.bytes, "derive sizes from one plan on both ranks"};
  }

  [[nodiscard]] error failure(state& x, error why) {
    withdraw(x);
    return poison(x.family, std::move(why));
  }

  static void release(MPI_Request& request, bool cancel) noexcept {
    if (request == MPI_REQUEST_NULL) return;
    if (cancel) MPI_Cancel(&request);
    MPI_Request_free(&request);
  }

  void withdraw(state& x) noexcept {
    if (!x.begun) return;
    for (part& p : x.parts) {
      if (!p.done) release(p.request, !p.out);
      p.done = true;
    }
    x.begun = false;
    --active_;
  }

  /// Poisons the family here and tells all other ranks; returns `why`.
  error poison(std::uint64_t family, error why) {
    if (!remember(family, rank_, why.what)) return why;
    for (std::int32_t to = 0; to < ranks_; ++to) {
      if (to == rank_) continue;
      notice_out& n = sent_notices_.emplace_back();
      n.content.family = family;
      n.content.rank = rank_;
      const std::size_t length = std::min(why.what.size(), n.content.text.size() - 1);
      std::memcpy(n.content.text.data(), why.what.data(), length);
      if (MPI_Isend(&n.content, static_cast<int>(sizeof(notice)), MPI_BYTE, to, 0, control_,
                    &n.request) != MPI_SUCCESS) {
        sent_notices_.pop_back();  // that rank will find its deadline
      }
    }
    return why;
  }

  /// Waits until MPI is done with the notices, at most for the deadline. Listens meanwhile: two
  /// ranks that tell each other may both have to be heard first.
  void end_notices() noexcept {
    const auto told = [this] {
      return std::all_of(sent_notices_.begin(), sent_notices_.end(), [](notice_out& n) {
        int done = 0;
        return MPI_Test(&n.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
      });
    };
    const auto deadline = latest();
    for (patience idle; !told(); idle.after(false)) {
      if (listen() && clock::now() < deadline) continue;
      // MPI may still read them, whenever that peer listens: leaked on purpose.
      static_cast<void>(new std::deque<notice_out>(std::move(sent_notices_)));
      return;
    }
  }

  bool remember(std::uint64_t family, std::int32_t rank, const std::string& what) {
    return poisoned_
        .try_emplace(
            family,
            error{errc::aborted, "rank " + std::to_string(rank) + " failed first: " + what, rank, 0,
                  "open a new pool; the old one cannot be used any "
                  "more"})
        .second;
  }

  /// Takes the notices of other ranks.
  [[nodiscard]] result<void> listen() {
    for (;;) {
      int there = 0;
      MPI_Status status;
      DYNCP_TRY(called(MPI_Iprobe(MPI_ANY_SOURCE, 0, control_, &there, &status), "MPI_Iprobe"));
      if (there == 0) return {};
      notice n;
      DYNCP_TRY(called(MPI_Recv(&n, static_cast<int>(sizeof(notice)), MPI_BYTE, status.MPI_SOURCE,
                                0, control_, MPI_STATUS_IGNORE),
                       "MPI_Recv"));
      n.text.back() = '\0';
      remember(n.family, n.rank, n.text.data());
    }
  }

  cpu::device* device_;
  fabric_options options_;
  MPI_Comm all_ = MPI_COMM_NULL;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::int32_t rank_ = 0;
  std::int32_t ranks_ = 1;
  std::uint64_t opened_ = 0;
  std::int64_t active_ = 0;
  std::vector<state_ptr> spare_;
  std::map<std::uint64_t, error> poisoned_;
  std::deque<notice_out> sent_notices_;
  std::vector<closed_comm> closed_;  // of families whose opened communicator is open
  std::unique_ptr<error> missed_;    // of a stream, while this rank waited in `meet`
  int exceptions_ = std::uncaught_exceptions();  // that were on their way when it was made
};

static_assert(dyncp::fabric<fabric>);

}  // namespace mpi
}  // namespace v0
}  // namespace dyncp
