// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/rounded.hpp>

#include <doctest/doctest.h>

using namespace dyncp;

TEST_CASE("a product is rounded before it is added") {
  // (1 + e)^2 is 1 + 2e + e^2; with e = 2^-52 the last term is lost to rounding, and only a fused
  // multiply-add would bring it back.
  volatile double one_up = 1.0 + 0x1.0p-52;
  const double product = rounded_product(one_up, one_up);
  CHECK(product == 1.0 + 0x1.0p-51);
  CHECK(rounded_product(one_up, one_up) - product == 0.0);
  CHECK(rounded_product(one_up, one_up) + -(1.0 + 0x1.0p-51) == 0.0);
}

TEST_CASE("ordinary products are exact products") {
  CHECK(rounded_product(3.0, 4.0) == 12.0);
  CHECK(rounded_product(0.0, 5.0) == 0.0);
  CHECK(rounded_product(-0.5, 0.25) == -0.125);
}

#if defined(__x86_64__) && defined(__GNUC__)
namespace {
__attribute__((target("fma"), noinline)) double guarded(double a, double b, double c) {
  return rounded_product(a, b) + c;
}
}  // namespace

TEST_CASE("not even code for a machine with fused multiply-add fuses it") {
  if (!__builtin_cpu_supports("fma")) return;
  volatile double one_up = 1.0 + 0x1.0p-52;
  CHECK(guarded(one_up, one_up, -(1.0 + 0x1.0p-51)) == 0.0);
}
#endif
