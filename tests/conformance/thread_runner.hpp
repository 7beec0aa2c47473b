// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/runner.hpp"

#include <dyncp/cpu/attention.hpp>
#include <dyncp/cpu/plain_attention.hpp>
#include <dyncp/cpu/thread_backend.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp_test {

/// Ranks as threads of this process, in virtual time: a hang is a `deadlock` at once.
template <class Kernel = dyncp::cpu::plain_attention>
class thread_runner {
 public:
  using backend_type = dyncp::cpu::thread_backend;
  using provider_type = dyncp::cpu::attention<Kernel>;

  explicit thread_runner(std::int32_t ranks, dyncp::cpu::device_options device = {},
                         std::vector<dyncp::cpu::fault> faults = {})
      : ranks_(ranks), device_(device), faults_(std::move(faults)) {
    device_.poison_memory = true;
  }

  [[nodiscard]] std::int32_t ranks() const { return ranks_; }
  [[nodiscard]] std::int32_t first_rank() const { return 0; }  ///< of this process

  template <class F>
  std::vector<result<void>> run_collect(F f) {
    dyncp::cpu::thread_world world({.ranks = ranks_,
                                    .deadline_us = 1'000'000,
                                    .time = dyncp::cpu::time_source::virtual_time,
                                    .faults = faults_});
    auto results = dyncp::cpu::run_ranks(world, device_, [&](backend_type& backend) {
      result<void> done = f(backend);
      if (done && backend.device().memory_in_use() != 0) {
        return result<void>(failed("device memory is in use after the last buffer is gone"));
      }
      return done;
    });
    CHECK_MESSAGE(world.messages_in_flight() == 0, "messages are left in the mailboxes");
    return results;
  }
  template <class F>
  void run(F f) {
    const auto results = run_collect(f);
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK_MESSAGE(results[r].has_value(),
                    "rank " << r << " of " << ranks_ << ": "
                            << (results[r] ? "" : results[r].error().message()));
    }
  }

 private:
  std::int32_t ranks_;
  dyncp::cpu::device_options device_;
  std::vector<dyncp::cpu::fault> faults_;
};

}  // namespace dyncp_test
