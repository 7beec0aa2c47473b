// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels as the host code of the library sees them: arguments, and functions that launch.
// Compiled by nvcc and by the host compiler; pointers are to device memory. Before the first launch
// on a device, `prepare_...` has run there.

#include <dyncp/cuda/abi.hpp>
#include <dyncp/runtime/device.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// Copies `rows` rows of `row_bytes`, described by the `entries` of `table`.
struct copy_rows_arguments {
  void* to;
  const void* from;
  const row_copy* table;
  std::int64_t entries;
  std::int64_t rows;
  std::int64_t row_bytes;
};
[[nodiscard]] cudaError_t prepare_copy_rows();
[[nodiscard]] cudaError_t launch_copy_rows(const copy_rows_arguments& a, cudaStream_t stream);

/// Rows between a whole pack and one rank. The chunk moves go between the local rows of a rank in
/// the zigzag layout and dense rows that hold the first (or second) chunk of one sequence after the
/// other.
struct thd_rows_arguments {
  pack_view pack;  // with device pointers
  abi::row_move_kind kind;
  std::int32_t rank;
  bool zero_padding;  // instead of copying rows that hold no token
  void* to;
  const void* from;
  std::int64_t row_bytes;
};
[[nodiscard]] cudaError_t prepare_thd_rows();
[[nodiscard]] cudaError_t launch_thd_rows(const thd_rows_arguments& a, std::int32_t sequence_rows,
                                          cudaStream_t stream);

/// The segments of a step, and the local rows of q that they lie in.
struct segment_table {
  const attention_segment* segments;
  std::int32_t count;
  std::int32_t rows;
};

/// out (rows, heads, dim) and lse (rows, heads).
struct partial_view {
  thd_view<float> out;
  thd_view<float> lse;
};

/// The kernels of merge, clear and add.
[[nodiscard]] cudaError_t prepare_partials();

/// total = the partial over the keys of both, on the rows of segments that have keys.
struct merge_arguments {
  segment_table table;
  partial_view part;
  partial_view total;
  std::int32_t heads;
  std::int32_t dim;
};
[[nodiscard]] cudaError_t launch_merge(const merge_arguments& a, cudaStream_t stream);

/// out = 0, lse = -inf on rows [0, rows).
struct clear_arguments {
  partial_view out;
  std::int32_t rows;
  std::int32_t heads;
  std::int32_t dim;
};
[[nodiscard]] cudaError_t launch_clear(const clear_arguments& a, cudaStream_t stream);

/// to += from, n floats.
struct add_arguments {
  float* to;
  const float* from;
  std::int64_t n;
};
[[nodiscard]] cudaError_t launch_add(const add_arguments& a, cudaStream_t stream);

/// delta (rows, heads) = sum over dim of out * dout, on the rows of the segments.
template <class T>
struct delta_arguments {
  segment_table table;
  thd_view<const T> out;
  thd_view<const T> dout;
  thd_view<float> delta;
  std::int32_t heads;
  std::int32_t dim;
};
[[nodiscard]] cudaError_t prepare_delta();
template <class T>
[[nodiscard]] cudaError_t launch_delta(const delta_arguments<T>& a, cudaStream_t stream);

/// to = from, rounded to nearest, on rows [0, rows) of `width` elements.
template <class To, class From>
struct convert_arguments {
  thd_view<To> to;
  thd_view<const From> from;
  std::int64_t rows;
  std::int64_t width;
};
[[nodiscard]] cudaError_t prepare_convert();
template <class To, class From>
[[nodiscard]] cudaError_t launch_convert(const convert_arguments<To, From>& a,
                                         cudaStream_t stream);

/// Writes the partial over the keys of each segment, on its query rows.
template <class T>
struct forward_arguments {
  segment_table table;
  thd_view<const T> q;
  thd_view<const T> k;
  thd_view<const T> v;
  partial_view out;
  std::int32_t heads;
  std::int32_t group;  // query heads for each head of k and v
  bool causal;
  float scale;
  float scale_log2;  // scale / ln 2
};
template <class T, int Dim>
[[nodiscard]] cudaError_t prepare_forward();
template <class T, int Dim>
[[nodiscard]] cudaError_t launch_forward(const forward_arguments<T>& a, cudaStream_t stream);

/// Keys of a block and queries of a tile of the backward kernel.
inline constexpr int backward_keys = 128;
inline constexpr int backward_queries = 64;

/// Shared memory of a block for a head size, of which the forward kernel needs less.
constexpr std::int64_t backward_shared_bytes(std::int64_t dim) {
  // k, v, two stages of q and dout; weights and their gradients; lse and delta; the block's work.
  return 2 * (2 * backward_keys + 4 * backward_queries) * dim +
         4 * backward_keys * backward_queries + 16 * backward_queries + 32;
}

/// Adds the gradients of the segments to dq, dk and dv.
///
/// With `turns` additions to dq come in a fixed order; it has a counter for each tile of queries
/// and head: heads * (table.rows / backward_queries + table.count).
template <class T>
struct backward_arguments {
  segment_table table;
  std::int32_t kv_rows;
  thd_view<const T> q;
  thd_view<const T> k;
  thd_view<const T> v;
  thd_view<const T> dout;
  thd_view<const float> lse;
  thd_view<const float> delta;
  thd_view<float> dq;
  thd_view<float> dk;
  thd_view<float> dv;
  std::int32_t heads;
  std::int32_t group;
  bool causal;
  float scale;
  float scale_log2;
  std::int32_t* ticket;
  std::int32_t* turns;
  // Filled in by launch_backward.
  std::int32_t kv_heads;
  std::int32_t turn_slots;
};
template <class T, int Dim>
[[nodiscard]] cudaError_t prepare_backward();
template <class T, int Dim>
[[nodiscard]] cudaError_t launch_backward(const backward_arguments<T>& a, cudaStream_t stream);

/// The same in float, for head sizes of any kind.
[[nodiscard]] cudaError_t prepare_plain();
struct plain_forward_arguments {
  segment_table table;
  thd_view<const float> q;
  thd_view<const float> k;
  thd_view<const float> v;
  partial_view out;
  std::int32_t heads;
  std::int32_t group;
  std::int32_t qk_dim;
  std::int32_t v_dim;
  bool causal;
  float scale;
};
[[nodiscard]] cudaError_t launch_plain_forward(const plain_forward_arguments& a,
                                               cudaStream_t stream);
struct plain_backward_arguments {
  segment_table table;
  std::int32_t kv_rows;
  thd_view<const float> q;
  thd_view<const float> k;
  thd_view<const float> v;
  thd_view<const float> dout;
  thd_view<const float> lse;
  thd_view<const float> delta;
  thd_view<float> dq;
  thd_view<float> dk;
  thd_view<float> dv;
  std::int32_t heads;
  std::int32_t group;
  std::int32_t qk_dim;
  std::int32_t v_dim;
  bool causal;
  float scale;
};
[[nodiscard]] cudaError_t launch_plain_backward(const plain_backward_arguments& a,
                                                cudaStream_t stream);

/// All of them, on the current device. `shared_bytes`: device_facts.
[[nodiscard]] cudaError_t prepare_kernels(std::int64_t shared_bytes);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
