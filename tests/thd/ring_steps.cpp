// SPDX-License-Identifier: Apache-2.0
#include <dyncp/thd/ring_steps.hpp>

#include "thd/laws.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

constexpr padding_rule zigzag_rule{.zigzag = true};

void check_ring(const std::vector<std::int64_t>& lengths, std::int32_t cp) {
  const auto pack = pack_layout::make(lengths, layout_kind::zigzag, cp, zigzag_rule).value();
  for (const attention_mask mask : {attention_mask::causal, attention_mask::full}) {
    const std::string broken = ring_law(pack.view(), mask);
    CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ": " << broken);
  }
}

/// Pairs that a rank computes over all steps of a causal ring over one sequence.
std::int64_t area(const pack_view& pack, std::int32_t rank) {
  std::int64_t pairs = 0;
  for (std::int32_t owner = 0; owner < pack.cp; ++owner) {
    const auto step = ring_step_of(pack.layout, attention_mask::causal, rank, owner);
    for (const auto& segment : segments_of(pack, pack, step, rank, owner)) {
      pairs += attended_pairs(segment, step.mask);
    }
  }
  return pairs;
}

std::vector<std::int64_t> areas(std::int64_t length, std::int32_t cp) {
  const std::vector<std::int64_t> lengths{length};
  const auto pack = pack_layout::make(lengths, layout_kind::zigzag, cp, zigzag_rule).value();
  std::vector<std::int64_t> out;
  for (std::int32_t rank = 0; rank < cp; ++rank) out.push_back(area(pack.view(), rank));
  return out;
}

}  // namespace

TEST_CASE("one sequence up to 40 tokens: each visible pair is met once") {
  for (const std::int32_t cp : group_sizes) {
    for (std::int64_t length = 0; length <= 40; ++length) check_ring({length}, cp);
  }
}

TEST_CASE("two sequences up to 40 tokens: each visible pair is met once") {
  for (const std::int32_t cp : group_sizes) {
    for (std::int64_t a = 0; a <= 40; ++a) {
      for (std::int64_t b = 0; b <= 40; ++b) check_ring({a, b}, cp);
    }
  }
}

TEST_CASE("contiguous layouts meet each visible pair once as well") {
  for (const std::int32_t cp : group_sizes) {
    for (std::int64_t a = 0; a <= 24; ++a) {
      const std::vector<std::int64_t> lengths{a, 11};
      for (const layout_kind kind : {layout_kind::contiguous, layout_kind::row_split}) {
        const padding_rule rule{.multiple = kind == layout_kind::contiguous ? cp : 1};
        const auto pack = pack_layout::make(lengths, kind, cp, rule).value();
        for (const attention_mask mask : {attention_mask::causal, attention_mask::full}) {
          const std::string broken = ring_law(pack.view(), mask);
          CHECK_MESSAGE(broken.empty(), describe(lengths, cp) << ": " << broken);
        }
      }
    }
  }
}

TEST_CASE("the four shapes of a zigzag ring, by who meets whom") {
  using enum row_part;
  constexpr attention_mask causal = attention_mask::causal;
  constexpr attention_mask full = attention_mask::full;
  constexpr layout_kind zigzag = layout_kind::zigzag;
  constexpr ring_step diagonal = ring_step_of(zigzag, causal, 2, 2);
  CHECK(diagonal == ring_step{all, all, causal});
  CHECK(ring_step_of(zigzag, causal, 2, 1) == ring_step{all, front, full});
  CHECK(ring_step_of(zigzag, causal, 2, 3) == ring_step{back, all, full});
  CHECK(ring_step_of(zigzag, full, 2, 2) == ring_step{all, all, full});
  CHECK(ring_step_of(zigzag, full, 2, 3) == ring_step{all, all, full});
}

TEST_CASE("both directions of a ring visit every owner once, the backward one ends at home") {
  for (std::int32_t cp = 1; cp <= 17; ++cp) {
    for (std::int32_t rank = 0; rank < cp; ++rank) {
      std::set<std::int32_t> forward;
      std::set<std::int32_t> backward;
      for (std::int32_t step = 0; step < cp; ++step) {
        forward.insert(ring_owner(rank, step, cp));
        backward.insert(ring_owner_back(rank, step, cp));
        if (step > 0) {
          // What a rank holds now, its neighbour held one step before.
          CHECK(ring_owner(rank, step, cp) == ring_owner((rank + cp - 1) % cp, step - 1, cp));
          CHECK(ring_owner_back(rank, step, cp) == ring_owner_back((rank + 1) % cp, step - 1, cp));
        }
      }
      CHECK(forward.size() == static_cast<std::size_t>(cp));
      CHECK(backward.size() == static_cast<std::size_t>(cp));
      CHECK(ring_owner(rank, 0, cp) == rank);
      CHECK(ring_owner_back(rank, cp - 1, cp) == rank);
      // The backward ring starts with the keys that the forward ring ended with.
      CHECK(ring_owner_back(rank, 0, cp) == ring_owner(rank, cp - 1, cp));
    }
  }
}

TEST_CASE("areas are equal without padding, and not for short sequences") {
  using list = std::vector<std::int64_t>;
  CHECK(areas(64, 4) == list{520, 520, 520, 520});
  CHECK(areas(9, 4) == list{3, 7, 11, 24});
  CHECK(areas(1, 8) == list{1, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("pairs of a step without padding, C = 3: 2C^2 + C on the diagonal, 2C^2 off it") {
  const std::vector<std::int64_t> lengths{24};
  const auto pack = pack_layout::make(lengths, layout_kind::zigzag, 4, zigzag_rule).value();
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    for (std::int32_t owner = 0; owner < 4; ++owner) {
      const auto causal = ring_step_of(layout_kind::zigzag, attention_mask::causal, rank, owner);
      const auto full = ring_step_of(layout_kind::zigzag, attention_mask::full, rank, owner);
      const auto a = segment_of(pack.view(), pack.view(), causal, 0, rank, owner);
      const auto b = segment_of(pack.view(), pack.view(), full, 0, rank, owner);
      CHECK(attended_pairs(a, causal.mask) == (rank == owner ? 21 : 18));
      CHECK(attended_pairs(b, full.mask) == 36);
    }
  }
}

TEST_CASE("a full mask can leave a query without keys in a step: length 1 on 2 ranks") {
  const std::vector<std::int64_t> lengths{1};
  const auto pack = pack_layout::make(lengths, layout_kind::zigzag, 2, zigzag_rule).value();
  const auto step = ring_step_of(layout_kind::zigzag, attention_mask::full, 0, 1);
  const auto segment = segment_of(pack.view(), pack.view(), step, 0, 0, 1);
  CHECK(segment.q_rows == 1);
  CHECK(segment.kv_rows == 0);
}

TEST_CASE("cross-attention: queries and keys have lengths and padding of their own") {
  const std::vector<std::int64_t> q_lengths{5, 0, 9};
  const std::vector<std::int64_t> kv_lengths{2, 7, 4};
  const std::int32_t cp = 2;
  const auto q = pack_layout::make(q_lengths, layout_kind::zigzag, cp, zigzag_rule).value();
  const auto kv = pack_layout::make(kv_lengths, layout_kind::zigzag, cp, zigzag_rule).value();
  for (std::size_t s = 0; s < q_lengths.size(); ++s) {
    std::int64_t pairs = 0;
    for (std::int32_t rank = 0; rank < cp; ++rank) {
      for (std::int32_t owner = 0; owner < cp; ++owner) {
        const auto step = ring_step_of(q.layout(), attention_mask::full, rank, owner);
        pairs += attended_pairs(segments_of(q.view(), kv.view(), step, rank, owner)[s], step.mask);
      }
    }
    CHECK(pairs == q_lengths[s] * kv_lengths[s]);
  }
}
