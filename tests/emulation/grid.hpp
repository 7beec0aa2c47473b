// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "emulation/fault.hpp"
#include "emulation/fiber.hpp"
#include "emulation/memory.hpp"
#include "emulation/random.hpp"

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace dyncp_emulation {

/// What blocks of a kernel may use, and how the emulator runs them.
struct grid_options {
  std::uint32_t live_blocks = 3;   ///< blocks of one kernel under way at once
  bool thread_identities = false;  ///< each CUDA thread is one for the thread sanitizer
  bool shuffled = true;            ///< blocks, warps and lanes in an order drawn from the seed
  std::size_t shared_limit_bytes = 227 * 1024;
};

struct grid_request {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  std::function<void()> body;
};

/// Why a GPU would refuse to launch this; empty if it would not.
[[nodiscard]] std::string launch_error(const grid_request& request, const grid_options& options);

/// Counts of what kernels did, to tell how hard an emulated run was.
struct grid_counters {
  std::int64_t kernels = 0;
  std::int64_t blocks = 0;
  std::int64_t barriers = 0;   // of blocks
  std::int64_t warp_meetings = 0;
  std::int64_t polls = 0;
};

namespace detail {
struct cuda_thread;
struct block_run;
}  // namespace detail

/// Runs kernels one after the other, each CUDA thread on a fiber of its own. A fiber runs until it
/// meets others: at a barrier, or at what a warp does together.
class grid_runner {
 public:
  /// `home` is the fiber that calls run, `memory` explains bad addresses.
  grid_runner(fiber& home, const memory_map& memory, random_source& random,
              const grid_options& options);
  grid_runner(const grid_runner&) = delete;
  grid_runner& operator=(const grid_runner&) = delete;
  ~grid_runner();

  /// Returns when the kernel is done, or with the fault that ended it.
  [[nodiscard]] fault run(const grid_request& request);

  [[nodiscard]] const grid_counters& counters() const noexcept { return counters_; }

  // For the hooks; called on CUDA threads.
  void meet(void* mine, void (*act)(void* const*));
  void sync_block(const char* file, int line);
  void sync_lanes(std::uint32_t lanes);
  void spin();
  void* shared_memory();
  void* shared_at(std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment);
  void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes, bool valid);
  void commit_copies();
  void wait_copies(std::uint32_t pending);
  void check_aligned(const void* p, std::uint32_t alignment);
  [[noreturn]] void raise(fault_kind kind, const std::string& what);
  /// A bad access to `address`, found by the processor.
  [[noreturn]] void raise_access(const void* address);

 private:
  using thread = detail::cuda_thread;
  using block_run = detail::block_run;

  static void thread_main(void* argument);
  void start_block(std::uint32_t number, block_run& slot);
  void finish_thread(thread& me);
  void land(thread& me, std::uint32_t groups);
  void run_next(thread& me);
  [[nodiscard]] thread* pop();
  void push_front(thread* t);
  void push_back(thread* t);
  [[nodiscard]] std::string where(const thread& t) const;
  [[nodiscard]] fault stuck() const;

  fiber* home_;
  const memory_map* memory_;
  random_source* random_;
  grid_options options_;
  grid_counters counters_;
  const grid_request* request_ = nullptr;
  std::vector<std::unique_ptr<block_run>> slots_;
  std::vector<thread*> ready_;  // a ring
  std::size_t ready_first_ = 0;
  std::size_t ready_count_ = 0;
  std::int64_t idle_polls_ = 0;
  unsigned char poison_ = nan_byte;
  fault fault_;
  char begun_ = 0;  // for the thread sanitizer: what came before and after the kernel
  char ended_ = 0;
};

/// Index of the calling CUDA thread, for the prelude.
[[nodiscard]] const uint3& thread_index();
[[nodiscard]] const uint3& block_index();
[[nodiscard]] const dim3& block_dimensions();
[[nodiscard]] const dim3& grid_dimensions();
/// The runner of the calling CUDA thread; null on the host.
[[nodiscard]] grid_runner* current_runner() noexcept;

}  // namespace dyncp_emulation
