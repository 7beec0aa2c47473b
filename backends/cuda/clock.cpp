// SPDX-License-Identifier: Apache-2.0
#include "clock.hpp"

#include <chrono>
#include <thread>

namespace dyncp {
inline namespace v0 {
namespace cuda {

std::int64_t clock_us() noexcept {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void pause(std::int64_t rounds) noexcept {
  if (rounds < 1000) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
