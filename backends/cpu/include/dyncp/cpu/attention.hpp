// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/attention/attention_provider.hpp>
#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cpu/attention_rows.hpp>
#include <dyncp/cpu/blocked_attention.hpp>
#include <dyncp/cpu/device.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <cstdint>
#include <memory>

namespace dyncp {
inline namespace v0 {
namespace cpu {

/// The CPU kernels behind a ring: `plain_attention` or `blocked_attention` on a device's streams.
///
/// Models `attention_provider` for bfloat16, float and double. Thread safety: belongs to the
/// thread of its rank; copies share the kernel's scratch.
template <class Kernel = blocked_attention>
class attention {
 public:
  attention() : kernel_(std::make_shared<Kernel>()) {}

  template <class T>
  [[nodiscard]] result<void> forward(device& d, device::stream s, const attention_shape& shape,
                                     const attention_step& step, const attention_operands<T>& in,
                                     const attention_partial<T>& out) {
    return d.run(s, [kernel = kernel_.get(), shape, step, in, out] {
      kernel->forward(shape, step.mask, step.segments, in, out);
    });
  }
  template <class T>
  [[nodiscard]] result<void> merge(device& d, device::stream s, const attention_shape& shape,
                                   const attention_step& step, const attention_partial<T>& part,
                                   const attention_partial<T>& total) {
    return d.run(s, [=] { merge_partials<T>(shape, step.segments, part, total); });
  }
  template <class T>
  [[nodiscard]] result<void> delta(device& d, device::stream s, const attention_shape& shape,
                                   const attention_step& step, thd_view<const T> out,
                                   thd_view<const T> dout, thd_view<accumulator_t<T>> to) {
    return d.run(s, [=] { attention_delta<T, T>(shape, step.segments, out, dout, to); });
  }
  template <class T>
  [[nodiscard]] result<void> backward(device& d, device::stream s, const attention_shape& shape,
                                      const attention_step& step,
                                      const attention_gradients<T>& io) {
    return d.run(s, [kernel = kernel_.get(), shape, step, io] {
      kernel->backward(shape, step.mask, step.segments, io);
    });
  }
  template <class T>
  [[nodiscard]] result<void> clear(device& d, device::stream s, const attention_shape& shape,
                                   std::int64_t rows, const attention_partial<T>& out) {
    return d.run(s, [=] { clear_partial<T>(shape, rows, out); });
  }
  template <class Sum>
  [[nodiscard]] result<void> add(device& d, device::stream s, Sum* to, const Sum* from,
                                 std::int64_t n) {
    return d.run(s, [=] {
      for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
    });
  }
  template <class Sum, class T>
  [[nodiscard]] result<void> convert(device& d, device::stream s, std::int64_t rows,
                                     std::int64_t width, thd_view<const Sum> from, thd_view<T> to) {
    return d.run(s, [=] { convert_rows<T, Sum>(rows, width, from, to); });
  }
  [[nodiscard]] result<void> supports(const attention_shape& shape) const {
    return validate(shape);
  }

 private:
  std::shared_ptr<Kernel> kernel_;
};

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
