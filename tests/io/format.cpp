// SPDX-License-Identifier: Apache-2.0
#include <dyncp/io/format.hpp>

#include <doctest/doctest.h>

TEST_CASE("types are formatted by their names and take widths") {
  CHECK(fmt::format("{}", dyncp::errc::sequence_too_long) == "sequence_too_long");
  CHECK(fmt::format("{:>8}|{:<8}|", dyncp::link::nvlink, dyncp::link::network) ==
        "  nvlink|network |");
  CHECK(fmt::format("{} {}", dyncp::rank_range{4, 4}, dyncp::rank_range{3, 1}) ==
        "ranks 4..7 rank 3");
  CHECK(fmt::format("{}", dyncp::recomputation::selective) == "selective");
  CHECK(fmt::format("{}", dyncp::attention_mask::full) == "full");
  CHECK(fmt::format("{}", dyncp::load{30, 500, 2}) == "2 sequences, 30 tokens, 500 squares");
  const dyncp::error e{dyncp::errc::infeasible, "no room", 5, 4, "raise the limit"};
  CHECK(fmt::format("{}", e) == "infeasible: no room; raise the limit");
  dyncp::violation v;
  v.kind = dyncp::violation_kind::unaligned;
  v.message = "group 1 of size 2 starts at rank 1";
  CHECK(fmt::format("{}", v) == "unaligned: group 1 of size 2 starts at rank 1");
  dyncp::plan p;
  p.num_ranks = 2;
  p.micro_batches.push_back({{{{0, 1}, {0, 2}}, {{1, 1}, {1}}}});
  CHECK(fmt::format("{}", p) == "3 sequences in 2 packs, 1 micro-batches on 2 ranks");
}
