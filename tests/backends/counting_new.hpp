// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace dyncp_test {

/// Calls of operator new in this program, in any form and thread.
extern std::atomic<std::int64_t> allocations;

}  // namespace dyncp_test
