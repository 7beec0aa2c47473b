// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/cuda/attention.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp_test {

/// Waits as a fabric does: by asking.
inline void finish(dyncp::cuda::device& d, dyncp::cuda::stream s) {
  for (;;) {
    const auto done = d.poll(s);
    REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().message()));
    if (*done) return;
  }
}

/// A host array (rows, width) with room between the rows, as the GPU has it while it lives.
template <class T>
class device_copy {
 public:
  /// Rows keep their distance, rounded up so that each begins at a multiple of 16 bytes.
  device_copy(dyncp::cuda::device& d, dyncp::cuda::stream s, dyncp::thd_view<T> host,
              std::int64_t rows, std::int64_t width)
      : device_(&d), stream_(s), host_(host), rows_(rows), width_(width) {
    constexpr std::int64_t unit = 16 / sizeof(T);
    stride_ = dyncp::round_up(std::max(width, host.row_stride), unit);
    const std::int64_t bytes = rows * stride_ * static_cast<std::int64_t>(sizeof(T));
    memory_ = d.allocate(bytes).value();
    staging_ = d.allocate_staging(bytes).value();
    if (bytes > 0) std::memset(staging_.data(), 0xff, static_cast<std::size_t>(bytes));
    each_row([](value* device, const value* from, std::size_t n) { std::memcpy(device, from, n); });
    REQUIRE(d.upload(memory_.data(), staging_.data(), bytes, s));
  }
  [[nodiscard]] dyncp::thd_view<T> view() { return {static_cast<T*>(memory_.data()), stride_}; }

  /// Back to the host.
  void fetch() {
    REQUIRE(device_->download(staging_.data(), memory_.data(), memory_.bytes(), stream_));
    finish(*device_, stream_);
    each_row([](const value* device, value* to, std::size_t n) { std::memcpy(to, device, n); });
  }

 private:
  using value = std::remove_const_t<T>;
  template <class F>
  void each_row(F f) {
    if (width_ == 0) return;
    for (std::int64_t r = 0; r < rows_; ++r) {
      f(static_cast<value*>(staging_.data()) + r * stride_,
        const_cast<value*>(host_.data) + r * host_.row_stride,
        static_cast<std::size_t>(width_) * sizeof(T));
    }
  }

  dyncp::cuda::device* device_;
  dyncp::cuda::stream stream_;
  dyncp::thd_view<T> host_;
  std::int64_t rows_;
  std::int64_t width_;
  std::int64_t stride_ = 0;
  dyncp::cuda::device::buffer memory_;
  dyncp::cuda::device::staging staging_;
};

/// The CUDA kernels behind the interface of the CPU ones, on host arrays. A machine lives around
/// it.
class cuda_kernel {
 public:
  explicit cuda_kernel(dyncp::cuda::attention_options options = {})
      : options_(options), device_(dyncp::cuda::device::open({}).value()),
        stream_(device_.make_stream().value()) {}

  template <class T>
  void forward(const dyncp::attention_shape& shape, dyncp::attention_mask mask,
               std::span<const dyncp::attention_segment> segments,
               const dyncp::attention_operands<T>& in, const dyncp::attention_partial<T>& out) {
    const sizes n(segments);
    auto table = upload(segments);
    device_copy<const T> q(device_, stream(), in.q, n.q_rows, shape.q_heads * shape.qk_dim);
    device_copy<const T> k(device_, stream(), in.k, n.kv_rows, shape.kv_heads * shape.qk_dim);
    device_copy<const T> v(device_, stream(), in.v, n.kv_rows, shape.kv_heads * shape.v_dim);
    device_copy<float> o(device_, stream(), out.out, n.q_rows, shape.q_heads * shape.v_dim);
    device_copy<float> lse(device_, stream(), out.lse, n.q_rows, shape.q_heads);
    dyncp::cuda::attention<T> kernels(device_, options_);
    check(kernels.forward(device_, stream(), shape, step(table, segments, mask, n),
                          {q.view(), k.view(), v.view()}, {o.view(), lse.view()}));
    o.fetch();
    lse.fetch();
  }

  template <class T>
  void backward(const dyncp::attention_shape& shape, dyncp::attention_mask mask,
                std::span<const dyncp::attention_segment> segments,
                const dyncp::attention_gradients<T>& io) {
    const sizes n(segments);
    const std::int64_t q_width = shape.q_heads * shape.qk_dim;
    const std::int64_t k_width = shape.kv_heads * shape.qk_dim;
    const std::int64_t v_width = shape.kv_heads * shape.v_dim;
    auto table = upload(segments);
    device_copy<const T> q(device_, stream(), io.q, n.q_rows, q_width);
    device_copy<const T> k(device_, stream(), io.k, n.kv_rows, k_width);
    device_copy<const T> v(device_, stream(), io.v, n.kv_rows, v_width);
    device_copy<const T> dout(device_, stream(), io.dout, n.q_rows, shape.q_heads * shape.v_dim);
    device_copy<const float> lse(device_, stream(), io.lse, n.q_rows, shape.q_heads);
    device_copy<const float> delta(device_, stream(), io.delta, n.q_rows, shape.q_heads);
    device_copy<float> dq(device_, stream(), io.dq, n.q_rows, q_width);
    device_copy<float> dk(device_, stream(), io.dk, n.kv_rows, k_width);
    device_copy<float> dv(device_, stream(), io.dv, n.kv_rows, v_width);
    {
      dyncp::cuda::attention<T> kernels(device_, options_);
      check(kernels.backward(device_, stream(), shape, step(table, segments, mask, n),
                             {q.view(), k.view(), v.view(), dout.view(), lse.view(), delta.view(),
                              dq.view(), dk.view(), dv.view()}));
      dq.fetch();
    }
    dk.fetch();
    dv.fetch();
  }

  [[nodiscard]] dyncp::cuda::device& device() { return device_; }
  [[nodiscard]] dyncp::cuda::stream stream() const { return stream_.get(); }

  [[nodiscard]] dyncp::cuda::device::buffer upload(
      std::span<const dyncp::attention_segment> segments) {
    const auto bytes = static_cast<std::int64_t>(segments.size_bytes());
    auto memory = device_.allocate(bytes).value();
    auto host = device_.allocate_staging(bytes).value();
    if (bytes > 0) std::memcpy(host.data(), segments.data(), segments.size_bytes());
    check(device_.upload(memory.data(), host.data(), bytes, stream()));
    finish(device_, stream());
    return memory;
  }

 private:
  struct sizes {
    std::int32_t q_rows = 0;
    std::int32_t kv_rows = 0;
    explicit sizes(std::span<const dyncp::attention_segment> segments) {
      for (const auto& s : segments) {
        q_rows = std::max(q_rows, s.q_row + s.q_rows);
        kv_rows = std::max(kv_rows, s.kv_row + s.kv_rows);
      }
    }
  };
  static dyncp::attention_step step(dyncp::cuda::device::buffer& table,
                                    std::span<const dyncp::attention_segment> segments,
                                    dyncp::attention_mask mask, const sizes& n) {
    return {{static_cast<const dyncp::attention_segment*>(table.data()), segments.size()}, mask,
            n.q_rows, n.kv_rows};
  }
  static void check(const dyncp::result<void>& done) {
    REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().message()));
  }

  dyncp::cuda::attention_options options_;
  dyncp::cuda::device device_;
  dyncp::cuda::device::owned_stream stream_;
};

}  // namespace dyncp_test
