// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"
#include "launch.hpp"
#include "row_lanes.hpp"
#include "vector.hpp"

#include <dyncp/runtime/device.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace {

struct copy_rows_launch {
  copy_rows_arguments a;
  row_lanes lanes;
};

/// The entry of the sorted table that row `row` belongs to.
DYNCP_DEVICE const row_copy& copy_of(const copy_rows_arguments& a, std::int64_t row) {
  std::int64_t low = 0;
  std::int64_t high = a.entries;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (a.table[middle].begin <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return a.table[low];
}

/// One row per group of lanes, in units of V.
template <class V>
__global__ void __launch_bounds__(row_lanes::threads, row_lanes::blocks_at_once)
    copy_rows_kernel(const __grid_constant__ copy_rows_launch p) {
  const std::int64_t row = p.lanes.row(blockIdx.x, threadIdx.x);
  if (row >= p.a.rows) return;
  const row_copy& copy = copy_of(p.a, row);
  const std::int64_t i = row - copy.begin;
  auto* const to = static_cast<std::byte*>(p.a.to) + (copy.dst + i) * p.a.row_bytes;
  const auto* const from = static_cast<const std::byte*>(p.a.from) + (copy.src + i) * p.a.row_bytes;
  copy_row<V>(p.lanes, to, copy.src < 0 ? nullptr : from, p.a.row_bytes);
}

template <class V>
cudaError_t launch_in_units(const copy_rows_arguments& a, cudaStream_t stream) {
  const row_lanes lanes = row_lanes::of(a.row_bytes / static_cast<std::int64_t>(sizeof(V)));
  return launch(copy_rows_kernel<V>, {.blocks = lanes.blocks(a.rows), .threads = row_lanes::threads,
                                      .stream = stream}, copy_rows_launch{a, lanes});
}

}  // namespace

cudaError_t prepare_copy_rows() {
  return prepare_all(copy_rows_kernel<uint4>, copy_rows_kernel<uint2>,
                     copy_rows_kernel<std::uint32_t>, copy_rows_kernel<std::uint16_t>,
                     copy_rows_kernel<std::uint8_t>);
}

cudaError_t launch_copy_rows(const copy_rows_arguments& a, cudaStream_t stream) {
  if (a.entries == 0 || a.rows == 0 || a.row_bytes == 0) return cudaSuccess;
  switch (common_unit(a.row_bytes, a.to, a.from)) {
    case 16: return launch_in_units<uint4>(a, stream);
    case 8: return launch_in_units<uint2>(a, stream);
    case 4: return launch_in_units<std::uint32_t>(a, stream);
    case 2: return launch_in_units<std::uint16_t>(a, stream);
    default: return launch_in_units<std::uint8_t>(a, stream);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
