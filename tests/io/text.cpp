// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/text.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace text = dyncp::text;

TEST_CASE("integers are decimal digits with an optional minus, and nothing else") {
  struct example {
    const char* word;
    std::int64_t value;
  };
  for (const example e : {example{"0", 0}, {"-7", -7}, {"00012", 12},
                          {"9223372036854775807", INT64_MAX},
                          {"-9223372036854775808", INT64_MIN}}) {
    CAPTURE(e.word);
    const text::parsed_integer parsed = text::parse_integer(e.word);
    CHECK(parsed.status == text::parse_status::ok);
    CHECK(parsed.value == e.value);
  }
  for (const char* word : {"", "-", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "1_000", "1,000", "a"}) {
    CAPTURE(word);
    CHECK(text::parse_integer(word).status == text::parse_status::malformed);
  }
  for (const char* word : {"9223372036854775808", "-9223372036854775809", "99999999999999999999"}) {
    CAPTURE(word);
    CHECK(text::parse_integer(word).status == text::parse_status::overflow);
  }
}

TEST_CASE("numbers are finite decimals") {
  CHECK(text::parse_number("600e12").value == 600e12);
  CHECK(text::parse_number("-0.5").value == -0.5);
  for (const char* word : {"", "inf", "nan", "1e999", "0x1p3", "1.0s", " 1"}) {
    CAPTURE(word);
    CHECK_FALSE(text::parse_number(word).ok);
  }
}

TEST_CASE("the shortest text reads back as the same double") {
  for (const double value : {0.1, 1.0 / 3, 1e300, 5e-324, 123456789.0, -2.5e-7}) {
    CHECK(text::parse_number(text::shortest(value)).value == value);
  }
  CHECK(text::shortest(std::numeric_limits<double>::infinity()) == "null");
  CHECK(text::shortest(16384.0) == "16384");
}

TEST_CASE("numbers for people") {
  CHECK(text::grouped(0) == "0");
  CHECK(text::grouped(999) == "999");
  CHECK(text::grouped(1000) == "1,000");
  CHECK(text::grouped(-1234567) == "-1,234,567");
  CHECK(text::to_decimal(dyncp::int128{1} << 100) == "1267650600228229401496703205376");
  CHECK(text::human_seconds(0) == "0 s");
  CHECK(text::human_seconds(12.345) == "12.35 s");
  CHECK(text::human_seconds(0.00321) == "3.210 ms");
  CHECK(text::human_seconds(4.5e-6) == "4.500 us");
  CHECK(text::percent(0.2137) == "21.4 %");
  CHECK(text::fixed(1e300, 2) == "1e+300");
}

TEST_CASE("quoted text is printable and short") {
  CHECK(text::quoted("a\tb") == "'a\\x09b'");
  CHECK(text::quoted(std::string(100, 'x')).size() == 45);
}

TEST_CASE("the nearest name") {
  CHECK(text::edit_distance("kitten", "sitting") == 3);
  CHECK(text::nearest_name("nvlink_bytes", {"nvlink_bytes_per_s", "hidden"}) ==
        "nvlink_bytes_per_s");
  CHECK(text::nearest_name("--max-tokens", {"--max-length", "--max-tokens-per-rank"}) ==
        "--max-tokens-per-rank");
  CHECK(text::nearest_name("zzz", {"layers", "hidden"}).empty());
}
