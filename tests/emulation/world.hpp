// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "emulation/fault.hpp"
#include "emulation/fiber.hpp"
#include "emulation/grid.hpp"
#include "emulation/memory.hpp"
#include "emulation/random.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dyncp_emulation {

struct world_options {
  std::uint64_t seed = 1;
  std::int32_t devices = 1;
  std::int32_t capability = 90;
  grid_options grid = {};
  std::size_t memory_limit_bytes = 0;  ///< of each device; 0: no limit
};

/// What the runtime of a process keeps of one device.
struct device_use {
  bool context = false;
  std::map<const void*, std::size_t> kernels;  ///< that are loaded; shared memory they may have
  std::int64_t growths = 0;  ///< how often a pool took memory from the device
};

class world;

/// A queue of work that a fiber of its own takes from, one piece after the other.
class emulated_stream {
 public:
  [[nodiscard]] std::int32_t device() const noexcept { return device_; }
  [[nodiscard]] bool idle() const noexcept { return done_ == queued_; }

 private:
  friend class world;
  std::int32_t device_ = 0;
  std::deque<std::function<void()>> queue_;
  std::uint64_t queued_ = 0;
  std::uint64_t done_ = 0;
  bool closed_ = false;
  std::unique_ptr<grid_runner> runner_;
  char handed_over_ = 0;  // for the thread sanitizer: from who queues to the work
  char finished_ = 0;     // from the work to who waits
};

/// The GPUs of one process, its ranks and their streams: fibers of one OS thread that take turns in
/// an order drawn from the seed, so that a run can be repeated. Time is virtual: it goes on when
/// nobody can do anything but wait.
///
/// The calling code is rank 0 until `run_ranks` makes more. One world lives at a time.
class world {
 public:
  explicit world(const world_options& options = {});
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ~world();

  /// Runs f(rank) for each rank on a fiber of its own and returns when all are done. The last
  /// exception that left one is thrown again.
  void run_ranks(std::int32_t ranks, const std::function<void(std::int32_t)>& f);

  /// The first thing that went wrong on a GPU, if any.
  [[nodiscard]] const fault& first_fault() const noexcept { return fault_; }
  [[nodiscard]] grid_counters counters() const;
  [[nodiscard]] std::int64_t now_us() const noexcept { return now_us_; }
  [[nodiscard]] memory_map& memory() noexcept { return memory_; }
  [[nodiscard]] random_source& random() noexcept { return random_; }
  [[nodiscard]] const world_options& options() const noexcept { return options_; }
  /// The rank that runs, 0 outside of run_ranks.
  [[nodiscard]] std::int32_t rank() const noexcept;
  /// CUDA's current device of the rank that runs.
  [[nodiscard]] std::int32_t& current_device() noexcept;
  /// What this process has on each device, by ordinal.
  [[nodiscard]] device_use& use_of(std::int32_t device) { return uses_[device]; }

  // For the fakes of CUDA and NCCL.

  [[nodiscard]] emulated_stream* open_stream(std::int32_t device);
  /// Its work goes on to the end; the handle is gone.
  void close_stream(emulated_stream* s);
  [[nodiscard]] bool is_stream(const emulated_stream* s) const;
  /// Queues `work`, which runs on the stream's fiber and may wait.
  void enqueue(emulated_stream* s, std::function<void()> work);
  /// The same for a kernel.
  void enqueue_kernel(emulated_stream* s, grid_request request);
  /// Waits until the stream has done what is queued now. False if that never happens.
  bool wait_idle(emulated_stream* s);

  /// The fiber that runs gives others a turn.
  void yield();
  /// It waits for `ready()`; false when the world comes to an end or can do nothing any more.
  bool wait_until(const std::function<bool()>& ready);
  /// It lets time pass: others have a turn, or the clock goes on.
  void pause();
  /// Keeps the first fault.
  void report(fault_kind kind, const std::string& text);

  [[nodiscard]] static world* current() noexcept;

 private:
  struct host_fiber;

  static void fiber_main(void* argument);
  host_fiber& start(std::function<void()> body, std::int32_t rank);
  void serve(emulated_stream& s);
  void switch_away();
  [[nodiscard]] host_fiber* choose();
  void reap();

  world_options options_;
  random_source random_;
  memory_map memory_;
  fault fault_;
  std::map<std::int32_t, device_use> uses_;
  std::int64_t now_us_ = 0;
  bool ending_ = false;
  std::vector<std::unique_ptr<host_fiber>> fibers_;  // the first is the caller's
  host_fiber* running_ = nullptr;
  std::vector<std::unique_ptr<emulated_stream>> streams_;
  char ranks_begun_ = 0;
  char ranks_done_ = 0;
};

}  // namespace dyncp_emulation
