// SPDX-License-Identifier: Apache-2.0
#include <dyncp/thd/pack_layout.hpp>

#include <dyncp/thd/convert.hpp>
#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/owner.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/slot.hpp>
#include <dyncp/thd/valid_counts.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp;

namespace {

using ints = std::vector<std::int32_t>;
using longs = std::vector<std::int64_t>;

errc adopt_error(cu_seqlens cu, std::int32_t tokens, layout_kind layout, std::int32_t cp) {
  const auto pack = pack_layout::adopt(std::move(cu), tokens, layout, cp);
  REQUIRE(!pack);
  return pack.error().code;
}

}  // namespace

TEST_CASE("an empty pack") {
  const pack_layout none;
  CHECK(none.sequences() == 0);
  CHECK(none.tokens() == 0);
  const auto made = pack_layout::make(longs{}, layout_kind::zigzag, 4, {.zigzag = true}).value();
  CHECK(made.view().local_rows() == 0);
  CHECK(packed_rows(made.view(), 3).empty());
  CHECK(packed_runs(made.view()).empty());
}

TEST_CASE("a rule that the layout cannot be cut by is refused, with the rule that works") {
  const auto pack = pack_layout::make(longs{8}, layout_kind::zigzag, 4, {});
  REQUIRE(!pack);
  CHECK(pack.error().code == errc::invalid_argument);
  CHECK(pack.error().value == 1);
  CHECK(pack.error().limit == 8);
  CHECK(pack.error().message() ==
        "sequences padded to a multiple of 1 cannot be cut zigzag over 4 ranks; set "
        "padding_rule::zigzag, or padding_rule::multiple to 8");
  CHECK(pack_layout::make(longs{8}, layout_kind::zigzag, 4, {.multiple = 8}));
  CHECK(!pack_layout::make(longs{8}, layout_kind::contiguous, 4, {}));
  CHECK(pack_layout::make(longs{8}, layout_kind::contiguous, 4, {.multiple = 4}));
  CHECK(pack_layout::make(longs{8}, layout_kind::row_split, 4, {}));
  CHECK(pack_layout::make(longs{7}, layout_kind::zigzag, 1, {}));
}

TEST_CASE("a rule with a multiple below 1 is refused by the name of the multiple") {
  for (const std::int32_t below : {0, -1, std::numeric_limits<std::int32_t>::min()}) {
    const std::pair<const char*, padding_rule> rules[] = {
        {"sequence_parallel", {.sequence_parallel = below}},
        {"padding_rule::multiple", {.multiple = below}},
        {"shard_multiple", {.shard_multiple = below}}};
    for (const auto& [name, rule] : rules) {
      for (const std::int32_t cp : {1, 4}) {
        const auto pack = pack_layout::make(longs{8, 3}, layout_kind::row_split, cp, rule);
        REQUIRE(!pack);
        CHECK(pack.error().code == errc::invalid_argument);
        CHECK(pack.error().value == below);
        CHECK(pack.error().limit == 1);
        CHECK(pack.error().what.find(name) != std::string::npos);
      }
    }
  }
}

TEST_CASE("a row split without a rule: shares are made equal by rows of no sequence") {
  const auto pack = pack_layout::make(longs{4, 3}, layout_kind::row_split, 4, {}).value();
  CHECK(pack.tokens() == 8);
  CHECK(token_at(pack.view(), 3, 1) == token_ref{2, 0, false});
  CHECK(packed_rows(pack.view(), 2) == ints{4, 5});
}

TEST_CASE("groups of no rank, and packs that leave int32, are refused") {
  CHECK(pack_layout::make(longs{8}, layout_kind::zigzag, 0, {}).error().code ==
        errc::invalid_argument);
  CHECK(adopt_error({{0}, {0}}, 0, layout_kind::zigzag, -1) == errc::invalid_argument);
  const std::int64_t largest = std::numeric_limits<std::int32_t>::max();
  CHECK(pack_layout::make(longs{largest}, layout_kind::zigzag, 1, {}));
  CHECK(pack_layout::make(longs{largest}, layout_kind::zigzag, 2, {.zigzag = true}).error().code ==
        errc::overflow);
  CHECK(pack_layout::make(longs{largest}, layout_kind::zigzag, 1, {.shard_multiple = 2})
            .error()
            .code == errc::overflow);
  CHECK(pack_layout::make(longs{-1}, layout_kind::zigzag, 1, {}).error().code ==
        errc::invalid_length);
}

TEST_CASE("adopted prefix sums are checked, each promise by itself") {
  const errc bad = errc::invalid_argument;
  CHECK(adopt_error({{}, {}}, 0, layout_kind::zigzag, 1) == bad);
  CHECK(adopt_error({{0, 4}, {0}}, 4, layout_kind::zigzag, 1) == bad);
  CHECK(adopt_error({{1, 4}, {0, 4}}, 4, layout_kind::zigzag, 1) == bad);
  CHECK(adopt_error({{0, 4}, {1, 5}}, 5, layout_kind::zigzag, 1) == bad);
  CHECK(adopt_error({{0, 4, 2}, {0, 4, 8}}, 8, layout_kind::zigzag, 1) == bad);
  CHECK(adopt_error({{0, 4, 5}, {0, 8, 4}}, 8, layout_kind::zigzag, 1) == bad);
  CHECK(adopt_error({{0, 5}, {0, 4}}, 4, layout_kind::zigzag, 1) == bad);
  CHECK(adopt_error({{0, 4}, {0, 8}}, 4, layout_kind::zigzag, 1) == bad);  // rows missing
  CHECK(adopt_error({{0, 4}, {0, 8}}, 9, layout_kind::zigzag, 2) == bad);  // uneven tail
  CHECK(adopt_error({{0, 4}, {0, 6}}, 6, layout_kind::zigzag, 2) == bad);  // no 4 chunks
  CHECK(adopt_error({{0, 4}, {0, 5}}, 6, layout_kind::contiguous, 2) == bad);
  CHECK(adopt_error({{0, 4}, {0, 5}}, 5, layout_kind::row_split, 2) == bad);
  CHECK(pack_layout::adopt({{0, 4}, {0, 6}}, 6, layout_kind::contiguous, 2));
  CHECK(pack_layout::adopt({{0, 4}, {0, 5}}, 6, layout_kind::row_split, 2));
}

TEST_CASE("a layout is a value") {
  auto a = pack_layout::make(longs{5, 3}, layout_kind::zigzag, 2, {.zigzag = true}).value();
  const pack_layout b = a;
  CHECK(b.view().cu_real != a.view().cu_real);
  a = pack_layout();
  CHECK(b.cu().padded == ints{0, 8, 12});
  CHECK(b.with_layout(layout_kind::contiguous)->layout() == layout_kind::contiguous);
}

TEST_CASE("the maps are constant expressions") {
  static constexpr std::int32_t real[] = {0, 5, 5, 12};
  static constexpr std::int32_t padded[] = {0, 8, 8, 16};
  constexpr pack_view pack{real, padded, 3, 16, 2, layout_kind::zigzag};
  constexpr std::int32_t packed = packed_row(pack, 0, 6);
  constexpr rank_row local = local_row(pack, 14);
  constexpr token_ref padding = token_at(pack, 1, 3);
  constexpr slot rows = slot_of(pack, 2, 1);
  constexpr rank_row last = owner_of_last_token(pack, 2);
  constexpr rank_row last_response = owner_of_last_response_token(pack, 2);
  constexpr std::int32_t valid = valid_tokens(pack, 0);
  constexpr ring_step step = ring_step_of(layout_kind::zigzag, attention_mask::causal, 0, 1);
  constexpr attention_segment segment = segment_of(pack, pack, step, 2, 0, 1);
  CHECK(packed == 14);
  CHECK(local == rank_row{0, 6});
  CHECK(padding == token_ref{0, 5, false});
  CHECK(rows == slot{{4, 2, 2, 2}, {6, 4, 2, 2}});
  CHECK(last == rank_row{0, 6});
  CHECK(last_response == rank_row{1, 7});
  CHECK(valid == 5);
  CHECK(segment == attention_segment{6, 1, 4, 4});
  CHECK(length_multiple(layout_kind::zigzag, 1) == 1);
  CHECK(to_string(layout_kind::row_split) == "row_split");
}
