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

constexpr std::int64_t longest = 40;

/// Calls f(lengths) for all packs of one and two sequences up to `longest` tokens.
template <class F>
void for_each_pack(F f) {
  for (std::int64_t a = 0; a <= longest; ++a) {
    f(std::vector<std::int64_t>{a});
    for (std::int64_t b = 0; b <= longest; ++b) f(std::vector<std::int64_t>{a, b});
  }
}

pack_layout zigzag_pack(const std::vector<std::int64_t>& lengths, std::int32_t cp,
                        std::int64_t shard_multiple = 1) {
  const padding_rule rule{.zigzag = true, .shard_multiple = shard_multiple};
  return pack_layout::make(lengths, layout_kind::zigzag, cp, rule).value();
}

}  // namespace

TEST_CASE("one and two sequences, zigzag: rows are owned once, maps are inverse, counts true") {
  for (const std::int32_t cp : group_sizes) {
    for_each_pack([&](const std::vector<std::int64_t>& lengths) {
      const auto pack = zigzag_pack(lengths, cp);
      const auto expected = reference_shares(pack.view(), lengths, cp > 1 ? 2 * cp : 1);
      const std::string broken = index_law(pack.view(), expected);
      CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ": " << broken);
    });
  }
}

TEST_CASE("one and two sequences, contiguous and row split, with and without a tail") {
  for (const std::int32_t cp : group_sizes) {
    for_each_pack([&](const std::vector<std::int64_t>& lengths) {
      for (const std::int64_t shard_multiple : {1, 5}) {
        const padding_rule rule{.multiple = cp, .shard_multiple = shard_multiple};
        const padding_rule loose{.multiple = 1, .shard_multiple = shard_multiple};
        const auto contiguous =
            pack_layout::make(lengths, layout_kind::contiguous, cp, rule).value();
        std::string broken =
            index_law(contiguous.view(), reference_shares(contiguous.view(), lengths, cp));
        CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ", contiguous: " << broken);
        const auto rows = pack_layout::make(lengths, layout_kind::row_split, cp, loose).value();
        broken = index_law(rows.view(), reference_shares(rows.view(), lengths, 1));
        CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ", row split: " << broken);
      }
      const auto pack = zigzag_pack(lengths, cp, 7);
      const std::string broken =
          index_law(pack.view(), reference_shares(pack.view(), lengths, cp > 1 ? 2 * cp : 1));
      CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ", zigzag, tail: " << broken);
    });
  }
}

TEST_CASE("one and two sequences: labels cut over the ranks are the next tokens") {
  for (const std::int32_t cp : group_sizes) {
    for_each_pack([&](const std::vector<std::int64_t>& lengths) {
      const auto pack = zigzag_pack(lengths, cp);
      const auto expected = reference_shares(pack.view(), lengths, cp > 1 ? 2 * cp : 1);
      const std::string broken = label_law(pack.view(), expected);
      CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ": " << broken);
    });
  }
}

TEST_CASE("a sequence behind another: response rows are those whose label is in the response") {
  for (const std::int32_t cp : group_sizes) {
    for (std::int64_t length = 0; length <= longest; ++length) {
      const std::vector<std::int64_t> lengths{3, length};
      for (const layout_kind kind :
           {layout_kind::zigzag, layout_kind::contiguous, layout_kind::row_split}) {
        const auto pack = zigzag_pack(lengths, cp).with_layout(kind).value();
        const auto expected = reference_shares(pack.view(), lengths, cp > 1 ? 2 * cp : 1);
        const std::string broken = response_law(pack.view(), expected);
        CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ": " << broken);
      }
    }
  }
}

TEST_CASE("one and two sequences: conversion between any two layouts") {
  constexpr layout_kind kinds[] = {layout_kind::zigzag, layout_kind::contiguous,
                                   layout_kind::row_split};
  for (const std::int32_t cp : group_sizes) {
    for_each_pack([&](const std::vector<std::int64_t>& lengths) {
      const auto pack = zigzag_pack(lengths, cp, lengths.size() == 1 ? 1 : 3);
      for (const layout_kind a : kinds) {
        for (const layout_kind b : kinds) {
          const auto from = pack.with_layout(a).value();
          const auto to = pack.with_layout(b).value();
          const std::string broken = conversion_law(from.view(), to.view());
          CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ": " << broken);
        }
      }
    });
  }
}
