// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace dyncp_test {

/// The result is an error with this code and these numbers, whose text names the value (and the
/// limit, where it is one for people) and which says what to change.
template <class T>
void expect_error(const dyncp::result<T>& r, dyncp::errc code, std::int64_t value,
                  std::int64_t limit, const std::string& named) {
  REQUIRE_FALSE(r.has_value());
  const dyncp::error& e = r.error();
  CAPTURE(e.message());
  CHECK(e.code == code);
  CHECK(e.value == value);
  CHECK(e.limit == limit);
  CHECK(e.what.find(named) != std::string::npos);
  CHECK(e.what.find(std::to_string(value)) != std::string::npos);
  CHECK_FALSE(e.hint.empty());
}

}  // namespace dyncp_test
