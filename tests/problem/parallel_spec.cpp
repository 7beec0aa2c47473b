// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"

#include <dyncp/problem/parallel_spec.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

using dyncp::errc;
using dyncp::parallel_spec;
using dyncp_test::expect_error;

namespace {

parallel_spec eight_ranks() {
  parallel_spec p;
  p.ranks = 8;
  return p;
}

// The eight ranks with one change.
parallel_spec with(const std::function<void(parallel_spec&)>& change) {
  parallel_spec p = eight_ranks();
  change(p);
  return p;
}

using sizes = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("the default and ordinary layouts are accepted") {
  CHECK(check(parallel_spec{}));
  CHECK(check(eight_ranks()));
  CHECK(check(with([](auto& p) { p.static_cp = 4; })));
  CHECK(check(with([](auto& p) { p.min_cp = 8, p.max_cp = 8; })));
  CHECK(check(with([](auto& p) { p.ranks = 1 << 20; })));
  CHECK(check(with([](auto& p) { p.pp = 4096, p.vpp = 4096; })));
  // 6 ranks: the whole domain is a legal upper end without being a power of two.
  CHECK(check(with([](auto& p) { p.ranks = 6, p.max_cp = 6; })));
  CHECK(check(with([](auto& p) { p.cp_sizes = {3, 5, 1}; })));
}

TEST_CASE("every field below one is named, with its value") {
  struct field {
    const char* name;
    std::int32_t parallel_spec::*member;
  };
  for (const field f :
       {field{"ranks", &parallel_spec::ranks}, field{"pp", &parallel_spec::pp},
        field{"vpp", &parallel_spec::vpp}, field{"tp", &parallel_spec::tp},
        field{"static cp", &parallel_spec::static_cp}, field{"min-cp", &parallel_spec::min_cp}}) {
    for (const std::int32_t value : {0, -1, INT32_MIN}) {
      CAPTURE(f.name);
      parallel_spec p = eight_ranks();
      p.*f.member = value;
      expect_error(check(p), errc::invalid_argument, value, 1, f.name);
      CHECK(check(p).error().hint.find("1 or more") != std::string::npos);
    }
  }
}

TEST_CASE("what is too large to plan") {
  expect_error(check(with([](auto& p) { p.ranks = (1 << 20) + 1; })), errc::invalid_argument,
               (1 << 20) + 1, 1 << 20, "ranks");
  for (const auto member : {&parallel_spec::pp, &parallel_spec::vpp}) {
    parallel_spec p = eight_ranks();
    p.*member = 4097;
    const auto bad = check(p);
    REQUIRE_FALSE(bad);
    CHECK(bad.error().value == 4097);
    CHECK(bad.error().limit == 4096);
    CHECK(bad.error().what.find("4096") != std::string::npos);
  }
}

TEST_CASE("max-cp and min-cp lie in order within the ranks") {
  expect_error(check(with([](auto& p) { p.max_cp = 16; })), errc::invalid_argument, 16, 8,
               "max-cp");
  CHECK(check(with([](auto& p) { p.max_cp = 16; })).error().hint.find("(8)") != std::string::npos);
  expect_error(check(with([](auto& p) { p.max_cp = -1; })), errc::invalid_argument, -1, 8,
               "max-cp");
  expect_error(check(with([](auto& p) { p.min_cp = 8, p.max_cp = 4; })), errc::invalid_argument, 8,
               4, "min-cp");
  expect_error(check(with([](auto& p) { p.min_cp = 16; })), errc::invalid_argument, 16, 8,
               "min-cp");
}

TEST_CASE("ranks that static cp does not divide") {
  expect_error(check(with([](auto& p) { p.static_cp = 3; })), errc::invalid_argument, 8, 3,
               "multiple of static cp 3");
  expect_error(check(with([](auto& p) { p.static_cp = 16; })), errc::invalid_argument, 8, 16,
               "static cp 16");
}

TEST_CASE("min-cp 3 is no power of two: 2 or 4 are offered (Megatron-LM dev: IndexError)") {
  expect_error(check(with([](auto& p) { p.min_cp = 3; })), errc::invalid_argument, 3, 0, "min-cp");
  const std::string hint = check(with([](auto& p) { p.min_cp = 3; })).error().hint;
  CHECK(hint.find("2 or 4") != std::string::npos);
  expect_error(check(with([](auto& p) { p.max_cp = 6; })), errc::invalid_argument, 6, 0, "max-cp");
  // min-cp may not be the whole of an odd domain either: the sizes would be 6, 12, ...
  expect_error(check(with([](auto& p) { p.ranks = 6, p.min_cp = 6; })), errc::invalid_argument, 6,
               0, "min-cp");
  CHECK(check(with([](auto& p) { p.min_cp = 3, p.cp_sizes = {3, 6}; })));
}

TEST_CASE("an explicit set lies within the ranks and leaves a size") {
  expect_error(check(with([](auto& p) {
                 p.cp_sizes = {1, 9};
               })),
               errc::invalid_argument, 9, 8, "allowed CP size");
  expect_error(check(with([](auto& p) {
                 p.cp_sizes = {1, 0};
               })),
               errc::invalid_argument, 0, 8, "allowed CP size");
  expect_error(check(with([](auto& p) { p.cp_sizes = {-2}; })), errc::invalid_argument, -2, 8,
               "allowed CP size");
  const auto none = check(with([](auto& p) { p.cp_sizes = {1, 2}, p.min_cp = 4; }));
  REQUIRE_FALSE(none);
  CHECK(none.error().code == errc::invalid_argument);
  CHECK_FALSE(none.error().hint.empty());
}

TEST_CASE("allowed sizes are the powers of two from min-cp to max-cp, or the given set") {
  CHECK(allowed_cp_sizes(eight_ranks()) == sizes{1, 2, 4, 8});
  CHECK(allowed_cp_sizes(with([](auto& p) { p.min_cp = 2, p.max_cp = 4; })) == sizes{2, 4});
  CHECK(allowed_cp_sizes(with([](auto& p) { p.ranks = 6; })) == sizes{1, 2, 4});
  CHECK(allowed_cp_sizes(with([](auto& p) { p.cp_sizes = {6, 1, 3, 1}; })) == sizes{1, 3, 6});
  CHECK(allowed_cp_sizes(with([](auto& p) {
          p.cp_sizes = {6, 1, 3}, p.max_cp = 4;
        })) == sizes{1, 3});
  CHECK(allowed_cp_sizes(with([](auto& p) { p.ranks = 1 << 20, p.min_cp = 1 << 20; })) ==
        sizes{1 << 20});
}

TEST_CASE("every checked layout of up to 12 ranks has sizes within its bounds") {
  for (std::int32_t ranks = 1; ranks <= 12; ++ranks) {
    for (std::int32_t low = 1; low <= ranks; ++low) {
      for (std::int32_t high = 0; high <= ranks; ++high) {
        parallel_spec p;
        p.ranks = ranks;
        p.min_cp = low;
        p.max_cp = high;
        const std::int32_t top = high == 0 ? ranks : high;
        const bool low_ok = low == 1 || low == 2 || low == 4 || low == 8;
        const bool high_ok =
            high == 0 || high == ranks || high == 1 || high == 2 || high == 4 || high == 8;
        CAPTURE(ranks);
        CAPTURE(low);
        CAPTURE(high);
        REQUIRE(check(p).has_value() == (low <= top && low_ok && high_ok));
        if (!check(p)) continue;
        sizes expected;
        for (std::int32_t c = low; c <= top; c += c) expected.push_back(c);
        CHECK(allowed_cp_sizes(p) == expected);
      }
    }
  }
}

TEST_CASE("ranks that share a node: its GPUs over tp, at least one") {
  parallel_spec p = eight_ranks();
  CHECK(ranks_per_node(8, p) == 8);
  p.tp = 4;
  CHECK(ranks_per_node(8, p) == 2);
  p.tp = 3;
  CHECK(ranks_per_node(8, p) == 2);
  p.tp = 16;
  CHECK(ranks_per_node(8, p) == 1);
}
