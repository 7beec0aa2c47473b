// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/runner.hpp"

#include <dyncp/cpu/attention.hpp>
#include <dyncp/cpu/plain_attention.hpp>
#include <dyncp/cpu/thread_backend.hpp>

#include <doctest/doctest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp_test {

/// Ranks as threads of this process, in virtual time unless asked otherwise: a hang is a `deadlock`
/// at once, a delay costs nothing.
template <class Kernel = dyncp::cpu::plain_attention>
class thread_runner {
 public:
  using backend_type = dyncp::cpu::thread_backend;
  using provider_type = dyncp::cpu::attention<Kernel>;

  explicit thread_runner(std::int32_t ranks, dyncp::cpu::device_options device = {},
                         std::vector<dyncp::cpu::fault> faults = {},
                         std::int64_t deadline_us = 1'000'000,
                         dyncp::cpu::time_source time = dyncp::cpu::time_source::virtual_time)
      : device_(device) {
    device_.poison_memory = true;
    world_ = {ranks, deadline_us, time, std::move(faults)};
  }

  [[nodiscard]] std::int32_t ranks() const { return world_.ranks; }
  [[nodiscard]] std::int32_t first_rank() const { return 0; }  ///< of this process

  /// What each rank returned. Whatever it was, nothing may be left behind.
  template <class F>
  std::vector<result<void>> run_collect(F f) {
    dyncp::cpu::thread_world world(world_);
    std::barrier<> everyone(world_.ranks);
    meeting_ = &everyone;
    auto results = dyncp::cpu::run_ranks(world, device_, [&](backend_type& backend) {
      result<void> done = f(backend);
      if (backend.device().memory_in_use() != 0) {
        return result<void>(failed("device memory is in use after the last buffer is gone"));
      }
      return done;
    });
    CHECK_MESSAGE(world.messages_in_flight() == 0, "messages are left in the mailboxes");
    end_us_ = world.now_us();
    exchanges_.clear();
    for (std::int32_t r = 0; r < world_.ranks; ++r) exchanges_.push_back(world.exchanges(r));
    return results;
  }
  /// A barrier beside the fabric, for tests that break the fabric.
  void meet() { meeting_->arrive_and_wait(); }
  /// The time of the world when the last run ended.
  [[nodiscard]] std::int64_t end_us() const { return end_us_; }
  /// Exchanges that each rank began in the last run.
  [[nodiscard]] const std::vector<std::int64_t>& exchanges() const { return exchanges_; }

  template <class F>
  void run(F f) {
    const auto results = run_collect(f);
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK_MESSAGE(results[r].has_value(),
                    "rank " << r << " of " << world_.ranks << ": "
                            << (results[r] ? "" : results[r].error().message()));
    }
  }

 private:
  dyncp::cpu::thread_world_options world_;
  dyncp::cpu::device_options device_;
  std::barrier<>* meeting_ = nullptr;
  std::int64_t end_us_ = 0;
  std::vector<std::int64_t> exchanges_;
};

}  // namespace dyncp_test
