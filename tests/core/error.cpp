// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/error.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>

using namespace dyncp;

TEST_CASE("every code has a spelling of its own") {
  std::set<std::string> seen;
  const auto last = static_cast<std::int32_t>(errc::backend_failure);
  for (std::int32_t i = 0; i <= last; ++i) {
    const std::string name(to_string(static_cast<errc>(i)));
    CAPTURE(name);
    CHECK(name != "unknown");
    CHECK(seen.insert(name).second);
  }
  CHECK(to_string(static_cast<errc>(last + 1)) == "unknown");
}

TEST_CASE("spellings that files and messages rely on") {
  CHECK(to_string(errc::invalid_argument) == "invalid_argument");
  CHECK(to_string(errc::sequence_too_long) == "sequence_too_long");
  CHECK(to_string(errc::not_found) == "not_found");
}

TEST_CASE("a message is the sentence, and the hint when there is one") {
  error e = make_error(errc::invalid_length, "sequence 17 has length 0");
  CHECK(e.code == errc::invalid_length);
  CHECK(e.value == 0);
  CHECK(e.limit == 0);
  CHECK(e.message() == "sequence 17 has length 0");
  e.hint = "drop empty sequences";
  CHECK(e.message() == "sequence 17 has length 0; drop empty sequences");
}
