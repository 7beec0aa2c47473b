// SPDX-License-Identifier: Apache-2.0
#include "build_config.hpp"
#include "device_state.hpp"
#include "kernels.hpp"
#include "status.hpp"

#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>
#include <dyncp/cuda/abi.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace {

template <class T>
thd_view<const T> view(const abi::rows_in& rows) {
  return {static_cast<const T*>(rows.data), rows.row_stride};
}
template <class T>
thd_view<T> view(const abi::rows_out& rows) {
  return {static_cast<T*>(rows.data), rows.row_stride};
}

segment_table table_of(const abi::step_call& step) {
  return {step.segments, step.count, step.q_rows};
}

template <class T>
struct type_tag {
  using type = T;
};

/// f(type_tag<T>) for the 2-byte types.
template <class F>
cudaError_t with_half_type(element type, F f) {
  return type == element::bfloat16 ? f(type_tag<bfloat16>{}) : f(type_tag<float16>{});
}

/// f(std::integral_constant<int, dim>) if attention was compiled for `dim`.
template <class F, int... Dims>
cudaError_t with_dim(std::int32_t dim, F f, std::integer_sequence<int, Dims...>) {
  cudaError_t done = cudaErrorInvalidValue;
  const auto attempt = [&](auto candidate) {
    // The list ends with 0, which nothing was compiled for.
    if constexpr (candidate.value != 0) {
      if (candidate.value == dim) done = f(candidate);
    }
  };
  (attempt(std::integral_constant<int, Dims>{}), ...);
  return done;
}
using head_dims = std::integer_sequence<int, DYNCP_CUDA_HEAD_DIMS 0>;

constexpr float log2_e = 1.44269504088896340736F;

/// The kernels read rows and heads in units of 16 bytes.
abi::status check_aligned(const char* name, const void* data, std::int64_t row_stride,
                          std::int64_t element_bytes, std::int32_t rank) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_stride * element_bytes % 16 == 0) {
    return {};
  }
  return failure(errc::invalid_argument, "align the array and its rows to 16 bytes",
                 "rank %d: rows of %s are not aligned: address %p, %lld bytes apart",
                 static_cast<int>(rank), name, data,
                 static_cast<long long>(row_stride * element_bytes));
}

/// The kernels of the head sizes that attention was compiled for; what a block of this GPU has no
/// shared memory for, `supports` refuses.
template <class T, int... Dims>
cudaError_t prepare_attention(std::int64_t shared_bytes, std::integer_sequence<int, Dims...>) {
  cudaError_t done = cudaSuccess;
  const auto attempt = [&](auto dim) {
    if constexpr (dim.value != 0) {
      if (backward_shared_bytes(dim.value) > shared_bytes) return;
      if (done == cudaSuccess) done = prepare_forward<T, dim.value>();
      if (done == cudaSuccess) done = prepare_backward<T, dim.value>();
    }
  };
  (attempt(std::integral_constant<int, Dims>{}), ...);
  return done;
}

}  // namespace

cudaError_t prepare_kernels(std::int64_t shared_bytes) {
  cudaError_t done = cudaSuccess;
  for (const auto prepare : {prepare_copy_rows, prepare_thd_rows, prepare_partials, prepare_delta,
                             prepare_convert, prepare_plain}) {
    if (done == cudaSuccess) done = prepare();
  }
  if (done == cudaSuccess) done = prepare_attention<bfloat16>(shared_bytes, head_dims{});
  if (done == cudaSuccess) done = prepare_attention<float16>(shared_bytes, head_dims{});
  return done;
}

namespace abi {

status supports(const attention_shape& shape, element type, std::int64_t shared_bytes) {
  if (type == element::float32) return {};
  if (shape.qk_dim != shape.v_dim ||
      with_dim(shape.qk_dim, [](auto) { return cudaSuccess; }, head_dims{}) != cudaSuccess) {
    status s = failure(errc::unsupported,
                       "choose one of -Dhead_dims, the same for q, k and v, or build with more",
                       "no CUDA kernel for head sizes %d and %d", static_cast<int>(shape.qk_dim),
                       static_cast<int>(shape.v_dim));
    s.value = shape.qk_dim;
    return s;
  }
  if (!(shape.scale > 0)) {
    return failure(errc::unsupported, "fold the sign into q",
                   "the CUDA kernels need a scale above 0, not %g", shape.scale);
  }
  const std::int64_t needed = backward_shared_bytes(shape.qk_dim);
  if (shared_bytes < needed) {
    status s = failure(errc::unsupported, "use a GPU of compute capability 8.0, or 9.0 and up",
                       "attention needs %lld bytes of shared memory for a block, the GPU has %lld",
                       static_cast<long long>(needed), static_cast<long long>(shared_bytes));
    s.value = needed;
    s.limit = shared_bytes;
    return s;
  }
  return {};
}

std::int64_t backward_workspace_bytes(const step_call& step) {
  if (step.type == element::float32) return 0;
  const std::int64_t tiles = std::int64_t{step.q_rows} / backward_queries + step.count;
  return static_cast<std::int64_t>(sizeof(std::int32_t)) * (1 + step.shape.q_heads * tiles);
}

status attention_forward(device_state* d, const forward_call& c, stream s) {
  DYNCP_ON_DEVICE(*d);
  const std::int32_t rank = d->facts.rank;
  const step_call& step = c.step;
  const auto scale = static_cast<float>(step.shape.scale);
  const bool causal = step.mask == attention_mask::causal;
  const partial_view out{view<float>(c.out), view<float>(c.lse)};
  if (step.type == element::float32) {
    return cuda_status(
        launch_plain_forward({table_of(step), view<float>(c.q), view<float>(c.k), view<float>(c.v),
                              out, step.shape.q_heads, step.shape.group(), step.shape.qk_dim,
                              step.shape.v_dim, causal, scale}, s),
        "attention_forward", rank);
  }
  DYNCP_CUDA_TRY(supports(step.shape, step.type, d->facts.shared_bytes));
  DYNCP_CUDA_TRY(check_aligned("q", c.q.data, c.q.row_stride, 2, rank));
  DYNCP_CUDA_TRY(check_aligned("k", c.k.data, c.k.row_stride, 2, rank));
  DYNCP_CUDA_TRY(check_aligned("v", c.v.data, c.v.row_stride, 2, rank));
  DYNCP_CUDA_TRY(check_aligned("the output", c.out.data, c.out.row_stride, 4, rank));
  const auto launched = with_half_type(step.type, [&](auto tag) {
    using type = typename decltype(tag)::type;
    return with_dim(step.shape.qk_dim, [&](auto dim) {
      return launch_forward<type, dim.value>(
          {table_of(step), view<type>(c.q), view<type>(c.k), view<type>(c.v), out,
           step.shape.q_heads, step.shape.group(), causal, scale, scale * log2_e}, s);
    }, head_dims{});
  });
  return cuda_status(launched, "attention_forward", rank);
}

status attention_backward(device_state* d, const backward_call& c, stream s) {
  DYNCP_ON_DEVICE(*d);
  const std::int32_t rank = d->facts.rank;
  const step_call& step = c.step;
  const auto scale = static_cast<float>(step.shape.scale);
  const bool causal = step.mask == attention_mask::causal;
  if (step.type == element::float32) {
    return cuda_status(
        launch_plain_backward(
            {table_of(step), step.kv_rows, view<float>(c.q), view<float>(c.k), view<float>(c.v),
             view<float>(c.dout), view<float>(c.lse), view<float>(c.delta), view<float>(c.dq),
             view<float>(c.dk), view<float>(c.dv), step.shape.q_heads, step.shape.group(),
             step.shape.qk_dim, step.shape.v_dim, causal, scale}, s),
        "attention_backward", rank);
  }
  DYNCP_CUDA_TRY(supports(step.shape, step.type, d->facts.shared_bytes));
  const struct {
    const char* name;
    const void* data;
    std::int64_t row_stride;
    std::int64_t bytes;
  } arrays[] = {{"q", c.q.data, c.q.row_stride, 2},          {"k", c.k.data, c.k.row_stride, 2},
                {"v", c.v.data, c.v.row_stride, 2},
                {"dout", c.dout.data, c.dout.row_stride, 2},
                {"dq", c.dq.data, c.dq.row_stride, 4},       {"dk", c.dk.data, c.dk.row_stride, 4},
                {"dv", c.dv.data, c.dv.row_stride, 4}};
  for (const auto& a : arrays) {
    DYNCP_CUDA_TRY(check_aligned(a.name, a.data, a.row_stride, a.bytes, rank));
  }
  auto* const ticket = static_cast<std::int32_t*>(c.workspace);
  if (ticket != nullptr) {
    DYNCP_CUDA_CALL(rank, cudaMemsetAsync, ticket, 0,
                    static_cast<std::size_t>(backward_workspace_bytes(step)), s);
  }
  const auto launched = with_half_type(step.type, [&](auto tag) {
    using type = typename decltype(tag)::type;
    return with_dim(step.shape.qk_dim, [&](auto dim) {
      return launch_backward<type, dim.value>(
          {table_of(step), step.kv_rows, view<type>(c.q), view<type>(c.k), view<type>(c.v),
           view<type>(c.dout), view<float>(c.lse), view<float>(c.delta), view<float>(c.dq),
           view<float>(c.dk), view<float>(c.dv), step.shape.q_heads, step.shape.group(), causal,
           scale, scale * log2_e, ticket, ticket == nullptr ? nullptr : ticket + 1, 0, 0}, s);
    }, head_dims{});
  });
  return cuda_status(launched, "attention_backward", rank);
}

status merge(device_state* d, const merge_call& c, stream s) {
  DYNCP_ON_DEVICE(*d);
  // The kernel reads the part, it does not change it.
  const partial_view part{{static_cast<float*>(const_cast<void*>(c.part_out.data)),
                           c.part_out.row_stride},
                          {static_cast<float*>(const_cast<void*>(c.part_lse.data)),
                           c.part_lse.row_stride}};
  return cuda_status(launch_merge({table_of(c.step), part,
                                   {view<float>(c.out), view<float>(c.lse)}, c.step.shape.q_heads,
                                   c.step.shape.v_dim}, s),
                     "merge", d->facts.rank);
}

status delta(device_state* d, const delta_call& c, stream s) {
  DYNCP_ON_DEVICE(*d);
  const auto launch_as = [&](auto tag) {
    using type = typename decltype(tag)::type;
    return launch_delta<type>({table_of(c.step), view<type>(c.out), view<type>(c.dout),
                               view<float>(c.delta), c.step.shape.q_heads, c.step.shape.v_dim}, s);
  };
  return cuda_status(c.step.type == element::float32 ? launch_as(type_tag<float>{})
                                                     : with_half_type(c.step.type, launch_as),
                     "delta", d->facts.rank);
}

status clear(device_state* d, const clear_call& c, stream s) {
  DYNCP_ON_DEVICE(*d);
  return cuda_status(
      launch_clear({{view<float>(c.out), view<float>(c.lse)}, c.rows, c.heads, c.dim}, s), "clear",
      d->facts.rank);
}

status add(device_state* d, float* to, const float* from, std::int64_t n, stream s) {
  DYNCP_ON_DEVICE(*d);
  return cuda_status(launch_add({to, from, n}, s), "add", d->facts.rank);
}

status convert(device_state* d, const convert_call& c, stream s) {
  DYNCP_ON_DEVICE(*d);
  const auto launch_as = [&](auto to, auto from) {
    using to_type = typename decltype(to)::type;
    using from_type = typename decltype(from)::type;
    return launch_convert<to_type, from_type>(
        {view<to_type>(c.to), view<from_type>(c.from), c.rows, c.width}, s);
  };
  cudaError_t launched = cudaErrorInvalidValue;  // between two 2-byte types
  if (c.from_type == element::float32) {
    launched = c.to_type == element::float32
                   ? launch_as(type_tag<float>{}, type_tag<float>{})
                   : with_half_type(c.to_type, [&](auto to) {
                       return launch_as(to, type_tag<float>{});
                     });
  } else if (c.to_type == element::float32) {
    launched = with_half_type(c.from_type,
                              [&](auto from) { return launch_as(type_tag<float>{}, from); });
  }
  return cuda_status(launched, "convert", d->facts.rank);
}

status move_rows(device_state* d, const move_rows_call& c, stream s) {
  DYNCP_ON_DEVICE(*d);
  return cuda_status(launch_thd_rows({c.pack, c.kind, c.rank, c.zero_padding != 0, c.to, c.from,
                                      c.row_bytes}, c.sequence_rows, s),
                     "move_rows", d->facts.rank);
}

}  // namespace abi
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
