// SPDX-License-Identifier: Apache-2.0
#include <dyncp/cost/load.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using dyncp::load;

TEST_CASE("squares are of padded lengths, document by document (Megatron-LM#5342)") {
  load pack;
  for (int i = 0; i < 4; ++i) pack += dyncp::sequence_load(2048, 1);
  CHECK(pack == load{8192, 16777216, 4});  // not 8192^2 = 67,108,864
  CHECK(dyncp::sequence_load(5, 4) == load{8, 64, 1});
  CHECK(dyncp::sequence_load(8, 4) == load{8, 64, 1});
}

TEST_CASE("loads add and subtract exactly up to a pack of 2^31 - 1 tokens") {
  const std::int64_t n = (std::int64_t{1} << 31) - 1;
  const load whole = dyncp::sequence_load(n, 1);
  CHECK(whole.squares == 4611686014132420609);  // (2^31 - 1)^2
  const load part = dyncp::sequence_load(12345, 16);
  CHECK(part == load{12352, 152571904, 1});
  CHECK(whole + part - part == whole);
}

TEST_CASE("the time of an operation pair") {
  CHECK(dyncp::op_cost{3, 9, 100}.total() == 12);
}
