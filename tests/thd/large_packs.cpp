// SPDX-License-Identifier: Apache-2.0
#include "thd/laws.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

// Around the chunk boundaries of 1 to 16 ranks: empty, below 2 * cp, one off a multiple.
constexpr std::int64_t choices[] = {0, 1, 2, 3, 5, 7, 8, 9, 16, 17, 23, 31};

void check_pack(const std::vector<std::int64_t>& lengths, std::int32_t cp) {
  const padding_rule rule{.zigzag = true};
  const auto pack = pack_layout::make(lengths, layout_kind::zigzag, cp, rule).value();
  const auto expected = reference_shares(pack.view(), lengths, cp > 1 ? 2 * cp : 1);
  const std::string broken = index_law(pack.view(), expected);
  CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ": " << broken);
}

}  // namespace

TEST_CASE("all packs of three sequences of 0 to 31 tokens") {
  for (const std::int32_t cp : group_sizes) {
    for (const std::int64_t a : choices) {
      for (const std::int64_t b : choices) {
        for (const std::int64_t c : choices) check_pack({a, b, c}, cp);
      }
    }
  }
}

TEST_CASE("all packs of four sequences of 0 to 31 tokens") {
  for (const std::int32_t cp : group_sizes) {
    for (const std::int64_t a : choices) {
      for (const std::int64_t b : choices) {
        for (const std::int64_t c : choices) {
          for (const std::int64_t d : choices) check_pack({a, b, c, d}, cp);
        }
      }
    }
  }
}
