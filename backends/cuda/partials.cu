// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"
#include "kernels.hpp"
#include "launch.hpp"
#include "row_lanes.hpp"
#include "segments.hpp"
#include "vector.hpp"

#include <cmath>
#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace {

/// Groups of lanes, each for one head of one row; `unit` floats an access.
template <class Arguments>
struct head_launch {
  Arguments a;
  row_lanes lanes;
};

template <int Unit>
__global__ void __launch_bounds__(row_lanes::threads)
    merge_kernel(const __grid_constant__ head_launch<merge_arguments> p) {
  const merge_arguments& a = p.a;
  const std::int64_t index = p.lanes.row(blockIdx.x, threadIdx.x);
  const std::int64_t row = index / a.heads;
  if (row >= a.table.rows) return;
  const auto head = static_cast<std::int32_t>(index - row * a.heads);
  const std::int32_t s = segment_at<segment_side::queries>(a.table.segments, a.table.count,
                                                           static_cast<std::int32_t>(row));
  if (s < 0) return;
  const attention_segment segment = a.table.segments[s];
  if (row >= segment.q_row + segment.q_rows || segment.kv_rows == 0) return;

  const float own = *a.total.lse.at(row, head, 1);
  const float other = *a.part.lse.at(row, head, 1);
  if (other == -INFINITY) return;
  const float larger = fmaxf(own, other);
  const float smaller = fminf(own, other);
  // -inf is never subtracted from -inf: `other` is above it.
  const float lse = own == -INFINITY ? other : larger + log1pf(expf(smaller - larger));
  const float own_weight = own == -INFINITY ? 0.0F : expf(own - lse);
  const float other_weight = expf(other - lse);
  float* const to = a.total.out.at(row, head, a.dim);
  const float* const from = a.part.out.at(row, head, a.dim);
  const std::int32_t step = Unit << p.lanes.shift;
  for (std::int32_t c = Unit * p.lanes.lane(threadIdx.x); c < a.dim; c += step) {
    float x[Unit];
    float y[Unit];
    load_floats(to + c, x);
    load_floats(from + c, y);
#pragma unroll
    for (int i = 0; i < Unit; ++i) {
      // A weight of zero does not touch what it weighs.
      const float kept = own_weight == 0.0F ? 0.0F : own_weight * x[i];
      const float added = other_weight == 0.0F ? 0.0F : other_weight * y[i];
      x[i] = kept + added;
    }
    store_floats(to + c, x);
  }
  // The lanes of a row read it together, in the same warp, before the first of them is here.
  __syncwarp(p.lanes.mask(threadIdx.x));
  if (p.lanes.lane(threadIdx.x) == 0) *a.total.lse.at(row, head, 1) = lse;
}

template <int Unit>
__global__ void __launch_bounds__(row_lanes::threads)
    clear_kernel(const __grid_constant__ head_launch<clear_arguments> p) {
  const clear_arguments& a = p.a;
  const std::int64_t index = p.lanes.row(blockIdx.x, threadIdx.x);
  const std::int64_t row = index / a.heads;
  if (row >= a.rows) return;
  const auto head = static_cast<std::int32_t>(index - row * a.heads);
  const float zeros[Unit] = {};
  const std::int32_t step = Unit << p.lanes.shift;
  for (std::int32_t c = Unit * p.lanes.lane(threadIdx.x); c < a.dim; c += step) {
    store_floats(a.out.out.at(row, head, a.dim) + c, zeros);
  }
  if (p.lanes.lane(threadIdx.x) == 0) *a.out.lse.at(row, head, 1) = -INFINITY;
}

constexpr int add_threads = 256;

template <int Unit>
__global__ void __launch_bounds__(add_threads)
    add_kernel(const __grid_constant__ add_arguments a) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * add_threads + threadIdx.x) * Unit;
  if (first >= a.n) return;
  if (first + Unit <= a.n) {
    float x[Unit];
    float y[Unit];
    load_floats(a.to + first, x);
    load_floats(a.from + first, y);
#pragma unroll
    for (int i = 0; i < Unit; ++i) x[i] += y[i];
    store_floats(a.to + first, x);
  } else {
    for (std::int64_t i = first; i < a.n; ++i) a.to[i] += a.from[i];
  }
}

/// Whether rows and heads of `x` begin at multiples of four floats.
bool in_fours(const thd_view<float>& x, std::int32_t dim) {
  return common_unit(dim * 4, x.data, nullptr) == 16 &&
         common_unit(x.row_stride * 4, nullptr, nullptr) == 16;
}

}  // namespace

cudaError_t prepare_partials() {
  return prepare_all(merge_kernel<4>, merge_kernel<1>, clear_kernel<4>, clear_kernel<1>,
                     add_kernel<4>, add_kernel<1>);
}

cudaError_t launch_merge(const merge_arguments& a, cudaStream_t stream) {
  const bool fours = in_fours(a.part.out, a.dim) && in_fours(a.total.out, a.dim);
  const row_lanes lanes = row_lanes::of(fours ? a.dim / 4 : a.dim);
  const launch_config config{
      .blocks = lanes.blocks(a.table.count == 0 ? 0 : std::int64_t{a.table.rows} * a.heads),
      .threads = row_lanes::threads, .stream = stream};
  const head_launch<merge_arguments> p{a, lanes};
  return fours ? launch(merge_kernel<4>, config, p) : launch(merge_kernel<1>, config, p);
}

cudaError_t launch_clear(const clear_arguments& a, cudaStream_t stream) {
  const bool fours = in_fours(a.out.out, a.dim);
  const row_lanes lanes = row_lanes::of(fours ? a.dim / 4 : a.dim);
  const launch_config config{.blocks = lanes.blocks(std::int64_t{a.rows} * a.heads),
                             .threads = row_lanes::threads, .stream = stream};
  const head_launch<clear_arguments> p{a, lanes};
  return fours ? launch(clear_kernel<4>, config, p) : launch(clear_kernel<1>, config, p);
}

cudaError_t launch_add(const add_arguments& a, cudaStream_t stream) {
  const bool fours = common_unit(0, a.to, a.from) == 16;
  const launch_config config{.blocks = ceil_div(a.n, add_threads * (fours ? 4 : 1)),
                             .threads = add_threads, .stream = stream};
  return fours ? launch(add_kernel<4>, config, a) : launch(add_kernel<1>, config, a);
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
