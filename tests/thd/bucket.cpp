// SPDX-License-Identifier: Apache-2.0
#include <dyncp/thd/bucket.hpp>

#include "thd/laws.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace dyncp;

namespace {
using ints = std::vector<std::int32_t>;
using longs = std::vector<std::int64_t>;
const cu_seqlens five_three{{0, 5, 8}, {0, 8, 12}};
}  // namespace

TEST_CASE("Megatron-LM#3551: K sequences take K + 1 entries, the rest repeat the last") {
  const auto cu =
      to_bucket(five_three, {4, 12}, tail_policy::dummy_sequence, layout_kind::zigzag, 2).value();
  CHECK(cu.real == ints{0, 5, 8, 8, 8});
  CHECK(cu.padded == ints{0, 8, 12, 12, 12});
  // Exactly full: nothing repeats, and no dummy is made for a tail of no rows.
  const auto full =
      to_bucket(five_three, {2, 12}, tail_policy::dummy_sequence, layout_kind::zigzag, 2).value();
  CHECK(full == five_three);
}

TEST_CASE("Megatron-LM#5541: the dummy takes a place, has no token, and ends with the bucket") {
  const auto cu =
      to_bucket(five_three, {4, 20}, tail_policy::dummy_sequence, layout_kind::zigzag, 2).value();
  CHECK(cu.real == ints{0, 5, 8, 8, 8});
  CHECK(cu.padded == ints{0, 8, 12, 20, 20});
  const auto pack = pack_layout::adopt(cu, 20, layout_kind::zigzag, 2).value();
  CHECK(pack.view().real_tokens() == 8);
  CHECK(valid_tokens(pack.view(), 0) + valid_tokens(pack.view(), 1) == 8);
  const auto no_place =
      to_bucket(five_three, {2, 20}, tail_policy::dummy_sequence, layout_kind::zigzag, 2);
  REQUIRE(!no_place);
  CHECK(no_place.error().code == errc::invalid_argument);
  CHECK(no_place.error().value == 3);
  CHECK(no_place.error().limit == 2);
}

TEST_CASE("extend_last moves the padded end of the last sequence alone") {
  const auto cu =
      to_bucket(five_three, {2, 20}, tail_policy::extend_last, layout_kind::zigzag, 2).value();
  CHECK(cu.real == ints{0, 5, 8});
  CHECK(cu.padded == ints{0, 8, 20});
  const cu_seqlens empty{{0}, {0}};
  CHECK(!to_bucket(empty, {2, 8}, tail_policy::extend_last, layout_kind::zigzag, 2));
  CHECK(to_bucket(empty, {2, 0}, tail_policy::extend_last, layout_kind::zigzag, 2)->padded ==
        ints{0, 0, 0});
}

TEST_CASE("rows leaves the tail to no sequence") {
  const auto cu = to_bucket(five_three, {3, 18}, tail_policy::rows, layout_kind::zigzag, 2).value();
  CHECK(cu.padded == ints{0, 8, 12, 12});
  const auto pack = pack_layout::adopt(cu, 18, layout_kind::zigzag, 2).value();
  CHECK(packed_rows(pack.view(), 0) == ints{0, 1, 6, 7, 8, 11, 12, 13, 14});
  CHECK(packed_rows(pack.view(), 1) == ints{2, 3, 4, 5, 9, 10, 15, 16, 17});
}

TEST_CASE("buckets that do not fit are refused with the numbers") {
  const auto small = to_bucket(five_three, {1, 12}, tail_policy::rows, layout_kind::zigzag, 2);
  REQUIRE(!small);
  CHECK(small.error().value == 2);
  const auto low = to_bucket(five_three, {4, 8}, tail_policy::rows, layout_kind::zigzag, 2);
  REQUIRE(!low);
  CHECK(low.error().value == 12);
  CHECK(low.error().limit == 8);
  // A dummy of 2 rows has no 4 chunks; as mere rows it is fine.
  CHECK(!to_bucket(five_three, {4, 14}, tail_policy::dummy_sequence, layout_kind::zigzag, 2));
  CHECK(!to_bucket(five_three, {4, 14}, tail_policy::extend_last, layout_kind::zigzag, 2));
  CHECK(to_bucket(five_three, {4, 14}, tail_policy::rows, layout_kind::zigzag, 2));
  CHECK(!to_bucket(five_three, {4, 13}, tail_policy::rows, layout_kind::zigzag, 2));
  CHECK(!to_bucket(five_three, {4, 13}, tail_policy::rows, layout_kind::row_split, 2));
  CHECK(to_bucket(five_three, {4, 13}, tail_policy::dummy_sequence, layout_kind::zigzag, 1));
}

TEST_CASE("a bucketed pack holds the tokens where the pack itself does") {
  for (const std::int32_t cp : {1, 2, 3, 4, 8}) {
    for (std::int64_t a = 0; a <= 20; a += 3) {
      for (std::int64_t b = 0; b <= 20; b += 4) {
        const auto cu = make_cu_seqlens(longs{a, b}, length_multiple(layout_kind::zigzag, cp));
        const std::int32_t tokens = cu->padded.back() + 2 * cp * 3;
        for (const tail_policy tail :
             {tail_policy::rows, tail_policy::dummy_sequence, tail_policy::extend_last}) {
          const auto fitted = to_bucket(*cu, {5, tokens}, tail, layout_kind::zigzag, cp).value();
          const auto pack = pack_layout::adopt(fitted, tokens, layout_kind::zigzag, cp).value();
          CHECK(pack.sequences() == 5);
          std::int32_t valid = 0;
          ints owned(static_cast<std::size_t>(tokens), 0);
          for (std::int32_t rank = 0; rank < cp; ++rank) {
            valid += valid_tokens(pack.view(), rank);
            for (std::int32_t row = 0; row < pack.view().local_rows(); ++row) {
              const std::int32_t packed = packed_row(pack.view(), rank, row);
              ++owned[static_cast<std::size_t>(packed)];
              CHECK(local_row(pack.view(), packed) == rank_row{rank, row});
              if (packed >= cu->padded.back()) CHECK(!token_at(pack.view(), rank, row).valid);
            }
          }
          CHECK(valid == a + b);
          for (const std::int32_t times : owned) CHECK(times == 1);
        }
      }
    }
  }
}
