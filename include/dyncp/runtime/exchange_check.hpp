// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/message.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dyncp {
inline namespace v0 {
namespace detail {

template <class Message>
[[nodiscard]] result<void> check_messages(std::int32_t rank, std::int32_t size,
                                          std::span<const Message> messages,
                                          std::string_view direction) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    const auto name = [&] { return std::string(direction) + " message " + std::to_string(i); };
    if (m.peer < 0 || m.peer >= size || m.peer == rank) {
      return error{errc::invalid_argument,
                   name() + " names member " + std::to_string(m.peer) + " of a group of " +
                       std::to_string(size) + ", seen from member " + std::to_string(rank),
                   m.peer, size - 1, "name another member of the group"};
    }
    if (m.bytes < 0 || (m.bytes > 0 && m.data == nullptr)) {
      return error{errc::invalid_argument,
                   name() + " has " + std::to_string(m.bytes) + " bytes" +
                       (m.bytes < 0 ? "" : " and no data"),
                   m.bytes, 0, "give a buffer"};
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (messages[j].peer != m.peer) continue;
      return error{errc::invalid_argument,
                   "two " + std::string(direction) + " messages for member " +
                       std::to_string(m.peer) + " in one exchange",
                   m.peer, 1, "pack them into one message: nothing tells two apart on the wire"};
    }
  }
  return {};
}

}  // namespace detail

/// Checks the promises of an exchange that one rank can see: peers inside the group and not
/// itself, one message per peer and direction, sizes of 0 or more with data behind them.
///
/// For implementers of `fabric`. Complexity: quadratic in the messages, of which there are few.
[[nodiscard]] inline result<void> check_exchange(std::int32_t rank, std::int32_t size,
                                                 std::span<const outgoing> out,
                                                 std::span<const incoming> in) {
  if (auto checked = detail::check_messages(rank, size, out, "outgoing"); !checked) return checked;
  return detail::check_messages(rank, size, in, "incoming");
}

}  // namespace v0
}  // namespace dyncp
