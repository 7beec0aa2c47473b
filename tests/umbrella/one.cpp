// SPDX-License-Identifier: Apache-2.0
// With two.cpp: every header in two translation units of one program, so a definition that is not
// inline fails to link. The scripts of tests/headers and tests/compile_fail compile with the flags
// of this file.
#include <dyncp/dyncp.hpp>

#include <doctest/doctest.h>

namespace dyncp_test {
dyncp::result<int> from_two();
}

TEST_CASE("two translation units share the library's types") {
  CHECK(dyncp_test::from_two().value() == 2);
}
