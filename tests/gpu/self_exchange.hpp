// SPDX-License-Identifier: Apache-2.0
#pragma once

// A communicator of one rank, which sends to itself: what NCCL can do on one GPU of a group of a
// send and a receive. A fabric never does it, so that it goes through the functions below one.

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/cuda/abi.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/fabric_abi.hpp>

#include <array>
#include <cstdint>
#include <utility>

namespace dyncp_test {

namespace abi = dyncp::cuda::abi;

class self_exchange {
 public:
  explicit self_exchange(dyncp::cuda::device& d) : device_(d.handle()) {}
  self_exchange(const self_exchange&) = delete;
  self_exchange& operator=(const self_exchange&) = delete;
  ~self_exchange() {
    if (comm_ == nullptr) return;
    if (abi::nccl_begin_close(device_, comm_).failed == 0 && settle()) {
      abi::nccl_free(device_, comm_);
    } else {
      abi::nccl_abort(device_, &comm_, 1);
    }
  }

  [[nodiscard]] dyncp::result<void> open() {
    std::array<char, abi::nccl_id_bytes> id = {};
    DYNCP_TRY(abi::to_result(abi::nccl_make_id(device_, id.data())));
    DYNCP_TRY(abi::to_result(abi::nccl_begin(device_, id.data(), 1, 0, {}, &comm_)));
    return settle();
  }

  /// Queues the copy of a message on `s`, and returns when NCCL has queued it.
  [[nodiscard]] dyncp::result<void> exchange(void* to, void* from, std::int64_t bytes,
                                             dyncp::cuda::stream s) {
    const abi::nccl_message messages[] = {{0, 0, to, bytes}, {0, 1, from, bytes}};
    DYNCP_TRY(abi::to_result(abi::nccl_exchange(device_, comm_, messages, 2, s)));
    return settle();
  }

 private:
  [[nodiscard]] dyncp::result<void> settle() {
    constexpr std::int64_t limit_us = 20'000'000;
    const std::int64_t begin = abi::clock_us();
    for (std::int64_t round = 0;; ++round) {
      bool done = false;
      DYNCP_TRY(abi::to_result(abi::nccl_poll(device_, comm_, &done)));
      if (done) return {};
      if (abi::clock_us() - begin >= limit_us) {
        return dyncp::make_error(dyncp::errc::timeout, "NCCL is at it for 20 s");
      }
      abi::pause(round);
    }
  }

  abi::device_state* device_;
  dyncp::cuda::nccl_handle comm_ = nullptr;
};

}  // namespace dyncp_test
