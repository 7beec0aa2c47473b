// SPDX-License-Identifier: Apache-2.0
// Attention in float for any head size, as it is defined: what the other kernels are checked by on
// a GPU. A thread has one row and head; nothing is shared, so additions come in a fixed order.
#include "kernels.hpp"
#include "launch.hpp"
#include "segments.hpp"

#include <dyncp/core/int_math.hpp>

#include <cmath>
#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int threads = 128;

DYNCP_DEVICE float dot(const float* x, const float* y, std::int32_t n) {
  float sum = 0;
  for (std::int32_t c = 0; c < n; ++c) sum += x[c] * y[c];
  return sum;
}

/// A row of one side of the segments and a head; `exists` if a segment holds the row.
struct row_and_head {
  attention_segment segment;
  std::int32_t row = 0;  // in its segment
  std::int32_t head = 0;
  bool exists = false;
};

template <segment_side Side>
DYNCP_DEVICE row_and_head place_of(const attention_segment* segments, std::int32_t count,
                                   std::int32_t rows, std::int32_t heads) {
  row_and_head place;
  const std::int64_t index = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  const std::int64_t row = index / heads;
  if (row >= rows) return place;
  const std::int32_t s = segment_at<Side>(segments, count, static_cast<std::int32_t>(row));
  if (s < 0) return place;
  place.segment = segments[s];
  place.row = static_cast<std::int32_t>(row) - first_row<Side>(place.segment);
  place.head = static_cast<std::int32_t>(index - row * heads);
  place.exists = place.row < row_count<Side>(place.segment);
  return place;
}

__global__ void __launch_bounds__(threads)
    plain_forward_kernel(const __grid_constant__ plain_forward_arguments a) {
  const row_and_head place = place_of<segment_side::queries>(a.table.segments, a.table.count,
                                                             a.table.rows, a.heads);
  if (!place.exists) return;
  const std::int64_t row = place.segment.q_row + place.row;
  const std::int32_t keys = a.causal ? place.row + 1 : place.segment.kv_rows;
  const std::int32_t kv_head = place.head / a.group;
  const float* const q = a.q.at(row, place.head, a.qk_dim);
  float* const out = a.out.out.at(row, place.head, a.v_dim);
  float* const lse = a.out.lse.at(row, place.head, 1);
  for (std::int32_t c = 0; c < a.v_dim; ++c) out[c] = 0;
  float largest = -INFINITY;
  for (std::int32_t j = 0; j < keys; ++j) {
    const float score = a.scale * dot(q, a.k.at(place.segment.kv_row + j, kv_head, a.qk_dim),
                                      a.qk_dim);
    if (score > largest || score != score) largest = score;  // a NaN stays
  }
  if (largest == -INFINITY) {
    *lse = largest;
    return;
  }
  float sum = 0;
  for (std::int32_t j = 0; j < keys; ++j) {
    const std::int64_t key = place.segment.kv_row + j;
    const float p = expf(a.scale * dot(q, a.k.at(key, kv_head, a.qk_dim), a.qk_dim) - largest);
    if (p == 0.0F) continue;
    sum += p;
    const float* const v = a.v.at(key, kv_head, a.v_dim);
    for (std::int32_t c = 0; c < a.v_dim; ++c) out[c] += p * v[c];
  }
  for (std::int32_t c = 0; c < a.v_dim; ++c) out[c] /= sum;
  *lse = largest + logf(sum);
}

/// What one pair of query and key adds: p to dv, ds to dq and dk.
struct pair_weights {
  float p = 0;
  float ds = 0;
};

DYNCP_DEVICE pair_weights weights_of(const plain_backward_arguments& a, std::int64_t row,
                                     std::int32_t head, std::int64_t key) {
  const float lse = *a.lse.at(row, head, 1);
  if (lse == -INFINITY) return {};
  const std::int32_t kv_head = head / a.group;
  const float score = a.scale * dot(a.q.at(row, head, a.qk_dim), a.k.at(key, kv_head, a.qk_dim),
                                    a.qk_dim);
  const float p = expf(score - lse);
  if (p == 0.0F) return {};
  const float dp = dot(a.dout.at(row, head, a.v_dim), a.v.at(key, kv_head, a.v_dim), a.v_dim);
  return {p, a.scale * p * (dp - *a.delta.at(row, head, 1))};
}

__global__ void __launch_bounds__(threads)
    plain_query_gradient_kernel(const __grid_constant__ plain_backward_arguments a) {
  const row_and_head place = place_of<segment_side::queries>(a.table.segments, a.table.count,
                                                             a.table.rows, a.heads);
  if (!place.exists) return;
  const std::int64_t row = place.segment.q_row + place.row;
  const std::int32_t keys = a.causal ? place.row + 1 : place.segment.kv_rows;
  float* const dq = a.dq.at(row, place.head, a.qk_dim);
  for (std::int32_t j = 0; j < keys; ++j) {
    const std::int64_t key = place.segment.kv_row + j;
    const pair_weights w = weights_of(a, row, place.head, key);
    if (w.p == 0.0F) continue;
    const float* const k = a.k.at(key, place.head / a.group, a.qk_dim);
    for (std::int32_t c = 0; c < a.qk_dim; ++c) dq[c] += w.ds * k[c];
  }
}

__global__ void __launch_bounds__(threads)
    plain_key_gradient_kernel(const __grid_constant__ plain_backward_arguments a) {
  const row_and_head place = place_of<segment_side::keys>(a.table.segments, a.table.count,
                                                          a.kv_rows, a.heads / a.group);
  if (!place.exists) return;
  const std::int64_t key = place.segment.kv_row + place.row;
  float* const dk = a.dk.at(key, place.head, a.qk_dim);
  float* const dv = a.dv.at(key, place.head, a.v_dim);
  for (std::int32_t g = 0; g < a.group; ++g) {
    const std::int32_t head = place.head * a.group + g;
    for (std::int32_t i = a.causal ? place.row : 0; i < place.segment.q_rows; ++i) {
      const std::int64_t row = place.segment.q_row + i;
      const pair_weights w = weights_of(a, row, head, key);
      if (w.p == 0.0F) continue;
      const float* const q = a.q.at(row, head, a.qk_dim);
      const float* const dout = a.dout.at(row, head, a.v_dim);
      for (std::int32_t c = 0; c < a.qk_dim; ++c) dk[c] += w.ds * q[c];
      for (std::int32_t c = 0; c < a.v_dim; ++c) dv[c] += w.p * dout[c];
    }
  }
}

std::int64_t blocks_for(std::int64_t rows, std::int64_t heads, std::int32_t segments) {
  return segments == 0 ? 0 : ceil_div(rows * heads, threads);
}

}  // namespace

cudaError_t prepare_plain() {
  return prepare_all(plain_forward_kernel, plain_query_gradient_kernel, plain_key_gradient_kernel);
}

cudaError_t launch_plain_forward(const plain_forward_arguments& a, cudaStream_t stream) {
  return launch(plain_forward_kernel,
                {.blocks = blocks_for(a.table.rows, a.heads, a.table.count), .threads = threads,
                 .stream = stream}, a);
}

cudaError_t launch_plain_backward(const plain_backward_arguments& a, cudaStream_t stream) {
  const cudaError_t queries =
      launch(plain_query_gradient_kernel,
             {.blocks = blocks_for(a.table.rows, a.heads, a.table.count), .threads = threads,
              .stream = stream}, a);
  if (queries != cudaSuccess) return queries;
  return launch(plain_key_gradient_kernel,
                {.blocks = blocks_for(a.kv_rows, a.heads / a.group, a.table.count),
                 .threads = threads, .stream = stream}, a);
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
