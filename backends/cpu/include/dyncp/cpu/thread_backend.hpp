// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cpu/device.hpp>
#include <dyncp/cpu/thread_fabric.hpp>
#include <dyncp/cpu/thread_world.hpp>
#include <dyncp/runtime/backend.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cpu {

/// A rank that is a thread of this process: host memory and mailboxes. Models `backend`.
class thread_backend {
 public:
  using device_type = cpu::device;
  using fabric_type = thread_fabric;

  thread_backend(thread_world& world, std::int32_t rank, device_options options = {})
      : device_(options), fabric_(world, rank, device_) {}

  [[nodiscard]] device_type& device() noexcept { return device_; }
  [[nodiscard]] fabric_type& fabric() noexcept { return fabric_; }

 private:
  cpu::device device_;
  thread_fabric fabric_;
};

static_assert(dyncp::backend<thread_backend>);

/// Runs `f(thread_backend&) -> result<void>` on a thread per rank of `world`, once, and returns
/// what each rank returned, (ranks).
///
/// The seed of each rank's device is options.seed + rank. A rank whose function returned has left:
/// peers that wait for it get `peer_failed`. An exception of `f` becomes `callback_failed`.
template <class F>
[[nodiscard]] std::vector<result<void>> run_ranks(thread_world& world,
                                                  const device_options& options, F f) {
  std::vector<result<void>> results(static_cast<std::size_t>(world.ranks()));
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (std::int32_t rank = 0; rank < world.ranks(); ++rank) {
    threads.emplace_back([&world, &options, &f, &results, rank] {
      device_options mine = options;
      mine.seed += static_cast<std::uint64_t>(rank);
      result<void>& out = results[static_cast<std::size_t>(rank)];
      {
        thread_backend backend(world, rank, mine);
#if defined(__cpp_exceptions)
        try {
          out = f(backend);
        } catch (const std::exception& e) {
          out = make_error(errc::callback_failed,
                           "rank " + std::to_string(rank) + " threw: " + e.what());
        } catch (...) {
          out = make_error(errc::callback_failed, "rank " + std::to_string(rank) + " threw");
        }
#else
        out = f(backend);
#endif
      }
      world.leave(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
