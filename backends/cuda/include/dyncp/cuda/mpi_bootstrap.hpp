// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cuda/bootstrap.hpp>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {

namespace detail {

/// Host messages of MPI only: memory of the GPU never meets MPI here, so nothing of it can be in
/// flight beside NCCL's.
class mpi_messages {
 public:
  explicit mpi_messages(std::int64_t deadline_us) : deadline_us_(deadline_us) {}
  mpi_messages(const mpi_messages&) = delete;
  mpi_messages& operator=(const mpi_messages&) = delete;
  ~mpi_messages() {
    // Freeing a communicator is collective, and a rank that failed does not come: they are left to
    // MPI_Finalize, as are notices that are on their way.
    for (sent_notice& n : sent_) {
      if (n.request != MPI_REQUEST_NULL) MPI_Request_free(&n.request);
    }
  }

  [[nodiscard]] result<void> connect(MPI_Comm parent) {
    for (MPI_Comm* comm : {&data_, &control_}) {
      DYNCP_TRY(called(MPI_Comm_dup(parent, comm), "MPI_Comm_dup"));
      DYNCP_TRY(called(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN),
                       "MPI_Comm_set_errhandler"));
    }
    DYNCP_TRY(called(MPI_Comm_rank(data_, &rank_), "MPI_Comm_rank"));
    return called(MPI_Comm_size(data_, &ranks_), "MPI_Comm_size");
  }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  [[nodiscard]] result<void> broadcast(std::span<std::byte> data) {
    // Memory of its own: after a timeout MPI may still write to it.
    std::vector<std::byte>& memory = broadcasts_.emplace_back(data.begin(), data.end());
    MPI_Request request = MPI_REQUEST_NULL;
    DYNCP_TRY(called(
        MPI_Ibcast(memory.data(), static_cast<int>(memory.size()), MPI_BYTE, 0, data_, &request),
        "MPI_Ibcast"));
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      int done = 0;
      DYNCP_TRY(called(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
      if (done != 0) {
        std::copy(memory.begin(), memory.end(), data.begin());
        broadcasts_.pop_back();
        return {};
      }
      if (std::chrono::steady_clock::now() - begin >= std::chrono::microseconds(deadline_us_)) {
        return error{errc::timeout,
                     "rank " + std::to_string(rank_) + " waited " + std::to_string(deadline_us_) +
                         " us for a broadcast of rank 0",
                     deadline_us_, deadline_us_, "see why rank 0 is late, or raise the deadline"};
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  void tell(const failure_notice& notice) {
    for (int to = 0; to < ranks_; ++to) {
      if (to == rank_) continue;
      sent_notice& n = sent_.emplace_back();
      n.content = notice;
      if (MPI_Isend(&n.content, static_cast<int>(sizeof notice), MPI_BYTE, to, 0, control_,
                    &n.request) != MPI_SUCCESS) {
        sent_.pop_back();  // that rank will find its deadline
      }
    }
  }

  [[nodiscard]] bool hear(failure_notice& notice) {
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, control_, &there, &status) != MPI_SUCCESS || there == 0) {
      return false;
    }
    return MPI_Recv(&notice, static_cast<int>(sizeof notice), MPI_BYTE, status.MPI_SOURCE, 0,
                    control_, MPI_STATUS_IGNORE) == MPI_SUCCESS;
  }

 private:
  struct sent_notice {
    failure_notice content;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  [[nodiscard]] static result<void> called(int code, const char* function) {
    if (code == MPI_SUCCESS) return {};
    std::array<char, MPI_MAX_ERROR_STRING> text = {};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    return error{errc::backend_failure,
                 std::string(function) + ": " +
                     std::string(text.data(), static_cast<std::size_t>(length)),
                 code, 0, {}};
  }

  std::int64_t deadline_us_;
  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm control_ = MPI_COMM_NULL;
  int rank_ = 0;
  int ranks_ = 1;
  std::deque<sent_notice> sent_;  // places stay where they are
  std::deque<std::vector<std::byte>> broadcasts_;
};

}  // namespace detail

/// The ranks of an MPI communicator, which is duplicated, never used, freed or aborted.
///
/// Collective over `parent`, after MPI_Init. The bootstrap, and all that holds it, goes before
/// MPI_Finalize. Errors: backend_failure; of its broadcast: timeout, too. Thread safety: belongs to
/// the thread that may call MPI.
[[nodiscard]] inline result<bootstrap> mpi_bootstrap(MPI_Comm parent,
                                                     std::int64_t deadline_us = 60'000'000) {
  const auto messages = std::make_shared<detail::mpi_messages>(deadline_us);
  DYNCP_TRY(messages->connect(parent));
  bootstrap out;
  out.rank = messages->rank();
  out.ranks = messages->ranks();
  out.broadcast = [messages](std::span<std::byte> data) { return messages->broadcast(data); };
  out.tell = [messages](const failure_notice& notice) { messages->tell(notice); };
  out.hear = [messages](failure_notice& notice) { return messages->hear(notice); };
  return out;
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
