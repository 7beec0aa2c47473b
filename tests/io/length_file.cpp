// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/length_file.hpp>

#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using lengths = std::vector<std::int64_t>;

dyncp::error error_of(std::string_view text) {
  const auto list = dyncp::parse_lengths(text, "f.len");
  REQUIRE_FALSE(list);
  return list.error();
}

dyncp::length_list list_of(const lengths& values) {
  dyncp::length_list list;
  list.source = "f.len";
  list.lengths = values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    list.lines.push_back(static_cast<std::int64_t>(i) + 1);
  }
  return list;
}

lengths lengths_of(const dyncp::selected_batch& batch) {
  lengths out;
  for (const dyncp::sequence& s : batch.sequences) out.push_back(s.length);
  return out;
}

}  // namespace

TEST_CASE("one length a line; blanks, CRLF, empty lines and comments are allowed") {
  const auto list = dyncp::parse_lengths("\xef\xbb\xbf 12\r\n\r\n# trace\n0\n\t7 \n1099511627776",
                                         "f.len");
  REQUIRE(list);
  CHECK(list->lengths == lengths{12, 0, 7, dyncp::max_sequence_length});
  CHECK(list->lines == lengths{1, 4, 5, 6});
}

TEST_CASE("errors name file, line and text") {
  CHECK(error_of("").code == dyncp::errc::empty_input);
  CHECK(error_of("# only\n\n").what == "f.len holds no length");

  for (const char* line : {"abc", "12 13", "1.5", "+3", "0x10", "1e3", "12,", "-"}) {
    CAPTURE(line);
    const dyncp::error e = error_of(std::string("5\n") + line + "\n6\n");
    CHECK(e.code == dyncp::errc::parse_error);
    CHECK(e.what == "f.len line 2: '" + std::string(line) + "' is not a length");
    CHECK(e.value == 2);
  }
  CHECK(error_of("5\n-3\n").what == "f.len line 2: the sequence has length -3");
  CHECK(error_of("-3\n").code == dyncp::errc::invalid_length);
  CHECK(error_of("9223372036854775808").code == dyncp::errc::overflow);  // 2^63
  CHECK(error_of("9223372036854775807").code == dyncp::errc::invalid_length);
  CHECK(error_of("1099511627777").limit == dyncp::max_sequence_length);
}

TEST_CASE("filter first, then skip, then the batch") {
  const dyncp::length_list list = list_of({5, 100, 6, 7, 200, 8, 9});
  dyncp::length_selection wanted;
  wanted.max_length = 99;
  wanted.skip = 1;
  wanted.count = 3;
  const auto batch = dyncp::select_batch(list, wanted);
  REQUIRE(batch);
  CHECK(lengths_of(*batch) == lengths{6, 7, 8});
  CHECK(batch->source_lines == lengths{3, 4, 6});
  CHECK(batch->read == 7);
  CHECK(batch->filtered == 2);
  CHECK(batch->skipped == 1);
  CHECK(batch->left == 1);
  CHECK(batch->sequences[2].id == 2);
}

TEST_CASE("empty sequences are an error, or dropped and counted, or filtered") {
  const dyncp::length_list list = list_of({5, 0, 6, 0, 7});
  const auto refused = dyncp::select_batch(list, {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == dyncp::errc::invalid_length);
  CHECK(refused.error().what == "f.len line 2: the sequence has length 0");

  dyncp::length_selection dropping;
  dropping.drop_empty = true;
  dropping.count = 3;
  const auto dropped = dyncp::select_batch(list, dropping);
  REQUIRE(dropped);
  CHECK(lengths_of(*dropped) == lengths{5, 6});  // the batch gets smaller, not another one
  CHECK(dropped->dropped_empty == 1);
  CHECK(dropped->left == 2);

  dyncp::length_selection filtering;
  filtering.min_length = 1;
  const auto filtered = dyncp::select_batch(list, filtering);
  REQUIRE(filtered);
  CHECK(filtered->filtered == 2);
}

TEST_CASE("sequences that fit nowhere are dropped on request and counted") {
  dyncp::length_selection dropping;
  dropping.drop_above = 6;
  const auto batch = dyncp::select_batch(list_of({5, 100, 6}), dropping);
  REQUIRE(batch);
  CHECK(lengths_of(*batch) == lengths{5, 6});
  CHECK(batch->dropped_too_long == 1);
}

TEST_CASE("selections that make no sense or leave nothing are errors") {
  const dyncp::length_list list = list_of({5, 6});
  dyncp::length_selection wanted;
  wanted.min_length = 10;
  CHECK(dyncp::select_batch(list, wanted).error().code == dyncp::errc::empty_input);
  wanted.max_length = 9;
  CHECK(dyncp::select_batch(list, wanted).error().code == dyncp::errc::invalid_argument);
  wanted = {};
  wanted.min_length = -1;
  CHECK(dyncp::select_batch(list, wanted).error().code == dyncp::errc::invalid_argument);
  wanted = {};
  wanted.skip = -1;
  CHECK(dyncp::select_batch(list, wanted).error().what == "skip is -1");
  wanted = {};
  wanted.count = 0;
  CHECK(dyncp::select_batch(list, wanted).error().what == "batch is 0");
  wanted.count = -5;
  CHECK(dyncp::select_batch(list, wanted).error().value == -5);
  wanted = {};
  wanted.skip = 2;
  CHECK(dyncp::select_batch(list, wanted).error().code == dyncp::errc::empty_input);
}

TEST_CASE("a file is read as its text is") {
  CHECK(dyncp::read_length_file("no/such/file").error().code == dyncp::errc::io_error);
  const auto list = dyncp::read_length_file(DYNCP_DATA_DIR "/github.len");
  REQUIRE(list);
  CHECK(list->lengths.size() == 16603);
}

TEST_CASE("a histogram stands for its sequences") {
  const auto list = dyncp::parse_histogram("# length count\n5 3\r\n7,0\n 9 , 1 \n0\t1", "h");
  REQUIRE(list);
  CHECK(list->lengths == lengths{5, 5, 5, 9, 0});
  CHECK(list->lines == lengths{2, 2, 2, 4, 5});
  const auto code = [](const char* text) { return dyncp::parse_histogram(text, "h").error().code; };
  CHECK(code("") == dyncp::errc::empty_input);
  CHECK(code("5 0\n") == dyncp::errc::empty_input);
  CHECK(code("5\n") == dyncp::errc::parse_error);
  CHECK(code("5 x\n") == dyncp::errc::parse_error);
  CHECK(code("x 5\n") == dyncp::errc::parse_error);
  CHECK(code("5 1 2\n") == dyncp::errc::parse_error);
  CHECK(code("5 -1\n") == dyncp::errc::invalid_argument);
  CHECK(code("-5 1\n") == dyncp::errc::invalid_length);
  CHECK(code("5 16777217\n") == dyncp::errc::overflow);
  CHECK(code("5 9999999999999999999\n") == dyncp::errc::overflow);
  CHECK(dyncp::parse_histogram("1 1\n5 x", "h").error().what == "h line 2: 'x' is not a count");
}

TEST_CASE("any bytes are lengths or an error") {
  const std::uint64_t seed = dyncp_test::seed_or(20260803);
  INFO("seed " << seed);
  dyncp_test::random rng(seed);
  const std::string likely = "0123456789 \n\r,#-x";
  for (std::int64_t round = dyncp_test::count_or(5000); round > 0; --round) {
    std::string bytes;
    for (std::int64_t n = rng.between(0, 30); n > 0; --n) {
      const auto i = static_cast<std::size_t>(rng.between(0, 16));
      bytes += rng.one_in(12) ? static_cast<char>(rng.between(0, 255)) : likely[i];
    }
    for (const auto& list : {dyncp::parse_lengths(bytes, "f"), dyncp::parse_histogram(bytes, "f")}) {
      if (!list) {
        CHECK_FALSE(list.error().what.empty());
        continue;
      }
      REQUIRE(list->lengths.size() == list->lines.size());
      for (const std::int64_t length : list->lengths) {
        CHECK((length >= 0 && length <= dyncp::max_sequence_length));
      }
    }
  }
}

TEST_CASE("a shuffle keeps lengths and lines together and depends on the seed alone") {
  dyncp::length_list a = list_of({10, 20, 30, 40, 50, 60, 70, 80});
  dyncp::length_list b = a;
  dyncp::shuffle(a, 3);
  dyncp::shuffle(b, 3);
  CHECK(a.lengths == b.lengths);
  CHECK(a.lengths == lengths{30, 60, 20, 70, 80, 40, 50, 10});
  for (std::size_t i = 0; i < a.lengths.size(); ++i) CHECK(a.lengths[i] == 10 * a.lines[i]);
  dyncp::shuffle(b, 4);
  CHECK(a.lengths != b.lengths);
}
