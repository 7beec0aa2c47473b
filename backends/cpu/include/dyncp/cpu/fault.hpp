// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cpu {

/// What a fault does to the messages that a rank sends in one exchange, or to the rank.
enum class fault_kind : std::int32_t {
  drop,        ///< the messages never arrive; the sender does not notice
  delay,       ///< they arrive `amount_us` later
  wrong_size,  ///< they claim one byte more than they have
  kill,        ///< the rank stops; its peers learn it when they wait for it
};

/// A fault at the `step`-th exchange (0, 1, ...) that `rank` begins, on streams and host together.
struct fault {
  fault_kind kind = fault_kind::drop;
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::int64_t amount_us = 0;  ///< of a delay
};

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
