// SPDX-License-Identifier: Apache-2.0
#include <dyncp/dyncp.hpp>

#include <cstdint>
#include <cstdio>

int main() {
  // A sequence of 30001 tokens in zigzag layout on a CP group of four ranks.
  const dyncp::padding_rule rule{.zigzag = true};
  const std::int64_t padded = dyncp::padded_length(30001, dyncp::alignment(rule, 4));
  std::printf("30001 tokens on 4 ranks: padded to %lld\n", static_cast<long long>(padded));
  return padded == 30008 ? 0 : 1;
}
