// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/contain.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>

#include <string>
#include <string_view>

#if defined(__cpp_exceptions)
#include <new>
#include <stdexcept>
#endif

namespace dyncp {
inline namespace v0 {

/// As `contain`, for work whose memory is as large as a caller says: what cannot be had is
/// `out_of_memory` with `who` in front, a rank's own error like any other.
template <class F>
[[nodiscard]] auto contain_memory(std::string_view who, F&& f) -> detail::contained_t<F> {
#if defined(__cpp_exceptions)
  return contain(who, [&]() -> detail::contained_t<F> {
    const char* why = "";
    try {
      return detail::call_contained(f);
    } catch (const std::bad_alloc&) {
      why = "cannot be had";
    } catch (const std::length_error&) {
      why = "is more than a container holds";
    }
    return make_error(errc::out_of_memory, "memory for " + std::string(who) + " " + why,
                      "make samples or batches smaller, or discard the sample");
  });
#else
  return contain(who, f);
#endif
}

}  // namespace v0
}  // namespace dyncp
