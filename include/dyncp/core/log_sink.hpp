// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/contain.hpp>
#include <dyncp/core/result.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace dyncp {
inline namespace v0 {

enum class log_level : std::int32_t { debug, info, warning };

struct log_line {
  log_level level = log_level::info;
  std::string_view component;  ///< "data_iterator", "relax"
  std::string_view text;       ///< one line without its end, valid during the call
};

/// Where the library's lines go: the caller's function, or nowhere when it is empty. The library
/// itself prints nothing. Called on the thread that called the library.
using log_sink = std::function<void(const log_line&)>;

/// Errors: callback_failed when the sink throws.
[[nodiscard]] inline result<void> log_to(const log_sink& sink, log_level level,
                                         std::string_view component, std::string_view text) {
  if (!sink) return {};
  return contain("the log sink", [&] { sink(log_line{level, component, text}); });
}

}  // namespace v0
}  // namespace dyncp
