// SPDX-License-Identifier: Apache-2.0
#include <dyncp/core/version.hpp>

#include <doctest/doctest.h>

#include <string>

TEST_CASE("the version macros are the version of the project") {
  const std::string version = std::to_string(DYNCP_VERSION_MAJOR) + "." +
                              std::to_string(DYNCP_VERSION_MINOR) + "." +
                              std::to_string(DYNCP_VERSION_PATCH);
  CHECK(version == PROJECT_VERSION);
}

TEST_CASE("at_least compares lexicographically") {
  constexpr int major = DYNCP_VERSION_MAJOR;
  constexpr int minor = DYNCP_VERSION_MINOR;
  constexpr int patch = DYNCP_VERSION_PATCH;
  CHECK(DYNCP_VERSION_AT_LEAST(major, minor, patch));
  CHECK(!DYNCP_VERSION_AT_LEAST(major, minor, patch + 1));
  CHECK(!DYNCP_VERSION_AT_LEAST(major, minor + 1, 0));
  CHECK(!DYNCP_VERSION_AT_LEAST(major + 1, 0, 0));
  CHECK(DYNCP_VERSION_AT_LEAST(major, minor - 1, patch + 100));
  CHECK(DYNCP_VERSION_AT_LEAST(major - 1, minor + 100, patch + 100));
}
