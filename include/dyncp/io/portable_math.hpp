// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/rounded.hpp>
#include <dyncp/core/splitmix.hpp>

#include <cmath>

namespace dyncp {
inline namespace v0 {

/// Functions whose results are the same bits on every platform: only additions,
/// products, quotients and square roots of IEEE doubles, none of them contracted. The library
/// functions of `<cmath>` and the distributions of `<random>` differ between implementations.
/// Pure, safe to call concurrently.
namespace portable {

/// Natural logarithm of a positive normal number, to about 1e-15.
[[nodiscard]] inline double log(double x) noexcept {
  constexpr double ln2_high = 6.93147180369123816490e-01;  // 32 bits: times an exponent exact
  constexpr double ln2_low = 1.90821492927058770002e-10;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752440) {
    m *= 2.0;
    exponent -= 1;
  }
  // log(m) = 2 artanh(t), |t| <= 0.172
  const double t = (m - 1.0) / (m + 1.0);
  const double square = rounded_product(t, t);
  double series = 0;
  for (int k = 23; k >= 1; k -= 2) series = 1.0 / k + rounded_product(square, series);
  const double mantissa = rounded_product(2.0 * t, series);
  return exponent * ln2_high + (mantissa + rounded_product(exponent, ln2_low));
}

/// e^x for |x| <= 700, to about 1e-15 relative.
[[nodiscard]] inline double exp(double x) noexcept {
  constexpr double ln2_high = 6.93147180369123816490e-01;
  constexpr double ln2_low = 1.90821492927058770002e-10;
  constexpr double per_ln2 = 1.44269504088896338700e+00;
  const int k = static_cast<int>(rounded_product(x, per_ln2) + (x < 0 ? -0.5 : 0.5));
  const double rest = (x - rounded_product(k, ln2_high)) - rounded_product(k, ln2_low);
  double series = 1.0;
  for (int n = 14; n >= 1; --n) series = 1.0 + rounded_product(rest / n, series);
  return std::ldexp(series, k);
}

/// A standard normal number from the stream, by Marsaglia's polar method; the second of each pair is
/// thrown away.
[[nodiscard]] inline double normal(splitmix& random) noexcept {
  for (;;) {
    const double a = 2.0 * random.unit() - 1.0;  // both steps are exact
    const double b = 2.0 * random.unit() - 1.0;
    const double s = rounded_product(a, a) + rounded_product(b, b);
    if (s > 0.0 && s < 1.0) return rounded_product(a, std::sqrt(-2.0 * log(s) / s));
  }
}

}  // namespace portable
}  // namespace v0
}  // namespace dyncp
