// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#if defined(__cpp_exceptions)
#include <exception>
#endif

namespace dyncp {
inline namespace v0 {
namespace detail {

template <class T>
struct contained {
  using type = result<T>;
};
template <class T>
struct contained<result<T>> {
  using type = result<T>;
};

template <class F>
using contained_t = typename contained<std::remove_cvref_t<std::invoke_result_t<F&>>>::type;

template <class F>
[[nodiscard]] contained_t<F> call_contained(F& f) {
  if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
    f();
    return {};
  } else {
    return f();
  }
}

}  // namespace detail

/// Calls a function of the caller's; what it throws becomes `callback_failed` with `who` in front:
/// "the loader of sequence 7 threw: no such file". A function that returns a `result` gives that
/// one, others give theirs in a `result`.
template <class F>
[[nodiscard]] auto contain(std::string_view who, F&& f) -> detail::contained_t<F> {
#if defined(__cpp_exceptions)
  try {
    return detail::call_contained(f);
  } catch (const std::exception& e) {
    return make_error(errc::callback_failed, std::string(who) + " threw: " + e.what(),
                      "remove what it complains of, and call again");
  } catch (...) {
    return make_error(errc::callback_failed, std::string(who) + " threw what is no std::exception",
                      "remove what it complains of, and call again");
  }
#else
  static_cast<void>(who);
  return detail::call_contained(f);
#endif
}

}  // namespace v0
}  // namespace dyncp
