// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/ticks.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using namespace dyncp;

TEST_CASE("a second is 2^40 ticks") {
  CHECK(ticks_per_second == 1099511627776);
  CHECK(to_ticks(0.0) == 0);
  CHECK(to_ticks(1.0) == 1099511627776);
  CHECK(to_ticks(0.001) == 1099511628);  // 1099511627.776
  CHECK(to_ticks(max_operation_s) == ticks{1} << 60);
}

TEST_CASE("halves round up") {
  const double tick_s = 1.0 / 1099511627776.0;
  CHECK(to_ticks(0.49 * tick_s) == 0);
  CHECK(to_ticks(0.5 * tick_s) == 1);
  CHECK(to_ticks(1.49 * tick_s) == 1);
  CHECK(to_ticks(1.5 * tick_s) == 2);
}

TEST_CASE("ticks to seconds and back is the identity below 2^52 ticks") {
  for (ticks t = 0; t < 2000; ++t) CHECK(to_ticks(to_seconds(t)) == t);
  for (int bit = 12; bit < 52; ++bit) {
    const ticks t = (ticks{1} << bit) + 1;
    CHECK(to_ticks(to_seconds(t)) == t);
  }
}
