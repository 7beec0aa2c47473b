// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dyncp {
inline namespace v0 {

/// a * b rounded to double before it is used: never fused into a following addition.
///
/// GCC and clang contract a*b + c to one fused multiply-add where the target has it; the last bit
/// then depends on -march and -O, and with it, through a tie, the plan. Cost models multiply with
/// this function wherever the product feeds a sum.
[[nodiscard]] inline double rounded_product(double a, double b) noexcept {
  double p = a * b;
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__)) && defined(__SSE2__)
  __asm__("" : "+x"(p));
#elif defined(__GNUC__) && defined(__aarch64__)
  __asm__("" : "+w"(p));
#else
  volatile double barrier = p;
  p = barrier;
#endif
  return p;
}

}  // namespace v0
}  // namespace dyncp
