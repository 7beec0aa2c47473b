// SPDX-License-Identifier: Apache-2.0
// The one translation unit with doctest's implementation; every test program links it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "support/skip.hpp"

#include <cstdio>
#include <string>

namespace dyncp_test {
namespace {
std::string& skip_reason() {
  static std::string reason;
  return reason;
}
}  // namespace

void skip(const std::string& reason) { skip_reason() = reason; }
}  // namespace dyncp_test

int main(int argc, char** argv) {
  constexpr int skipped = 77;  // what Meson counts as SKIP
  doctest::Context context(argc, argv);
  const int status = context.run();
  const std::string& reason = dyncp_test::skip_reason();
  if (status != 0 || reason.empty() || context.shouldExit()) return status;
  std::printf("skipped: %s\n", reason.c_str());
  return skipped;
}
