// SPDX-License-Identifier: Apache-2.0
// Layouts that other systems got wrong, each with the smallest input that shows it. The expected
// numbers were worked out by hand or come from the reports; the names say where.
#include "thd/laws.hpp"

#include <dyncp/thd/bucket.hpp>
#include <dyncp/thd/cu_seqlens.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace dyncp;

namespace {

using ints = std::vector<std::int32_t>;
using longs = std::vector<std::int64_t>;

constexpr padding_rule zigzag_rule{.zigzag = true};

pack_layout zigzag_pack(const longs& lengths, std::int32_t cp, std::int32_t tp = 1) {
  const padding_rule rule{.zigzag = true, .sequence_parallel = tp};
  return pack_layout::make(lengths, layout_kind::zigzag, cp, rule).value();
}

/// Tokens of each rank.
ints rank_tokens(const pack_layout& pack) {
  ints out;
  for (std::int32_t r = 0; r < pack.cp(); ++r) out.push_back(valid_tokens(pack.view(), r));
  return out;
}

std::vector<bool> valid_rows(const pack_layout& pack, std::int32_t rank) {
  std::vector<bool> out;
  for (std::int32_t i = 0; i < pack.view().local_rows(); ++i) {
    out.push_back(token_at(pack.view(), rank, i).valid);
  }
  return out;
}

/// Positions of the logits that score the response of a single sequence on one rank.
ints logit_positions(std::int64_t total, std::int32_t response, std::int32_t cp,
                     std::int32_t rank) {
  const auto pack = zigzag_pack({total}, cp);
  const auto rows = response_of(pack.view(), 0, rank, response);
  ints out;
  for (const row_run& run : {rows.front, rows.back}) {
    for (std::int32_t i = 0; i < run.rows; ++i) out.push_back(run.position + i);
  }
  return out;
}

/// A per-token field of the whole pack, cut to the share of one rank.
ints cut(const pack_layout& pack, std::int32_t rank, const ints& field) {
  ints out;
  for (const std::int32_t i : packed_rows(pack.view(), rank)) {
    out.push_back(field[static_cast<std::size_t>(i)]);
  }
  return out;
}

}  // namespace

TEST_CASE("lengths 5, 0, 7 on 2 ranks: sources and validity of every row") {
  const auto pack = zigzag_pack({5, 0, 7}, 2);
  CHECK(pack.cu().real == ints{0, 5, 5, 12});
  CHECK(pack.cu().padded == ints{0, 8, 8, 16});
  CHECK(packed_rows(pack.view(), 0) == ints{0, 1, 6, 7, 8, 9, 14, 15});
  CHECK(packed_rows(pack.view(), 1) == ints{2, 3, 4, 5, 10, 11, 12, 13});
  using flags = std::vector<bool>;
  CHECK(valid_rows(pack, 0) == flags{true, true, false, false, true, true, true, false});
  CHECK(valid_rows(pack, 1) == flags{true, true, true, false, true, true, true, true});
}

TEST_CASE("padded lengths, chunks and tokens per rank, by (length, cp, tp)") {
  struct vector {
    std::int64_t length;
    std::int32_t cp, tp, padded, chunk;
    ints tokens;
  };
  const vector vectors[] = {
      {7, 2, 1, 8, 2, {3, 4}},
      {3, 2, 1, 4, 1, {1, 2}},
      {17, 2, 1, 20, 5, {7, 10}},
      {7, 4, 2, 16, 2, {2, 2, 2, 1}},
      {3, 4, 2, 16, 2, {2, 1, 0, 0}},
      {17, 4, 2, 32, 4, {4, 4, 4, 5}},
      {3, 8, 1, 16, 1, {1, 1, 1, 0, 0, 0, 0, 0}},
      {1, 2, 1, 4, 1, {1, 0}},
      {4803, 2, 1, 4804, 1201, {2401, 2402}},
      {3, 4, 1, 8, 1, {1, 1, 1, 0}},
  };
  for (const vector& v : vectors) {
    CAPTURE(v.length);
    CAPTURE(v.cp);
    const auto pack = zigzag_pack({v.length}, v.cp, v.tp);
    CHECK(pack.view().padded(0) == v.padded);
    CHECK(slot_of(pack.view(), 0, 0).front.rows == v.chunk);
    CHECK(rank_tokens(pack) == v.tokens);
  }
}

TEST_CASE("TE#3331: 698 tokens in 704 rows on 4 ranks are 170, 176, 176, 176, not 174 each") {
  const auto pack = zigzag_pack({698}, 4);
  CHECK(pack.view().padded(0) == 704);
  CHECK(rank_tokens(pack) == ints{170, 176, 176, 176});
}

TEST_CASE("TE#1929: 7 tokens on 2 ranks are 3 and 4, not 3 and 3") {
  CHECK(rank_tokens(zigzag_pack({7}, 2)) == ints{3, 4});
}

TEST_CASE("TE#1368: unequal lengths 4, 8, 6, 10 on 2 ranks") {
  const auto pack = zigzag_pack({4, 8, 6, 10}, 2);
  CHECK(pack.cu().padded == ints{0, 4, 12, 20, 32});
  CHECK(valid_counts(pack.view(), 0) == std::vector<half_counts>{{1, 1}, {2, 2}, {2, 0}, {3, 1}});
  CHECK(valid_counts(pack.view(), 1) == std::vector<half_counts>{{1, 1}, {2, 2}, {2, 2}, {3, 3}});
  CHECK(rank_tokens(pack) == ints{12, 16});
}

TEST_CASE("TE#2186: a rank whose second half is all padding: halves 3 and 0") {
  const auto pack = zigzag_pack({9}, 2);
  CHECK(valid_count(pack.view(), 0, 0) == half_counts{3, 0});
  CHECK(valid_count(pack.view(), 0, 1) == half_counts{3, 3});
}

TEST_CASE("TE#1012: 5 tokens in 8 rows: the padding of each rank is known") {
  const auto pack = pack_layout::adopt({{0, 5}, {0, 8}}, 8, layout_kind::zigzag, 2).value();
  using flags = std::vector<bool>;
  CHECK(valid_rows(pack, 0) == flags{true, true, false, false});
  CHECK(valid_rows(pack, 1) == flags{true, true, true, false});
}

TEST_CASE("Megatron-LM#5243, #3405: RoPE positions restart with each sequence") {
  const auto pack = zigzag_pack({4, 4}, 2);
  CHECK(packed_rows(pack.view(), 0) == ints{0, 3, 4, 7});
  CHECK(positions(pack.view(), 0) == ints{0, 3, 0, 3});
  CHECK(positions(pack.view(), 1) == ints{1, 2, 1, 2});
}

TEST_CASE("Megatron-LM#4495, #4494, ISEEKYAN/Megatron-LM#111: lengths 5 and 3 on 2 ranks") {
  const auto pack = zigzag_pack({5, 3}, 2);
  CHECK(pack.cu().real == ints{0, 5, 8});
  CHECK(pack.cu().padded == ints{0, 8, 12});
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    CHECK(slot_of(pack.view(), 0, rank).rows() == 4);
    CHECK(slot_of(pack.view(), 1, rank).rows() == 2);
    CHECK(local_cu_padded(pack.view(), rank) == ints{0, 4, 6});
  }
  CHECK(rank_tokens(pack) == ints{3, 5});
}

TEST_CASE("Megatron-LM#4495: odd lengths 5 and 7 on 2 ranks: labels stay in their sequence") {
  const auto pack = zigzag_pack({5, 7}, 2);
  CHECK(pack.cu().padded == ints{0, 8, 16});
  const ints tokens{10, 11, 12, 13, 14, 0, 0, 0, 20, 21, 22, 23, 24, 25, 26, 0};
  ints labels(16);
  shift_labels<std::int32_t>(pack.view(), tokens, -1, labels);
  CHECK(labels == ints{11, 12, 13, 14, -1, -1, -1, -1, 21, 22, 23, 24, 25, 26, -1, -1});
  CHECK(cut(pack, 0, labels) == ints{11, 12, -1, -1, 21, 22, -1, -1});
  CHECK(cut(pack, 1, labels) == ints{13, 14, -1, -1, 23, 24, 25, 26});
}

TEST_CASE(
    "Megatron-LM#4230: lengths 6 and 10 on 4 ranks are refused unpadded, padded to 8 and 16") {
  for (const layout_kind kind : {layout_kind::zigzag, layout_kind::contiguous}) {
    const auto bad = pack_layout::adopt({{0, 6, 16}, {0, 6, 16}}, 16, kind, 4);
    REQUIRE(!bad);
    CHECK(bad.error().code == errc::invalid_argument);
    CHECK(bad.error().value == 6);
  }
  CHECK(zigzag_pack({6, 10}, 4).cu().padded == ints{0, 8, 24});
}

TEST_CASE("Megatron-LM#2574, NeMo-RL#2110: sequence parallelism: 20 tokens, cp 2, tp 4 take 32") {
  const auto pack = zigzag_pack({20}, 2, 4);
  CHECK(pack.view().padded(0) == 32);
  CHECK(pack.view().local_rows() % 4 == 0);
}

TEST_CASE("Megatron-LM dev: padding for the cp that was chosen: 100 tokens, cp 1, tp 8 take 104") {
  CHECK(zigzag_pack({100}, 1, 8).tokens() == 104);
}

TEST_CASE("Megatron-LM#5191: 1000 tokens on 2 ranks with shards of a multiple of 128, or 32") {
  for (const std::int64_t shard : {128, 32}) {
    const padding_rule rule{.zigzag = true, .shard_multiple = shard};
    const auto pack = pack_layout::make(longs{1000}, layout_kind::zigzag, 2, rule).value();
    CHECK(pack.tokens() == 1024);
    CHECK(pack.view().local_rows() == 512);
    CHECK(pack.view().sequence_rows() == 1000);
    CHECK(token_at(pack.view(), 0, 499).sequence == 0);
    CHECK(token_at(pack.view(), 0, 500) == token_ref{1, 0, false});
  }
}

TEST_CASE("slime#1054: the tail behind 1820, 6247 and 7334 tokens is part of the pack") {
  const padding_rule rule{.shard_multiple = 256};
  const auto pack =
      pack_layout::make(longs{1820, 6247, 7334}, layout_kind::zigzag, 1, rule).value();
  CHECK(pack.view().real_tokens() == 15401);
  CHECK(pack.view().sequence_rows() == 15401);
  CHECK(pack.tokens() == 15616);
  CHECK(padded_pack_tokens(rule, 1, 16520) == 16640);
  const auto split = pack_layout::make(longs{1820, 6247, 7334}, layout_kind::zigzag, 2,
                                       {.zigzag = true, .shard_multiple = 128})
                         .value();
  CHECK(split.view().sequence_rows() == 15404);
  CHECK(split.tokens() == 15616);
  CHECK(positions(split.view(), 1).size() == 7808);
}

TEST_CASE("Megatron-LM#3282, Megatron-Bridge#4489: repeated last entries own no row") {
  const auto pack =
      pack_layout::adopt({{0, 16, 40, 40, 40}, {0, 16, 40, 40, 40}}, 40, layout_kind::zigzag, 2)
          .value();
  CHECK(pack.sequences() == 4);
  CHECK(packed_rows(pack.view(), 0) ==
        ints{0, 1, 2, 3, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 34, 35, 36, 37, 38, 39});
  CHECK(valid_count(pack.view(), 3, 1) == half_counts{0, 0});
  const auto short_pack =
      pack_layout::adopt({{0, 8, 8, 8}, {0, 8, 8, 8}}, 8, layout_kind::zigzag, 2).value();
  CHECK(short_pack.view().local_rows() == 4);
  CHECK(packed_rows(short_pack.view(), 1) == ints{2, 3, 4, 5});
}

TEST_CASE("verl#4656, #6001: 2 tokens, tp 2, cp 2: rank 1 holds padding, not the slice [2, 4)") {
  const auto pack = zigzag_pack({2}, 2, 2);
  CHECK(pack.view().padded(0) == 8);
  CHECK(rank_tokens(pack) == ints{2, 0});
  CHECK(valid_count(pack.view(), 0, 1) == half_counts{0, 0});
}

TEST_CASE("RFA#78: the longest sequence, wherever it stands") {
  CHECK(zigzag_pack({5, 17, 3}, 2).max_length() == 17);
  CHECK(zigzag_pack({5, 17, 3}, 2).max_padded_length() == 20);
  CHECK(zigzag_pack({21, 17, 3}, 2).max_length() == 21);
  CHECK(zigzag_pack({}, 2).max_length() == 0);
}

TEST_CASE("EasyContext#47: 749 tokens on each of 4 ranks have no halves; 2999 tokens take 3000") {
  const auto odd = pack_layout::adopt({{0, 2996}, {0, 2996}}, 2996, layout_kind::zigzag, 4);
  REQUIRE(!odd);
  CHECK(odd.error().value == 2996);
  CHECK(odd.error().limit == 8);
  CHECK(zigzag_pack({2999}, 4).tokens() == 3000);
}

TEST_CASE("ROLL#325, LlamaFactory#10108: the total is a multiple of 2 * cp, the parts are not") {
  const auto bad =
      pack_layout::adopt({{0, 12345, 32768}, {0, 12345, 32768}}, 32768, layout_kind::zigzag, 4);
  REQUIRE(!bad);
  CHECK(bad.error().message().find("sequence 0") != std::string::npos);
}

TEST_CASE("TE#3057: 65536 rows in 2401 sequences: the lists have the size of the rows") {
  longs lengths(2400, 27);
  lengths.push_back(65536 - 2400 * 27);
  const auto pack = pack_layout::make(lengths, layout_kind::zigzag, 1, zigzag_rule).value();
  CHECK(pack.tokens() == 65536);
  CHECK(packed_rows(pack.view(), 0).size() == 65536);
}

TEST_CASE("verl#6267: 4803 tokens on 2 ranks: rank 1 has positions 1201 to 3602") {
  const auto rope = positions(zigzag_pack({4803}, 2).view(), 1);
  REQUIRE(rope.size() == 2402);
  for (std::size_t i = 0; i < rope.size(); ++i) {
    CHECK(rope[i] == 1201 + static_cast<std::int32_t>(i));
  }
}

TEST_CASE("verl#4250, Automodel#3544: labels of 1..8 on 2 ranks are shifted before the cut") {
  const auto pack = zigzag_pack({8}, 2);
  const ints tokens{1, 2, 3, 4, 5, 6, 7, 8};
  ints labels(8);
  shift_labels<std::int32_t>(pack.view(), tokens, 0, labels);
  CHECK(labels == ints{2, 3, 4, 5, 6, 7, 8, 0});
  CHECK(cut(pack, 0, labels) == ints{2, 3, 8, 0});
  CHECK(cut(pack, 1, labels) == ints{4, 5, 6, 7});
  // Rolling the shares instead is wrong where a chunk ends: at both ends on rank 0, at one on rank
  // 1, whose chunks touch.
  const std::int32_t wrong[] = {2, 1};
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    const ints right = cut(pack, rank, labels);
    ints rolled = cut(pack, rank, tokens);
    std::rotate(rolled.begin(), rolled.begin() + 1, rolled.end());
    std::int32_t differ = 0;
    for (std::size_t i = 0; i < right.size(); ++i) differ += right[i] != rolled[i] ? 1 : 0;
    CHECK(differ == wrong[rank]);
  }
}

TEST_CASE("LlamaFactory#10475: no token loses its label at a boundary of chunks") {
  const auto pack = zigzag_pack({13}, 2);
  const ints tokens(16, 7);
  ints labels(16);
  shift_labels<std::int32_t>(pack.view(), tokens, -1, labels);
  std::int64_t count = 0;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    const ints own = cut(pack, rank, labels);
    count += std::count(own.begin(), own.end(), 7);
  }
  CHECK(count == 12);
  CHECK(label_count(pack.view(), 0) == 12);
}

TEST_CASE("logits of a response, by (total, response, cp)") {
  CHECK(logit_positions(8, 5, 2, 0) == ints{6});
  CHECK(logit_positions(8, 5, 2, 1) == ints{2, 3, 4, 5});
  CHECK(logit_positions(12, 2, 2, 0) == ints{9, 10});
  CHECK(logit_positions(12, 2, 2, 1) == ints{});
  for (std::int32_t rank = 0; rank < 3; ++rank) CHECK(logit_positions(10, 1, 4, rank) == ints{});
  CHECK(logit_positions(10, 1, 4, 3) == ints{8});
  CHECK(logit_positions(9, 3, 2, 0) == ints{});
  CHECK(logit_positions(9, 3, 2, 1) == ints{5, 6, 7});
  CHECK(logit_positions(8, 2, 2, 0) == ints{6});
  CHECK(logit_positions(8, 2, 2, 1) == ints{5});
}

TEST_CASE("ms-swift#9380, #10085: ranks without a response token get empty runs, not errors") {
  const auto pack = zigzag_pack({12}, 2);
  const auto rows = response_of(pack.view(), 0, 1, 2);
  CHECK(rows.rows() == 0);
  const auto last = zigzag_pack({10}, 4);
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    CHECK(response_of(last.view(), 0, rank, 1).rows() == 0);
  }
  CHECK(response_of(last.view(), 0, 3, 1).rows() == 1);
}

TEST_CASE("slime#1135: every per-token field is cut as the tokens are: 8 tokens, 5 of response") {
  const auto pack = zigzag_pack({8}, 2);
  // Teacher log-probs, aligned with the logits that score the response (positions 2 to 6).
  const ints field{0, 0, 102, 103, 104, 105, 106, 0};
  CHECK(cut(pack, 0, field) == ints{0, 0, 106, 0});
  CHECK(cut(pack, 1, field) == ints{102, 103, 104, 105});
}

TEST_CASE("slime#2375: the terminal reward belongs to the rank that scores the last token") {
  const auto late = zigzag_pack({8}, 2);
  CHECK(owner_of_last_response_token(late.view(), 0) == rank_row{0, 2});  // position 6
  CHECK(owner_of_last_token(late.view(), 0) == rank_row{0, 3});
  const auto early = zigzag_pack({5}, 2);
  CHECK(owner_of_last_response_token(early.view(), 0) == rank_row{1, 1});  // position 3
  CHECK(owner_of_last_token(early.view(), 0) == rank_row{1, 2});
  const auto apart = zigzag_pack({7}, 2);
  CHECK(owner_of_last_response_token(apart.view(), 0) == rank_row{1, 3});  // position 5
  CHECK(owner_of_last_token(apart.view(), 0) == rank_row{0, 2});           // position 6
  const auto packed = zigzag_pack({8, 10}, 4);
  CHECK(owner_of_last_response_token(packed.view(), 1).rank == 3);
}

TEST_CASE("slime#1871: zigzag and contiguous shares of 8 tokens on 2 ranks, and the way between") {
  const auto zigzag = zigzag_pack({8}, 2);
  const auto contiguous = zigzag.with_layout(layout_kind::contiguous).value();
  CHECK(packed_rows(zigzag.view(), 0) == ints{0, 1, 6, 7});
  CHECK(packed_rows(zigzag.view(), 1) == ints{2, 3, 4, 5});
  CHECK(packed_rows(contiguous.view(), 0) == ints{0, 1, 2, 3});
  CHECK(packed_rows(contiguous.view(), 1) == ints{4, 5, 6, 7});
  const auto moves = conversion(zigzag.view(), contiguous.view());
  CHECK(moves ==
        std::vector<row_move>{{0, 0, 0, 0, 2}, {1, 0, 0, 2, 2}, {1, 2, 1, 0, 2}, {0, 2, 1, 2, 2}});
}

TEST_CASE("prime-rl#2392: the last local entry is the number of local rows") {
  const auto pack = zigzag_pack({1024, 1024}, 2);
  CHECK(pack.tokens() == 2048);
  CHECK(local_cu_padded(pack.view(), 0) == ints{0, 512, 1024});
  CHECK(local_cu_padded(pack.view(), 1) == ints{0, 512, 1024});
}

TEST_CASE("Megatron-LM#906, verl#5983: each token is counted once: 10 + 6 are 16 in every plan") {
  const auto sum = [](const ints& counts) {
    std::int32_t total = 0;
    for (const std::int32_t n : counts) total += n;
    return total;
  };
  CHECK(sum(rank_tokens(zigzag_pack({10}, 2))) + sum(rank_tokens(zigzag_pack({6}, 2))) == 16);
  CHECK(sum(rank_tokens(zigzag_pack({10}, 1))) + sum(rank_tokens(zigzag_pack({6}, 1))) == 16);
  CHECK(sum(rank_tokens(zigzag_pack({10, 6}, 4))) == 16);
  CHECK(sum(rank_tokens(zigzag_pack({10, 6}, 2))) == 16);
}

TEST_CASE("Megatron-LM#1764: zero tokens on a rank are legal: 2 tokens on 4 ranks") {
  CHECK(rank_tokens(zigzag_pack({2}, 4)) == ints{1, 1, 0, 0});
}

TEST_CASE("Megatron-LM#5560: offsets above 2^24 are exact") {
  const auto pack = zigzag_pack({16777217, 5}, 2);
  CHECK(pack.cu().real == ints{0, 16777217, 16777222});
  CHECK(pack.cu().padded == ints{0, 16777220, 16777228});
  CHECK(token_at(pack.view(), 0, 8388610) == token_ref{1, 0, true});
}

TEST_CASE("pith-train#94: from zigzag to contiguous a rank sends to at most two ranks") {
  for (const std::int32_t cp : {2, 3, 4, 8}) {
    const auto zigzag = zigzag_pack({2 * cp * 3}, cp);
    const auto contiguous = zigzag.with_layout(layout_kind::contiguous).value();
    ints peers(static_cast<std::size_t>(cp), 0);
    for (const row_move& move : conversion(zigzag.view(), contiguous.view())) {
      CHECK(move.rows == 3);
      ++peers[static_cast<std::size_t>(move.from_rank)];
    }
    for (const std::int32_t n : peers) CHECK(n == 2);
  }
}
