// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"
#include "kernels.hpp"
#include "launch.hpp"
#include "row_lanes.hpp"
#include "segments.hpp"

#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace {

template <class T>
struct delta_launch {
  delta_arguments<T> a;
  row_lanes lanes;
};

/// One head of one row per group of lanes.
template <class T, int Unit>
__global__ void __launch_bounds__(row_lanes::threads)
    delta_kernel(const __grid_constant__ delta_launch<T> p) {
  const delta_arguments<T>& a = p.a;
  const std::int64_t index = p.lanes.row(blockIdx.x, threadIdx.x);
  const std::int64_t row = index / a.heads;
  const auto head = static_cast<std::int32_t>(index - row * a.heads);
  bool counts = row < a.table.rows;
  if (counts) {
    const std::int32_t s = segment_at<segment_side::queries>(a.table.segments, a.table.count,
                                                             static_cast<std::int32_t>(row));
    counts = s >= 0 && row < a.table.segments[s].q_row + a.table.segments[s].q_rows;
  }
  float sum = 0;
  if (counts) {
    const T* const out = a.out.at(row, head, a.dim);
    const T* const dout = a.dout.at(row, head, a.dim);
    const std::int32_t step = Unit << p.lanes.shift;
    for (std::int32_t c = Unit * p.lanes.lane(threadIdx.x); c < a.dim; c += step) {
      float x[Unit];
      float y[Unit];
      load_floats(out + c, x);
      load_floats(dout + c, y);
#pragma unroll
      for (int i = 0; i < Unit; ++i) sum += x[i] * y[i];
    }
  }
  // All lanes of the warp take part, whether their rows count or not.
  for (std::int32_t distance = 1 << p.lanes.shift >> 1; distance > 0; distance >>= 1) {
    sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  }
  if (counts && p.lanes.lane(threadIdx.x) == 0) *a.delta.at(row, head, 1) = sum;
}

template <class T>
bool in_units(const thd_view<const T>& x, std::int32_t dim) {
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
  return common_unit(dim * bytes, x.data, nullptr) == 16 &&
         common_unit(x.row_stride * bytes, nullptr, nullptr) == 16;
}

}  // namespace

cudaError_t prepare_delta() {
  return prepare_all(delta_kernel<bfloat16, 8>, delta_kernel<bfloat16, 1>, delta_kernel<float16, 8>,
                     delta_kernel<float16, 1>, delta_kernel<float, 4>, delta_kernel<float, 1>);
}

template <class T>
cudaError_t launch_delta(const delta_arguments<T>& a, cudaStream_t stream) {
  constexpr int wide = 16 / sizeof(T);
  const bool units = in_units(a.out, a.dim) && in_units(a.dout, a.dim);
  const row_lanes lanes = row_lanes::of(units ? a.dim / wide : a.dim);
  const launch_config config{
      .blocks = lanes.blocks(a.table.count == 0 ? 0 : std::int64_t{a.table.rows} * a.heads),
      .threads = row_lanes::threads, .stream = stream};
  const delta_launch<T> p{a, lanes};
  return units ? launch(delta_kernel<T, wide>, config, p) : launch(delta_kernel<T, 1>, config, p);
}

template cudaError_t launch_delta(const delta_arguments<bfloat16>&, cudaStream_t);
template cudaError_t launch_delta(const delta_arguments<float16>&, cudaStream_t);
template cudaError_t launch_delta(const delta_arguments<float>&, cudaStream_t);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
