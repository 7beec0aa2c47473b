// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/runtime/collectives.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The members of a group that ask for the same color, by key and then by rank, as ranks of the
/// group: what MPI_Comm_split and ncclCommSplit put into the child. For fabrics that have neither.
///
/// Collective over `all`. Errors: those of the fabric. Complexity: O(n log n) for n members.
template <host_channel C>
[[nodiscard]] result<std::vector<std::int32_t>> split_order(C& all, std::int32_t color,
                                                            std::int32_t key) {
  struct request {
    std::int32_t color;
    std::int32_t key;
    std::int32_t rank;
  };
  auto requests = all_gather_value(all, request{color, key, all.rank()});
  if (!requests) return std::move(requests).error();
  std::erase_if(*requests, [&](const request& r) { return r.color != color; });
  std::sort(requests->begin(), requests->end(), [](const request& a, const request& b) {
    return a.key != b.key ? a.key < b.key : a.rank < b.rank;
  });
  std::vector<std::int32_t> order;
  for (const request& r : *requests) order.push_back(r.rank);
  return order;
}

}  // namespace v0
}  // namespace dyncp
