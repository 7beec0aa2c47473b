// SPDX-License-Identifier: Apache-2.0
// Pool, ring, split and merge compile with the least that their concepts promise. Compiled, not
// linked: the archetypes have no bodies.
#include "conformance/archetype.hpp"

#include <dyncp/attention/ring_attention.hpp>
#include <dyncp/core/bfloat16.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/row_router.hpp>
#include <dyncp/runtime/split_merge.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace arch = dyncp_test::archetype;

template class dyncp::group_pool<arch::backend>;
template class dyncp::row_router<arch::backend>;
template class dyncp::plan_split<arch::backend>;
template class dyncp::plan_reroute<arch::backend>;
template class dyncp::plan_merge<arch::backend>;
template class dyncp::ring_context<arch::device>;
template class dyncp::ring_attention<double, arch::backend, arch::provider<double>>;
template class dyncp::ring_attention<float, arch::backend, arch::provider<float>>;
template class dyncp::ring_attention<dyncp::bfloat16, arch::backend,
                                     arch::provider<dyncp::bfloat16>>;

/// Member templates are named, so that they are made, too.
dyncp::result<void> use(dyncp::group_pool<arch::backend>& pool,
                        dyncp::plan_merge<arch::backend>& merge, arch::stream s) {
  auto channel = pool.channel(pool.everyone());
  static_assert(dyncp::host_channel<decltype(channel)>);
  std::int64_t value = 0;
  DYNCP_TRY(dyncp::barrier(channel));
  DYNCP_TRY(dyncp::broadcast(channel, std::as_writable_bytes(std::span(&value, 1)), 0));
  DYNCP_TRY(dyncp::all_reduce(channel, std::span(&value, 1), dyncp::reduction::sum));
  DYNCP_TRY(dyncp::all_to_all(channel, std::span<const std::span<const std::byte>>(),
                              std::span<const std::span<std::byte>>()));
  return merge.backward(
      dyncp::merge_gradient::summed, static_cast<const float*>(nullptr),
      static_cast<float*>(nullptr), 1,
      [](arch::device&, arch::stream, float*, const float*, std::int64_t) {
        return dyncp::result<void>();
      },
      s);
}
