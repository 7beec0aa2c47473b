// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/attention/attention_provider.hpp>
#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/device.hpp>
#include <dyncp/runtime/fabric.hpp>
#include <dyncp/runtime/message.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <cstdint>
#include <span>

// The least that the concepts ask for, and nothing else: what compiles with these compiles with
// every backend. Nothing here is ever run.

namespace dyncp_test::archetype {

using dyncp::result;

class stream {  // no default, no comparison: a handle from outside
 public:
  explicit stream(int) {}
};

class event {
 public:
  event(event&&) noexcept {}
  event& operator=(event&&) noexcept { return *this; }
};

class memory {
 public:
  memory() = default;
  memory(memory&&) noexcept {}
  memory& operator=(memory&&) noexcept { return *this; }
  void* data();
  std::int64_t bytes();
};

class device {
 public:
  using stream = archetype::stream;
  using event = archetype::event;
  class buffer : public memory {};
  class staging : public memory {};

  device(const device&) = delete;
  device& operator=(const device&) = delete;

  result<buffer> allocate(std::int64_t bytes);
  result<staging> allocate_staging(std::int64_t bytes);
  std::int64_t memory_in_use() const;
  stream comm_stream() const;
  result<event> make_event();
  result<void> record(event& e, stream s);
  result<void> wait(stream s, const event& e);
  result<void> fill_zero(void* to, std::int64_t bytes, stream s);
  result<void> copy(void* to, const void* from, std::int64_t bytes, stream s);
  result<void> copy_strided(void* to, std::int64_t to_stride, const void* from,
                            std::int64_t from_stride, std::int64_t row_bytes, std::int64_t rows,
                            stream s);
  result<void> upload(void* to, const void* from, std::int64_t bytes, stream s);
  result<void> download(void* to, const void* from, std::int64_t bytes, stream s);
  result<void> copy_rows(void* to, const void* from, std::span<const dyncp::row_copy> table,
                         std::int64_t rows, std::int64_t row_bytes, stream s);
};

class fabric {
 public:
  using stream = archetype::stream;
  class communicator {
   public:
    communicator(communicator&&) noexcept {}
    communicator& operator=(communicator&&) noexcept { return *this; }
    std::int32_t rank() const;
    std::int32_t size() const;
    std::uint64_t family() const;
  };

  fabric(const fabric&) = delete;
  fabric& operator=(const fabric&) = delete;

  std::int32_t rank() const;
  std::int32_t ranks() const;
  std::int64_t memory_in_use() const;
  result<communicator> open();
  result<communicator> split(communicator& parent, std::int32_t color, std::int32_t key);
  void close(communicator& comm);
  result<void> exchange(communicator& comm, std::span<const dyncp::outgoing> out,
                        std::span<const dyncp::incoming> in, stream s);
  result<void> exchange_host(communicator& comm, std::span<const dyncp::outgoing> out,
                             std::span<const dyncp::incoming> in);
  result<void> synchronize(stream s);
  void fail(communicator& comm, dyncp::error why);
  result<void> health(communicator& comm);
};

class backend {
 public:
  using device_type = archetype::device;
  using fabric_type = archetype::fabric;
  backend(const backend&) = delete;
  backend& operator=(const backend&) = delete;
  device_type& device();
  fabric_type& fabric();
};

template <class T>
class provider {
 public:
  using sum = dyncp::accumulator_t<T>;
  provider(provider&&) noexcept {}

  result<void> forward(device& d, stream s, const dyncp::attention_shape& shape,
                       const dyncp::attention_step& step, const dyncp::attention_operands<T>& in,
                       const dyncp::attention_partial<T>& out);
  result<void> merge(device& d, stream s, const dyncp::attention_shape& shape,
                     const dyncp::attention_step& step, const dyncp::attention_partial<T>& part,
                     const dyncp::attention_partial<T>& total);
  result<void> delta(device& d, stream s, const dyncp::attention_shape& shape,
                     const dyncp::attention_step& step, dyncp::thd_view<const T> out,
                     dyncp::thd_view<const T> dout, dyncp::thd_view<sum> to);
  result<void> backward(device& d, stream s, const dyncp::attention_shape& shape,
                        const dyncp::attention_step& step, const dyncp::attention_gradients<T>& io);
  result<void> clear(device& d, stream s, const dyncp::attention_shape& shape, std::int64_t rows,
                     const dyncp::attention_partial<T>& out);
  result<void> add(device& d, stream s, sum* to, const sum* from, std::int64_t n);
  result<void> convert(device& d, stream s, std::int64_t rows, std::int64_t width,
                       dyncp::thd_view<const sum> from, dyncp::thd_view<T> to);
  result<void> supports(const dyncp::attention_shape& shape) const;
};

static_assert(dyncp::device<device> && dyncp::fabric<fabric> && dyncp::backend<backend>);

}  // namespace dyncp_test::archetype
