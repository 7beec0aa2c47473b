// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// One message of an exchange that leaves this rank. `peer` counts members of the group from 0.
struct outgoing {
  std::int32_t peer = 0;
  const void* data = nullptr;
  std::int64_t bytes = 0;
};

/// One message of an exchange that arrives here; the sender's `bytes` must be the same.
struct incoming {
  std::int32_t peer = 0;
  void* data = nullptr;
  std::int64_t bytes = 0;
};

}  // namespace v0
}  // namespace dyncp
