// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dyncp {
inline namespace v0 {

/// Which keys of its own sequence a query attends to.
enum class attention_mask : std::int8_t {
  causal,  ///< keys at its own position and before
  full,    ///< every key
};

}  // namespace v0
}  // namespace dyncp
