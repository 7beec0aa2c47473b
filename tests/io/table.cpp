// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/table.hpp>

#include <doctest/doctest.h>

TEST_CASE("columns are aligned, the first to the left, without blanks at line ends") {
  dyncp::text_table t({"cp", "packs", "share"});
  t.add({"1", "370", "20.5 %"});
  t.add({"128", "4"});
  t.add({"x", "1", "2", "cut off"});
  CHECK(t.render("  ") ==
        "  cp   packs   share\n"
        "  1      370  20.5 %\n"
        "  128      4\n"
        "  x        1       2\n");
  CHECK(t.rows().size() == 3);
}

TEST_CASE("widths count characters, not bytes") {
  dyncp::text_table t({"name", "n"});
  t.add({"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", "1"});
  t.add({"abcde", "22"});
  CHECK(t.render() == "name    n\n\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9   1\nabcde  22\n");
}
