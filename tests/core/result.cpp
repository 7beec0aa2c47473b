// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/result.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp;

namespace {

result<int> half(int x) {
  if (x % 2 != 0) return error{errc::invalid_argument, "x is odd", x, 2, "pass an even number"};
  return x / 2;
}

result<void> require_positive(int x) {
  if (x > 0) return {};
  return error{errc::invalid_argument, "x is not positive", x, 1, ""};
}

}  // namespace

TEST_CASE("a value") {
  result<int> r = half(8);
  REQUIRE(r.has_value());
  CHECK(static_cast<bool>(r));
  CHECK(*r == 4);
  CHECK(r.value() == 4);
  *r = 5;
  CHECK(*std::as_const(r) == 5);
  CHECK(half(6).value() == 3);
}

TEST_CASE("an error keeps its numbers") {
  const result<int> r = half(7);
  REQUIRE(!r.has_value());
  CHECK(!r);
  CHECK(r.error().code == errc::invalid_argument);
  CHECK(r.error().value == 7);
  CHECK(r.error().limit == 2);
  CHECK(r.error().message() == "x is odd; pass an even number");
}

TEST_CASE("value() throws the typed error") {
  result<int> r = half(7);
  CHECK_THROWS_AS((void)r.value(), bad_result);
  try {
    (void)half(9).value();
    FAIL("no exception");
  } catch (const bad_result& e) {
    CHECK(std::string(e.what()) == "x is odd; pass an even number");
    CHECK(e.error().value == 9);
  }
}

TEST_CASE("a result of nothing") {
  CHECK(require_positive(1).has_value());
  CHECK_NOTHROW(require_positive(1).value());
  const result<void> r = require_positive(0);
  REQUIRE(!r);
  CHECK(r.error().what == "x is not positive");
  CHECK_THROWS_AS(r.value(), bad_result);
}

TEST_CASE("values that only move") {
  result<std::unique_ptr<int>> r = std::make_unique<int>(3);
  REQUIRE(r);
  CHECK(**r == 3);
  const std::unique_ptr<int> taken = *std::move(r);
  CHECK(*taken == 3);
  result<std::vector<int>> v = std::vector<int>{1, 2};
  CHECK(v->size() == 2);
  v->push_back(3);
  CHECK(std::move(v).value().size() == 3);
}

TEST_CASE("an error moves out") {
  result<int> r = half(7);
  const error e = std::move(r).error();
  CHECK(e.what == "x is odd");
}
