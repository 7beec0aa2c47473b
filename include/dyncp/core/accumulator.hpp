// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>

namespace dyncp {
inline namespace v0 {

/// The type in which sums over elements of type T are kept: partial outputs, log-sum-exp and
/// gradients. Running sums in bfloat16 lose a digit by 32 ranks.
template <class T>
struct accumulator;
template <>
struct accumulator<bfloat16> {
  using type = float;
};
template <>
struct accumulator<float16> {
  using type = float;
};
template <>
struct accumulator<float> {
  using type = float;
};
template <>
struct accumulator<double> {
  using type = double;
};

template <class T>
using accumulator_t = typename accumulator<T>::type;

}  // namespace v0
}  // namespace dyncp
