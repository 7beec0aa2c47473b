// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"
#include "kernels.hpp"
#include "launch.hpp"
#include "row_lanes.hpp"

#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int wide = 8;  // elements of an access, where rows allow it

template <class To, class From>
struct convert_launch {
  convert_arguments<To, From> a;
  row_lanes lanes;
};

/// One row per group of lanes.
template <class To, class From, int Unit>
__global__ void __launch_bounds__(row_lanes::threads)
    convert_kernel(const __grid_constant__ convert_launch<To, From> p) {
  const std::int64_t row = p.lanes.row(blockIdx.x, threadIdx.x);
  if (row >= p.a.rows) return;
  const From* const from = p.a.from.at(row, 0, 0);
  To* const to = p.a.to.at(row, 0, 0);
  const std::int64_t step = std::int64_t{Unit} << p.lanes.shift;
  for (std::int64_t c = Unit * p.lanes.lane(threadIdx.x); c < p.a.width; c += step) {
    float x[Unit];
    load_floats(from + c, x);
    store_floats(to + c, x);
  }
}

/// Whether rows of `x` consist of units of `unit` elements that are aligned as far as 16 bytes.
template <class T>
bool in_units(const thd_view<T>& x, std::int64_t width, int unit) {
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t needed = unit * bytes < 16 ? unit * bytes : 16;
  return width % unit == 0 && common_unit(width * bytes, x.data, nullptr) >= needed &&
         common_unit(x.row_stride * bytes, nullptr, nullptr) >= needed;
}

template <class To, class From>
cudaError_t prepare_pair() {
  return prepare_all(convert_kernel<To, From, wide>, convert_kernel<To, From, 1>);
}

}  // namespace

cudaError_t prepare_convert() {
  cudaError_t done = cudaSuccess;
  for (const auto prepare_one :
       {prepare_pair<bfloat16, float>, prepare_pair<float16, float>, prepare_pair<float, float>,
        prepare_pair<float, bfloat16>, prepare_pair<float, float16>}) {
    if (done == cudaSuccess) done = prepare_one();
  }
  return done;
}

template <class To, class From>
cudaError_t launch_convert(const convert_arguments<To, From>& a, cudaStream_t stream) {
  const bool units = in_units(a.to, a.width, wide) && in_units(a.from, a.width, wide);
  const row_lanes lanes = row_lanes::of(units ? a.width / wide : a.width);
  const launch_config config{.blocks = a.width == 0 ? 0 : lanes.blocks(a.rows),
                             .threads = row_lanes::threads, .stream = stream};
  const convert_launch<To, From> p{a, lanes};
  return units ? launch(convert_kernel<To, From, wide>, config, p)
               : launch(convert_kernel<To, From, 1>, config, p);
}

template cudaError_t launch_convert(const convert_arguments<bfloat16, float>&, cudaStream_t);
template cudaError_t launch_convert(const convert_arguments<float16, float>&, cudaStream_t);
template cudaError_t launch_convert(const convert_arguments<float, float>&, cudaStream_t);
template cudaError_t launch_convert(const convert_arguments<float, bfloat16>&, cudaStream_t);
template cudaError_t launch_convert(const convert_arguments<float, float16>&, cudaStream_t);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
