// SPDX-License-Identifier: Apache-2.0
#include "support/random.hpp"

#include <dyncp/cost/quota.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using dyncp::errc;
using dyncp::knee;
using dyncp::quota;

namespace {

using counts = std::vector<std::int32_t>;

// W * (m*V + p - 1) with W = work/m: the time of equal micro-batches.
double time_of(std::int32_t m, std::int32_t v, std::int32_t p, double work) {
  return work / m * (m * v + p - 1);
}

}  // namespace

TEST_CASE("two ranks of 2 and 4 micro-batches, by hand") {
  // Three stages: 4 and 6 slots. 2/4 + 4/6 = 7/6 of the time is work; of 7 that makes a time of 6.
  const auto q = quota({2, 4}, 1, 3, 7.0);
  REQUIRE(q);
  CHECK(q->time == doctest::Approx(6.0));
  CHECK(q->per_micro_batch[0] == doctest::Approx(1.5));
  CHECK(q->per_micro_batch[1] == doctest::Approx(1.0));
}

TEST_CASE("equal counts share the work equally, whatever p and V") {
  for (const std::int32_t m : {1, 3, 8, 24}) {
    for (const std::int32_t v : {1, 2, 4}) {
      for (const std::int32_t p : {1, 2, 8}) {
        const auto q = quota(counts(5, m), v, p, 60.0);
        REQUIRE(q);
        for (const double w : q->per_micro_batch) CHECK(w == doctest::Approx(60.0 / (5 * m)));
        CHECK(q->time == doctest::Approx(time_of(m, v, p, 12.0)));
      }
    }
  }
}

TEST_CASE("published times of equal quotas at 8 stages: 1.875, 1.4375, 1.292, 1.219 of the work") {
  const double published[] = {1.875, 1.4375, 1.2917, 1.21875};
  for (int i = 0; i < 4; ++i) {
    const auto q = quota(counts(16, 8 * (i + 1)), 1, 8, 16.0);
    REQUIRE(q);
    CHECK(q->time == doctest::Approx(published[i]).epsilon(1e-4));
  }
}

TEST_CASE("a lone pipeline without bubble takes its work") {
  const auto q = quota({5}, 1, 1, 10.0);
  REQUIRE(q);
  CHECK(q->time == doctest::Approx(10.0));
  CHECK(q->per_micro_batch[0] == doctest::Approx(2.0));
}

TEST_CASE("any counts: all ranks end together, and all work is done") {
  const std::uint64_t seed = dyncp_test::seed_or(17);
  CAPTURE(seed);
  dyncp_test::random rng(seed);
  for (std::int64_t round = 0; round < dyncp_test::count_or(5000); ++round) {
    counts m;
    for (std::int64_t n = rng.between(1, 40); n > 0; --n) {
      m.push_back(static_cast<std::int32_t>(rng.between(1, 200)));
    }
    const auto v = static_cast<std::int32_t>(rng.between(1, 6));
    const auto p = static_cast<std::int32_t>(rng.between(1, 32));
    const double total = 1e-3 + 1e6 * rng.unit();
    const auto q = quota(m, v, p, total);
    REQUIRE(q);
    REQUIRE(q->per_micro_batch.size() == m.size());
    double work = 0;
    for (std::size_t i = 0; i < m.size(); ++i) {
      const double w = q->per_micro_batch[i];
      CHECK(w * (m[i] * v + p - 1) == doctest::Approx(q->time).epsilon(1e-12));
      work += w * m[i];
    }
    CHECK(work == doctest::Approx(total).epsilon(1e-12));
    // Scaling the work scales all; a rank with more micro-batches gets smaller ones, and does more.
    const auto twice = quota(m, v, p, 2 * total);
    CHECK(twice->time == doctest::Approx(2 * q->time).epsilon(1e-13));
    for (std::size_t i = 1; i < m.size(); ++i) {
      if (m[i] <= m[i - 1]) continue;
      CHECK(q->per_micro_batch[i] < q->per_micro_batch[i - 1]);
      CHECK(q->per_micro_batch[i] * m[i] >= q->per_micro_batch[i - 1] * m[i - 1] * (1 - 1e-12));
    }
  }
}

TEST_CASE("bad arguments of quotas are named") {
  CHECK(quota({}, 1, 1, 1.0).error().code == errc::empty_input);
  const auto bad = quota({4, 0}, 1, 2, 1.0);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::invalid_argument);
  CHECK(bad.error().what == "micro-batches of rank 1 is 0");
  CHECK(bad.error().limit == 1);
  CHECK(quota({4}, 0, 2, 1.0).error().what == "vpp is 0");
  CHECK(quota({4}, 1, -3, 1.0).error().value == -3);
  for (const double total : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto no_work = quota({4}, 1, 2, total);
    REQUIRE_FALSE(no_work);
    CHECK(no_work.error().code == errc::invalid_argument);
  }
  CHECK(quota({INT32_MAX}, 4096, 4096, 1.0));
}

TEST_CASE("the quota of equal m has its knee right after 19*pp: pp/(M + pp) < 1/20") {
  for (const std::int32_t pp : {1, 2, 4, 8, 16}) {
    for (const double total : {1.0, 7.3, 1e9}) {
      const auto quota_at = [&](std::int32_t m) { return total / (64.0 * m); };
      CHECK(*knee(quota_at, pp, 1, 1, 100000) == 19 * pp + 1);
      CHECK(*knee(quota_at, pp, pp, pp, 100000) == 20 * pp);
    }
  }
}

TEST_CASE("the knee of a time is where filling the pipeline stops paying") {
  // (M + 7)/M at M = 8, 16, ...: 1.875, 1.4375, 1.2917, 1.21875, 1.175, 1.1458: falls by 23 %,
  // 10 %, 5.6 %, 3.6 %.
  const auto time = [](std::int32_t m) { return time_of(m, 1, 8, 1.0); };
  CHECK(*knee(time, 8, 8, 8, 1000) == 32);
  // With 4 chunks a stage the bubble is small from the start: 39/8 to 71/16 a rank is -9 %.
  const auto interleaved = [](std::int32_t m) { return time_of(m, 4, 8, 1.0); };
  CHECK(*knee(interleaved, 8, 8, 8, 1000) == 16);
}

TEST_CASE("the knee is the first of its kind on any curve") {
  const std::uint64_t seed = dyncp_test::seed_or(19);
  CAPTURE(seed);
  dyncp_test::random rng(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> curve = {0};
    for (int m = 1; m <= 60; ++m) curve.push_back(1.0 + 9.0 * rng.unit() / m);
    const auto at = [&](std::int32_t m) { return curve[static_cast<std::size_t>(m)]; };
    const auto pp = static_cast<std::int32_t>(rng.between(1, 8));
    const auto step = static_cast<std::int32_t>(rng.between(1, 3));
    std::int32_t expected = -1;
    for (std::int32_t m = 1; m <= 50 && expected < 0; m += step) {
      if (at(m + pp) > 0.95 * at(m)) expected = m;
    }
    const auto found = knee(at, pp, 1, step, 50);
    CHECK((found ? *found : -1) == expected);
  }
}

TEST_CASE("a curve without a knee, and bad arguments") {
  const auto steep = [](std::int32_t m) { return std::pow(0.5, m); };
  const auto none = knee(steep, 1, 1, 1, 40);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == errc::not_found);
  CHECK(none.error().value == 40);
  CHECK_FALSE(knee(steep, 0, 1, 1, 40));
  CHECK_FALSE(knee(steep, 1, 0, 1, 40));
  CHECK_FALSE(knee(steep, 1, 1, 0, 40));
  const auto last =
      knee([](std::int32_t m) { return 1.0 / m; }, 4096, INT32_MAX - 4096, 1, INT32_MAX);
  CHECK(*last == INT32_MAX - 4096);
}
