// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/message.hpp>

#include <cstdint>
#include <span>

namespace dyncp {
inline namespace v0 {

/// The channel of a process that is alone: it plans for `options.rank` and talks to nobody.
class lone_channel {
 public:
  [[nodiscard]] std::int32_t rank() const noexcept { return 0; }
  [[nodiscard]] std::int32_t size() const noexcept { return 1; }
  [[nodiscard]] result<void> exchange_host(std::span<const outgoing> out,
                                           std::span<const incoming> in) const {
    if (out.empty() && in.empty()) return {};
    return make_error(errc::invalid_argument, "a message in a channel of one member");
  }
};

}  // namespace v0
}  // namespace dyncp
