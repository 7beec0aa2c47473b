// SPDX-License-Identifier: Apache-2.0
#include "support/random.hpp"

#include <dyncp/packers/karmarkar_karp.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

std::vector<std::int64_t> sums(const dyncp::partition& parts,
                               const std::vector<std::int64_t>& weights) {
  std::vector<std::int64_t> out;
  for (const auto& part : parts) {
    std::int64_t sum = 0;
    for (const std::int32_t i : part) sum += weights[static_cast<std::size_t>(i)];
    out.push_back(sum);
  }
  return out;
}

dyncp::partition split(const std::vector<std::int64_t>& weights, std::int32_t parts,
                       bool equal = false) {
  return dyncp::karmarkar_karp({weights.begin(), weights.end()}, parts, equal);
}

void check_cover(const dyncp::partition& parts, std::size_t items) {
  std::vector<std::int32_t> all;
  for (const auto& part : parts) {
    REQUIRE(std::is_sorted(part.begin(), part.end()));
    all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  REQUIRE(all.size() == items);
  for (std::size_t i = 0; i < items; ++i) REQUIRE(all[i] == static_cast<std::int32_t>(i));
}

}  // namespace

TEST_CASE("the textbook's five numbers differ by two") {
  const std::vector<std::int64_t> weights{8, 7, 6, 5, 4};
  CHECK(sums(split(weights, 2), weights) == std::vector<std::int64_t>{16, 14});
}

TEST_CASE("parts come heaviest first") {
  const std::vector<std::int64_t> weights{1, 9, 3};
  CHECK(sums(split(weights, 3), weights) == std::vector<std::int64_t>{9, 3, 1});
}

TEST_CASE("all small inputs are covered, and no part is empty while there are items") {
  for (std::int32_t n = 1; n <= 5; ++n) {
    std::vector<std::int64_t> weights(static_cast<std::size_t>(n), 1);
    for (bool more = true; more;) {
      for (std::int32_t k = 1; k <= n; ++k) {
        const dyncp::partition parts = split(weights, k);
        check_cover(parts, weights.size());
        REQUIRE(parts.size() == static_cast<std::size_t>(k));
        for (const auto& part : parts) REQUIRE_FALSE(part.empty());
        if (n % k == 0) {
          const dyncp::partition equal = split(weights, k, true);
          check_cover(equal, weights.size());
          for (const auto& part : equal) REQUIRE(part.size() == static_cast<std::size_t>(n / k));
        }
      }
      more = false;  // the next vector of weights 1 .. 4
      for (std::int64_t& w : weights) {
        if (w < 4) {
          ++w;
          more = true;
          break;
        }
        w = 1;
      }
    }
  }
}

TEST_CASE("more parts than items leave the last ones empty; no items are no parts' fault") {
  const dyncp::partition parts = split({5, 3}, 4);
  check_cover(parts, 2);
  CHECK(parts[2].empty());
  CHECK(parts[3].empty());
  CHECK(split({}, 3).size() == 3);
}

TEST_CASE("many weights balance to a fraction of a percent") {
  const std::uint64_t seed = dyncp_test::seed_or(7);
  dyncp_test::random rng(seed);
  CAPTURE(seed);
  std::vector<std::int64_t> weights;
  for (int i = 0; i < 512; ++i) weights.push_back(rng.between(1, 1000));
  for (const bool equal : {false, true}) {
    const std::vector<std::int64_t> s = sums(split(weights, 16, equal), weights);
    CHECK(static_cast<double>(s.front()) < 1.005 * static_cast<double>(s.back()));
  }
}
