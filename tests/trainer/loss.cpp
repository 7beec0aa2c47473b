// SPDX-License-Identifier: Apache-2.0
#include <dyncp/trainer/loss.hpp>

#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/thd/response.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace dyncp;

namespace {

using longs = std::vector<std::int64_t>;
using bytes = std::vector<std::uint8_t>;

pack_layout zigzag_pack(const longs& lengths, std::int32_t cp) {
  const padding_rule rule{.zigzag = true};
  return pack_layout::make(lengths, layout_kind::zigzag, cp, rule).value();
}

template <class T>
std::vector<T> cut(const pack_layout& pack, std::int32_t rank, const std::vector<T>& field) {
  std::vector<T> out;
  for (const std::int32_t i : packed_rows(pack.view(), rank)) {
    out.push_back(field[static_cast<std::size_t>(i)]);
  }
  return out;
}

/// What the ranks of a group return, each from its share of per-token losses in packed order.
std::vector<loss_part> parts(const pack_layout& pack, const std::vector<double>& losses,
                             const bytes& mask = {}) {
  std::vector<loss_part> out;
  for (std::int32_t rank = 0; rank < pack.cp(); ++rank) {
    const auto own = cut(pack, rank, losses);
    const auto own_mask = mask.empty() ? bytes{} : cut(pack, rank, mask);
    out.push_back(local_loss<double>(pack.view(), rank, own, own_mask));
  }
  return out;
}

loss_part total(const std::vector<loss_part>& all) {
  loss_part sum;
  for (const loss_part& p : all) sum += p;
  return sum;
}

/// Losses that differ by token, NaN where no label is.
std::vector<double> marked_losses(const pack_layout& pack) {
  std::vector<double> out(static_cast<std::size_t>(pack.tokens()),
                          std::numeric_limits<double>::quiet_NaN());
  for (std::int32_t s = 0; s < pack.sequences(); ++s) {
    for (std::int32_t p = 0; p + 1 < pack.view().length(s); ++p) {
      out[static_cast<std::size_t>(pack.view().cu_padded[s] + p)] = 100.0 * s + p;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("10 tokens of loss 1 and 30 of loss 2 on cp 1, 60 of loss 3 on cp 2: 2.5") {
  // One token more in each sequence, as the last has no label.
  const auto a = zigzag_pack({11, 31}, 1);
  const auto b = zigzag_pack({61}, 2);
  std::vector<double> losses_a(42, 2.0);
  for (std::size_t i = 0; i < 11; ++i) losses_a[i] = 1.0;
  const std::vector<double> losses_b(static_cast<std::size_t>(b.tokens()), 3.0);
  const loss_part part_a = total(parts(a, losses_a));
  const auto parts_b = parts(b, losses_b);
  CHECK(part_a == loss_part{70.0, 40});
  CHECK(parts_b[0].tokens + parts_b[1].tokens == 60);
  CHECK(mean(part_a + total(parts_b)) == 2.5);
  CHECK(gradient_scale(part_a + total(parts_b)) == 0.01);
}

TEST_CASE("verl#6049, #4250, Megatron-LM#673: the loss is the same for every cp and every plan") {
  const longs lengths{7, 12, 3, 30};
  const auto reference = zigzag_pack(lengths, 1);
  const loss_part one = total(parts(reference, marked_losses(reference)));
  CHECK(one.tokens == 48);
  for (const std::int32_t cp : {2, 3, 4, 8, 16}) {
    const auto pack = zigzag_pack(lengths, cp);
    CHECK(total(parts(pack, marked_losses(pack))) == one);
  }
  // Each sequence in a group of its own size.
  const std::int32_t sizes[] = {1, 2, 4, 8};
  loss_part mixed;
  for (std::size_t s = 0; s < 4; ++s) {
    const auto pack = zigzag_pack({lengths[s]}, sizes[s]);
    auto losses = marked_losses(pack);
    for (double& x : losses) x += 100.0 * static_cast<double>(s);
    mixed += total(parts(pack, losses));
  }
  CHECK(mixed == one);
}

TEST_CASE("verl#5869, #5983: 40 tokens on one group of 2 are 40, not 80 or 160") {
  const auto pack = zigzag_pack({41}, 2);
  const auto both = parts(pack, std::vector<double>(static_cast<std::size_t>(pack.tokens()), 1.0));
  CHECK(total(both).tokens == 40);
  // A second data-parallel rank that has a dummy adds nothing.
  CHECK((total(both) + loss_part{}).tokens == 40);
}

TEST_CASE("Megatron-LM#7513: one valid token has the same gradient on 1, 2 and 4 ranks") {
  for (const std::int32_t cp : {1, 2, 4}) {
    const auto pack = zigzag_pack({8}, cp);
    const std::vector<double> losses(static_cast<std::size_t>(pack.tokens()), 6.0);
    bytes mask(losses.size(), 0);
    mask[5] = 1;
    const auto all = parts(pack, losses, mask);
    CHECK(total(all) == loss_part{6.0, 1});
    CHECK(gradient_scale(total(all)) == 1.0);
    std::int64_t ranks_with_tokens = 0;
    for (const loss_part& p : all) ranks_with_tokens += p.tokens;
    CHECK(ranks_with_tokens == 1);
  }
}

TEST_CASE("slime: a sample that is masked out counts as no token: 0 + 9 are 9") {
  const auto pack = zigzag_pack({6, 10}, 2);
  const std::vector<double> losses(static_cast<std::size_t>(pack.tokens()), 1.0);
  bytes mask(losses.size(), 1);
  for (std::size_t i = 0; i < 8; ++i) mask[i] = 0;  // the padded first sequence
  CHECK(total(parts(pack, losses, mask)) == loss_part{9.0, 9});
}

TEST_CASE("verl#6464, Megatron-LM#1764: no token at all is loss 0 and gradient 0, not NaN") {
  const auto pack = zigzag_pack({2}, 4);
  const auto all = parts(pack, marked_losses(pack), bytes(8, 0));
  CHECK(mean(total(all)) == 0.0);
  CHECK(gradient_scale(total(all)) == 0.0);
  // Ranks 1 to 3 have no label even without a mask.
  const auto unmasked = parts(pack, marked_losses(pack));
  CHECK(unmasked[0].tokens == 1);
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK(unmasked[rank] == loss_part{});
}

TEST_CASE("ms-swift#9380: a rank without response tokens returns (0, 0): 12 tokens, response 2") {
  const auto pack = zigzag_pack({12}, 2);
  const auto losses = marked_losses(pack);
  bytes mask(12, 0);
  mask[9] = mask[10] = 1;
  const auto all = parts(pack, losses, mask);
  CHECK(all[0] == loss_part{19.0, 2});
  CHECK(all[1] == loss_part{});
}

TEST_CASE("mlite#140, SkyRL#1420: the mean does not depend on the number of micro-batches") {
  const auto whole = zigzag_pack({9, 5, 17, 4}, 2);
  const loss_part once = total(parts(whole, marked_losses(whole)));
  loss_part apart;
  const std::int64_t lengths[] = {9, 5, 17, 4};
  for (std::size_t s = 0; s < 4; ++s) {
    const auto pack = zigzag_pack({lengths[s]}, 2);
    auto losses = marked_losses(pack);
    for (double& x : losses) x += 100.0 * static_cast<double>(s);
    apart += total(parts(pack, losses));
  }
  CHECK(mean(apart) == mean(once));
}

TEST_CASE("Megatron-LM#7452, #7498: multi-token prediction counts its own labels on all ranks") {
  const auto pack = zigzag_pack({5, 7}, 2);
  const std::vector<double> ones(static_cast<std::size_t>(pack.tokens()), 1.0);
  loss_part deep;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    deep += local_loss<double>(pack.view(), rank, cut(pack, rank, ones), {}, 2);
  }
  CHECK(deep == loss_part{8.0, 8});  // 3 + 5
}

TEST_CASE("NaN in padding, in the tail and behind the mask is not read") {
  const padding_rule rule{.zigzag = true, .shard_multiple = 8};
  const auto pack = pack_layout::make(longs{5, 1, 3}, layout_kind::zigzag, 2, rule).value();
  auto losses = marked_losses(pack);
  losses[2] = std::numeric_limits<double>::quiet_NaN();
  bytes mask(losses.size(), 1);
  mask[2] = 0;
  // Sequence 0 has labels at 0, 1 and 3 (2 is masked), sequence 2 at 0 and 1.
  CHECK(total(parts(pack, losses, mask)) == loss_part{405.0, 5});
}
