// SPDX-License-Identifier: Apache-2.0
#include <dyncp/dyncp.hpp>

#include <Eigen/Core>
#include <fmt/core.h>
#include <range/v3/numeric/accumulate.hpp>

#include <vector>

int main() {
  const Eigen::Vector2i lengths(5, 3);
  const dyncp::padding_rule rule{.zigzag = true};
  std::vector<int> padded;
  for (int length : lengths) {
    padded.push_back(static_cast<int>(dyncp::padded_length(length, dyncp::alignment(rule, 2))));
  }
  fmt::print("{}.{}.{} {}\n", DYNCP_VERSION_MAJOR, DYNCP_VERSION_MINOR, DYNCP_VERSION_PATCH,
             ranges::accumulate(padded, 0));
}
