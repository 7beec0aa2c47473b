// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/json_writer.hpp>

#include "support/random.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string>

TEST_CASE("objects and arrays, a member a line or all in a row") {
  dyncp::json_writer w;
  w.begin_object().member("a", 1).member("b", "x").member("c", true).member("d", 0.5);
  w.begin_array("rows");
  w.begin_array(dyncp::json_layout::row).value(1).value(2).end();
  w.begin_object(dyncp::json_layout::row).member("k", -1).begin_array("in").value(3).end().end();
  w.end().begin_object("empty").end().begin_array("none").end();
  CHECK(w.end().str() ==
        "{\n"
        "  \"a\": 1,\n"
        "  \"b\": \"x\",\n"
        "  \"c\": true,\n"
        "  \"d\": 0.5,\n"
        "  \"rows\": [\n"
        "    [1,2],\n"
        "    {\"k\":-1,\"in\":[3]}\n"
        "  ],\n"
        "  \"empty\": {},\n"
        "  \"none\": []\n"
        "}\n");
}

TEST_CASE("any bytes become JSON that reads back") {
  const std::uint64_t seed = dyncp_test::seed_or(20260801);
  INFO("seed " << seed);
  dyncp_test::random rng(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::int64_t n = rng.between(0, 12); n > 0; --n) {
      bytes += static_cast<char>(rng.between(0, rng.one_in(2) ? 255 : 127));
    }
    dyncp::json_writer w;
    w.begin_array().value(bytes).end();
    const auto parsed = nlohmann::json::parse(w.str(), nullptr, false);
    REQUIRE_FALSE(parsed.is_discarded());
    // Where the bytes are UTF-8 themselves nothing is lost.
    dyncp::json_writer again;
    again.begin_array().value(parsed[0].get<std::string>()).end();
    CHECK(nlohmann::json::parse(again.str()) == parsed);
  }
  dyncp::json_writer w;
  w.begin_array().value("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \"\\\n").end();
  CHECK(nlohmann::json::parse(w.str())[0] == "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \"\\\n");
}

TEST_CASE("numbers keep their value") {
  dyncp::json_writer w;
  w.begin_array(dyncp::json_layout::row).value(std::numeric_limits<std::int64_t>::min());
  w.value(dyncp::int128{1} << 70).value(0.1).value(std::numeric_limits<double>::quiet_NaN()).end();
  CHECK(w.str() == "[-9223372036854775808,1180591620717411303424,0.1,null]\n");
}
