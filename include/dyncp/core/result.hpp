// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/error.hpp>

#include <type_traits>
#include <utility>
#include <variant>

#if defined(__cpp_exceptions)
#include <stdexcept>
#else
#include <cstdlib>
#endif

namespace dyncp {
inline namespace v0 {

#if defined(__cpp_exceptions)
/// Thrown by `result::value()` alone; holds the typed error.
class bad_result : public std::runtime_error {
 public:
  explicit bad_result(dyncp::error e) : std::runtime_error(e.message()), error_(std::move(e)) {}
  [[nodiscard]] const dyncp::error& error() const noexcept { return error_; }

 private:
  dyncp::error error_;
};
#endif

/// A value or an `error`. Planning and runtime entry points return it and never throw.
///
/// Thread safety: const members may be called concurrently, distinct objects are independent.
/// Example: `if (auto p = planner.plan(problem)) use(*p); else log(p.error().message());`
template <class T>
class [[nodiscard]] result {
  static_assert(!std::is_same_v<std::remove_cvref_t<T>, dyncp::error>);

 public:
  using value_type = T;

  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  result(dyncp::error e) : state_(std::in_place_index<1>, std::move(e)) {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

  /// Requires has_value().
  [[nodiscard]] T& operator*() & { return *checked_value(); }
  [[nodiscard]] const T& operator*() const& { return *checked_value(); }
  [[nodiscard]] T&& operator*() && { return std::move(*checked_value()); }
  [[nodiscard]] T* operator->() { return checked_value(); }
  [[nodiscard]] const T* operator->() const { return checked_value(); }

  /// Requires !has_value().
  [[nodiscard]] const dyncp::error& error() const& {
    DYNCP_ASSERT(!has_value());
    return *std::get_if<1>(&state_);
  }
  [[nodiscard]] dyncp::error&& error() && {
    DYNCP_ASSERT(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }

  /// The value, or throws `bad_result` (ends the program when exceptions are off).
  [[nodiscard]] T& value() & {
    require();
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] T&& value() && {
    require();
    return std::move(*std::get_if<0>(&state_));
  }

 private:
  T* checked_value() {
    DYNCP_ASSERT(has_value());
    return std::get_if<0>(&state_);
  }
  const T* checked_value() const {
    DYNCP_ASSERT(has_value());
    return std::get_if<0>(&state_);
  }
  void require() const {
    if (has_value()) return;
#if defined(__cpp_exceptions)
    throw bad_result(*std::get_if<1>(&state_));
#else
    std::abort();
#endif
  }

  std::variant<T, dyncp::error> state_;
};

/// Success without a value, or an `error`.
template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;

  result() : state_(std::in_place_index<0>) {}
  result(dyncp::error e) : state_(std::in_place_index<1>, std::move(e)) {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] const dyncp::error& error() const& {
    DYNCP_ASSERT(!has_value());
    return *std::get_if<1>(&state_);
  }
  [[nodiscard]] dyncp::error&& error() && {
    DYNCP_ASSERT(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }
  void value() const {
    if (has_value()) return;
#if defined(__cpp_exceptions)
    throw bad_result(*std::get_if<1>(&state_));
#else
    std::abort();
#endif
  }

 private:
  std::variant<std::monostate, dyncp::error> state_;
};

}  // namespace v0
}  // namespace dyncp
