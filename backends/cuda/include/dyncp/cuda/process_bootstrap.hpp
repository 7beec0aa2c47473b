// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cuda/bootstrap.hpp>
#include <dyncp/cuda/fabric_abi.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// What the threads of one process share to connect their GPUs by NCCL.
///
/// Made once, before the threads; `of(rank)` gives each its bootstrap. Thread safety: all members
/// may be called concurrently.
class process_bootstrap {
 public:
  explicit process_bootstrap(std::int32_t ranks, std::int64_t deadline_us = 60'000'000)
      : board_(std::make_shared<board>(ranks, deadline_us)) {}

  [[nodiscard]] bootstrap of(std::int32_t rank) const {
    bootstrap out;
    out.rank = rank;
    out.ranks = static_cast<std::int32_t>(board_->notices.size());
    out.broadcast = [b = board_, rank, turn = std::size_t{0}](std::span<std::byte> data) mutable {
      return b->broadcast(rank, turn++, data);
    };
    out.tell = [b = board_, rank](const failure_notice& notice) {
      const std::lock_guard lock(b->mutex);
      for (std::size_t r = 0; r < b->notices.size(); ++r) {
        if (r != static_cast<std::size_t>(rank)) b->notices[r].push_back(notice);
      }
    };
    out.hear = [b = board_, rank](failure_notice& notice) {
      const std::lock_guard lock(b->mutex);
      auto& mine = b->notices[static_cast<std::size_t>(rank)];
      if (mine.empty()) return false;
      notice = mine.front();
      mine.pop_front();
      return true;
    };
    return out;
  }

 private:
  struct board {
    board(std::int32_t ranks, std::int64_t deadline)
        : deadline_us(deadline), notices(static_cast<std::size_t>(ranks)) {}

    [[nodiscard]] result<void> broadcast(std::int32_t rank, std::size_t turn,
                                         std::span<std::byte> data) {
      if (rank == 0) {
        const std::lock_guard lock(mutex);
        broadcasts.emplace_back(data.begin(), data.end());
        return {};
      }
      const std::int64_t begin = abi::clock_us();
      for (std::int64_t round = 0;; ++round) {
        {
          const std::lock_guard lock(mutex);
          if (turn < broadcasts.size()) {
            const std::vector<std::byte>& sent = broadcasts[turn];
            if (sent.size() != data.size()) {
              return error{errc::mismatch,
                           "rank " + std::to_string(rank) + " expects a broadcast of " +
                               std::to_string(data.size()) + " bytes, rank 0 sent " +
                               std::to_string(sent.size()),
                           static_cast<std::int64_t>(sent.size()),
                           static_cast<std::int64_t>(data.size()),
                           "call the same functions on all ranks, in the same order"};
            }
            std::copy(sent.begin(), sent.end(), data.begin());
            return {};
          }
        }
        if (abi::clock_us() - begin >= deadline_us) {
          return error{errc::timeout,
                       "rank " + std::to_string(rank) + " waited " + std::to_string(deadline_us) +
                           " us for a broadcast of rank 0",
                       deadline_us, deadline_us, "see why rank 0 is late, or raise the deadline"};
        }
        abi::pause(round);
      }
    }

    std::int64_t deadline_us;
    std::mutex mutex;
    std::deque<std::vector<std::byte>> broadcasts;
    std::vector<std::deque<failure_notice>> notices;  // (ranks)
  };

  std::shared_ptr<board> board_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
