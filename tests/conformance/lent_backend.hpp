// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/runner.hpp"

#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/float16.hpp>
#include <dyncp/cuda/attention.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/fabric_abi.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

namespace dyncp_test {

/// A CUDA backend with a stream to lend, as a trainer has one.
template <class Base>
class lent_backend {
 public:
  using device_type = typename Base::device_type;
  using fabric_type = typename Base::fabric_type;

  static result<lent_backend> make(result<Base> base) {
    if (!base) return std::move(base).error();
    lent_backend out(std::move(*base));
    auto s = out.device().make_stream();
    if (!s) return std::move(s).error();
    out.stream_.emplace(std::move(*s));
    return out;
  }
  [[nodiscard]] device_type& device() { return base_.device(); }
  [[nodiscard]] fabric_type& fabric() { return base_.fabric(); }
  [[nodiscard]] dyncp::cuda::stream stream() const { return stream_->get(); }

 private:
  explicit lent_backend(Base base) : base_(std::move(base)) {}
  Base base_;
  std::optional<dyncp::cuda::device::owned_stream> stream_;
};

template <class Base>
dyncp::cuda::stream caller_stream(lent_backend<Base>& backend) {
  return backend.stream();
}
template <class Base>
void let_others_run(lent_backend<Base>&) {
  for (int i = 0; i < 50; ++i) dyncp::cuda::abi::pause(2000);
}

/// The CUDA kernels for whatever elements a suite asks for, made at the first call.
class cuda_kernels {
 public:
  template <class T>
  result<void> forward(dyncp::cuda::device& d, dyncp::cuda::stream s,
                       const dyncp::attention_shape& shape, const dyncp::attention_step& step,
                       const dyncp::attention_operands<T>& in,
                       const dyncp::attention_partial<T>& out) {
    return of<T>(d).forward(d, s, shape, step, in, out);
  }
  template <class T>
  result<void> merge(dyncp::cuda::device& d, dyncp::cuda::stream s,
                     const dyncp::attention_shape& shape, const dyncp::attention_step& step,
                     const dyncp::attention_partial<T>& part,
                     const dyncp::attention_partial<T>& total) {
    return of<T>(d).merge(d, s, shape, step, part, total);
  }
  template <class T>
  result<void> delta(dyncp::cuda::device& d, dyncp::cuda::stream s,
                     const dyncp::attention_shape& shape, const dyncp::attention_step& step,
                     dyncp::thd_view<const T> out, dyncp::thd_view<const T> dout,
                     dyncp::thd_view<float> to) {
    return of<T>(d).delta(d, s, shape, step, out, dout, to);
  }
  template <class T>
  result<void> backward(dyncp::cuda::device& d, dyncp::cuda::stream s,
                        const dyncp::attention_shape& shape, const dyncp::attention_step& step,
                        const dyncp::attention_gradients<T>& io) {
    return of<T>(d).backward(d, s, shape, step, io);
  }
  template <class T>
  result<void> clear(dyncp::cuda::device& d, dyncp::cuda::stream s,
                     const dyncp::attention_shape& shape, std::int64_t rows,
                     const dyncp::attention_partial<T>& out) {
    return of<T>(d).clear(d, s, shape, rows, out);
  }
  result<void> add(dyncp::cuda::device& d, dyncp::cuda::stream s, float* to, const float* from,
                   std::int64_t n) {
    return of<float>(d).add(d, s, to, from, n);
  }
  template <class T>
  result<void> convert(dyncp::cuda::device& d, dyncp::cuda::stream s, std::int64_t rows,
                       std::int64_t width, dyncp::thd_view<const float> from,
                       dyncp::thd_view<T> to) {
    return of<T>(d).convert(d, s, rows, width, from, to);
  }
  result<void> supports(const dyncp::attention_shape& shape) const {
    return dyncp::validate(shape);
  }

 private:
  template <class T>
  dyncp::cuda::attention<T>& of(dyncp::cuda::device& d) {
    auto& kernels = std::get<std::optional<dyncp::cuda::attention<T>>>(kernels_);
    if (!kernels) kernels.emplace(d);
    return *kernels;
  }
  std::tuple<std::optional<dyncp::cuda::attention<float>>,
             std::optional<dyncp::cuda::attention<dyncp::bfloat16>>,
             std::optional<dyncp::cuda::attention<dyncp::float16>>>
      kernels_;
};

}  // namespace dyncp_test
