// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

// How the library waits: in a loop of asking, looking at the clock and pausing, never in a call
// that might not return. Functions of the library, so that tests bring a clock of their own.

/// Microseconds of a clock that never goes back.
[[nodiscard]] std::int64_t clock_us() noexcept;

/// Gives other threads a chance; `rounds` counts the pauses of one wait: it begins by yielding and
/// comes to sleep for a few tens of microseconds.
void pause(std::int64_t rounds) noexcept;

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
