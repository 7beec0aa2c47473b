// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/rank_range.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using namespace dyncp;

TEST_CASE("a range holds its ranks and no others") {
  const rank_range r{4, 2};
  CHECK(r.end() == 6);
  CHECK(!r.contains(3));
  CHECK(r.contains(4));
  CHECK(r.contains(5));
  CHECK(!r.contains(6));
  CHECK(!rank_range{}.contains(0));
}

TEST_CASE("two ranges overlap exactly when they share a rank") {
  constexpr std::int32_t n = 6;
  for (std::int32_t a = 0; a < n; ++a) {
    for (std::int32_t as = 1; a + as <= n; ++as) {
      for (std::int32_t b = 0; b < n; ++b) {
        for (std::int32_t bs = 1; b + bs <= n; ++bs) {
          const rank_range x{a, as};
          const rank_range y{b, bs};
          bool shared = false;
          for (std::int32_t rank = 0; rank < n; ++rank) {
            shared = shared || (x.contains(rank) && y.contains(rank));
          }
          CHECK(x.overlaps(y) == shared);
          CHECK(y.overlaps(x) == shared);
          CHECK((x == y) == (a == b && as == bs));
        }
      }
    }
  }
}
