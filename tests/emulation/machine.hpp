// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a test of kernels runs on: the emulator, or with DYNCP_TEST_ON_GPU the GPU of this machine.
// A test that holds on both says `machine`; one about the emulator itself says `world`.

#include <cstdint>
#include <string>

#if !defined(DYNCP_TEST_ON_GPU)
#include "emulation/world.hpp"
#endif

namespace dyncp_test {

struct machine_options {
  std::uint64_t seed = 1;         ///< of the emulator's order; a GPU has its own
  std::uint32_t live_blocks = 3;  ///< of one kernel, in the emulator
};

#if defined(DYNCP_TEST_ON_GPU)

inline constexpr bool on_gpu = true;

class machine {
 public:
  explicit machine(const machine_options& = {}) {}
  /// Errors of a GPU come back from its calls, and other faults from compute-sanitizer.
  [[nodiscard]] std::string fault() const { return {}; }
  /// Not counted.
  [[nodiscard]] std::int64_t kernels() const { return 0; }
};

#else

inline constexpr bool on_gpu = false;

class machine {
 public:
  explicit machine(const machine_options& options = {})
      : world_({.seed = options.seed, .grid = {.live_blocks = options.live_blocks}}) {}
  /// The first thing that went wrong, or nothing.
  [[nodiscard]] const std::string& fault() const { return world_.first_fault().text; }
  /// How many have run; a GPU does not say.
  [[nodiscard]] std::int64_t kernels() const { return world_.counters().kernels; }

 private:
  dyncp_emulation::world world_;
};

#endif

}  // namespace dyncp_test
