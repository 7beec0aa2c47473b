// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/files.hpp>

#include <doctest/doctest.h>

#include <string>

TEST_CASE("what is written is read back, byte for byte") {
  const std::string path = "io_files_test.tmp";
  const std::string bytes("a\0b\r\n\xff", 6);
  REQUIRE(dyncp::write_file(path, bytes));
  CHECK(*dyncp::read_file(path) == bytes);
  REQUIRE(dyncp::write_file(path, ""));
  CHECK(dyncp::read_file(path)->empty());
  std::remove(path.c_str());
}

TEST_CASE("files that cannot be read or written are errors with the system's reason") {
  const auto missing = dyncp::read_file("no/such/file");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == dyncp::errc::io_error);
  CHECK(missing.error().what == "cannot open 'no/such/file': No such file or directory");
  const auto directory = dyncp::read_file(".");
  REQUIRE_FALSE(directory);
  CHECK(directory.error().code == dyncp::errc::io_error);
  CHECK_FALSE(dyncp::write_file("no/such/file", "x"));
}

#if defined(__linux__)
TEST_CASE("a full disk and an endless file are errors") {
  CHECK_FALSE(dyncp::write_file("/dev/full", std::string(1 << 20, 'x')));
  const auto endless = dyncp::read_file("/dev/zero");
  REQUIRE_FALSE(endless);
  CHECK(endless.error().limit == dyncp::max_file_bytes);
}
#endif
