// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cost/cost_model.hpp>
#include <dyncp/sim/simulator.hpp>

#include <string_view>
#include <type_traits>
#include <utility>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// The roles of a planner's policies. A packer is told by its name, since whether it packs depends
/// on the cost model.
enum class policy_role { cost, packer, simulator, none };

template <class T>
consteval policy_role role_of() {
  if constexpr (cost_model<T>) {
    return policy_role::cost;
  } else if constexpr (simulator<T>) {
    return policy_role::simulator;
  } else if constexpr (requires { std::string_view(T::name); }) {
    return policy_role::packer;
  } else {
    return policy_role::none;
  }
}

/// The first of `Policies` with the role, or `Default`.
template <policy_role Role, class Default, class... Policies>
struct pick {
  using type = Default;
};
template <policy_role Role, class Default, class First, class... Rest>
struct pick<Role, Default, First, Rest...> {
  using type = typename std::conditional_t<role_of<First>() == Role, std::type_identity<First>,
                                           pick<Role, Default, Rest...>>::type;
};

/// The argument of type T, or T{} when there is none.
template <class T>
constexpr T argument_or_default() {
  return T{};
}
template <class T, class First, class... Rest>
constexpr T argument_or_default(const First& first, const Rest&... rest) {
  if constexpr (std::is_same_v<T, First>) {
    return first;
  } else {
    return argument_or_default<T>(rest...);
  }
}

template <policy_role Role, class... Policies>
inline constexpr int count_of = (0 + ... + (role_of<Policies>() == Role ? 1 : 0));

}  // namespace detail
}  // namespace v0
}  // namespace dyncp
