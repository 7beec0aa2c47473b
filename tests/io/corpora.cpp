// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/corpora.hpp>
#include <dyncp/io/length_distribution.hpp>
#include <dyncp/io/portable_math.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace {

std::vector<std::int64_t> draw(const dyncp::corpus& what, std::uint64_t seed, int count) {
  dyncp::length_generator generator(what, seed);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(generator.next());
  return lengths;
}

// FNV-1a over the lengths.
std::uint64_t hash(const std::vector<std::int64_t>& lengths) {
  std::uint64_t h = 1469598103934665603ULL;
  for (const std::int64_t length : lengths) {
    h ^= static_cast<std::uint64_t>(length);
    h *= 1099511628211ULL;
  }
  return h;
}

}  // namespace

TEST_CASE("logarithm and exponential agree with the library's to the last bits") {
  dyncp::splitmix random(1);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::ldexp(random.unit() + 1e-9, random.below(80) - 40);
    const double exact = std::log(x);
    CHECK(std::abs(dyncp::portable::log(x) - exact) <= 1e-15 * std::max(1.0, std::abs(exact)));
    const double y = 100.0 * random.unit() - 50.0;
    CHECK(std::abs(dyncp::portable::exp(y) / std::exp(y) - 1.0) <= 1e-15);
  }
  CHECK(dyncp::portable::log(1.0) == 0.0);
  CHECK(dyncp::portable::exp(0.0) == 1.0);
}

TEST_CASE("normal numbers have the moments of a normal") {
  dyncp::splitmix random(2);
  constexpr int count = 400000;
  double moments[5] = {0, 0, 0, 0, 0};
  for (int i = 0; i < count; ++i) {
    const double z = dyncp::portable::normal(random);
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(z, k) / count;
  }
  CHECK(std::abs(moments[1]) < 0.01);
  CHECK(std::abs(moments[2] - 1) < 0.01);
  CHECK(std::abs(moments[3]) < 0.03);
  CHECK(std::abs(moments[4] - 3) < 0.08);
}

TEST_CASE("the lengths of a seed are the same bits on every platform") {
  // Of the first 10,000 lengths of seed 1.
  const std::map<std::string, std::uint64_t> expected{
      {"github", 0xd489a3a366fd44e3},     {"cc-flexsp", 0x3a2b575fa401b263},
      {"cc-short", 0x9e6d62a3551a4eb4},   {"wikipedia", 0x3af866937297de71},
      {"wlb", 0x567cd7e700ec4867},        {"prolong", 0x318da4248d6f2824},
      {"magi", 0xc6abf2733153ee8f},       {"byted", 0x7c3e83029e118023},
      {"llama3-sft", 0xceabb0e9915936a0}, {"longalign-mix", 0x05e5f6051928b637},
      {"mock-512", 0x566a4ceae32ccd21},   {"mock-1k", 0xe60ce70e5d2425cd},
      {"mock-16k", 0xa7ef4bed1c28ff5f},   {"video", 0x62fbd35bd7fbee1f}};
  for (const dyncp::corpus& c : dyncp::corpora()) {
    CAPTURE(c.name);
    REQUIRE(expected.count(c.name) == 1);
    CHECK(hash(draw(c, 1, 10000)) == expected.at(c.name));
    CHECK(hash(draw(c, 2, 10000)) != expected.at(c.name));
  }
  CHECK(dyncp::corpora().size() == expected.size());
}

TEST_CASE("corpora keep to their ranges and come near what was published") {
  for (const dyncp::corpus& c : dyncp::corpora()) {
    CAPTURE(c.name);
    const std::vector<std::int64_t> lengths = draw(c, 7, 300000);
    for (const std::int64_t length : lengths) {
      if (length < c.shortest || length > c.longest) FAIL_CHECK("outside: " << length);
    }
    const dyncp::length_distribution d(lengths);
    const dyncp::distance_to_points off = dyncp::distance(d, c);
    CHECK(off.sequences < 0.005);
    CHECK(off.tokens < 0.02);  // a few long sequences hold much of the tokens: sampling noise
    if (c.published_mean > 0) CHECK(std::abs(d.mean() / c.published_mean - 1) < 0.03);
    CHECK((c.assumed || off.compared > 0 || c.name.find("mock") == 0));
    CHECK_FALSE(c.source.empty());
    if (c.assumed) CHECK(c.source.find("assumed") != std::string::npos);
  }
}

TEST_CASE("the sizes of video clips have their shares") {
  const dyncp::length_distribution d(draw(*dyncp::find_corpus("video"), 3, 200000));
  CHECK(std::abs(d.sequences_up_to(300) - 0.30) < 0.01);
  CHECK(std::abs(d.sequences_up_to(4800) - 0.75) < 0.01);
  CHECK(std::abs(1 - d.sequences_up_to(38400) - 0.02) < 0.002);
}

TEST_CASE("an unknown corpus is an error that names the known ones") {
  const auto none = dyncp::find_corpus("wikipdia");
  REQUIRE_FALSE(none);
  CHECK(none.error().code == dyncp::errc::unknown_name);
  CHECK(none.error().hint.find("did you mean wikipedia?") == 0);
  CHECK(dyncp::find_corpus("byted"));
}

TEST_CASE("shares, quantiles and sums of a distribution") {
  const dyncp::length_distribution d({4, 1, 0, 5, 10});
  CHECK(d.count() == 5);
  CHECK(d.tokens() == 20);
  CHECK(d.squares() == 142);
  CHECK(d.longest() == 10);
  CHECK(d.mean() == 4.0);
  CHECK(d.effective_length() == 7.1);
  CHECK(d.sequences_up_to(-1) == 0.0);
  CHECK(d.sequences_up_to(0) == 0.2);
  CHECK(d.sequences_up_to(4) == 0.6);
  CHECK(d.tokens_up_to(4) == 0.25);
  CHECK(d.tokens_up_to(10) == 1.0);
  CHECK(d.quantile(0.2) == 0);
  CHECK(d.quantile(0.21) == 1);
  CHECK(d.quantile(0.5) == 4);
  CHECK(d.quantile(1.0) == 10);
  const dyncp::length_distribution none({});
  CHECK(none.count() == 0);
  CHECK(none.mean() == 0.0);
  CHECK(none.quantile(0.5) == 0);
  CHECK(none.tokens_up_to(5) == 0.0);
}
