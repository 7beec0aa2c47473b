// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>

#include <concepts>
#include <cstdint>
#include <span>

namespace dyncp {
inline namespace v0 {

/// `rows` consecutive rows to copy from row `src` to row `dst`, or to set to zero if src < 0.
///
/// A table of copies is sorted by `begin`, the number of rows of all copies before it, so that a
/// kernel with one thread per row finds its copy by binary search (Complexity: grid over rows,
/// whatever the lengths are).
struct row_copy {
  std::int64_t begin = 0;
  std::int64_t dst = 0;
  std::int64_t src = 0;
  std::int64_t rows = 0;

  friend constexpr bool operator==(const row_copy&, const row_copy&) = default;
};

/// Every allocation of a device begins at a multiple of this.
inline constexpr std::int64_t device_alignment_bytes = 256;

/// Memory, streams and events of one accelerator, or of the host that stands for one.
///
/// - A `stream` is a handle, copied freely; work on it runs in order, work on two streams in any
///   order unless an event joins them. The caller's streams come from outside; the device owns one
///   communication stream, `comm_stream()`, that carries the exchanges of all groups, which gives
///   them one total order.
/// - A call returns when the work is queued, not when it is done; nothing but the fabric's
///   `synchronize` waits. Whoever frees a buffer has waited for its last user.
/// - An event is recorded on one stream and waited for by others; `wait` refers to the latest
///   `record` before it, and to nothing if there is none.
/// - `allocate` gives device memory, `allocate_staging` host memory that `upload` may read and
///   `download` may write after the call returned. Both may fail with out_of_memory. Nothing else
///   allocates once its working sizes have been seen.
/// - `copy_strided(dst, dst_stride, src, src_stride, row_bytes, rows, stream)`: `rows` rows that
///   lie `stride` bytes apart.
/// - `copy_rows(dst, src, table, rows, row_bytes, stream)`: the copies of `table`, in device
///   memory, `rows` in all.
///
/// Thread safety: an object belongs to the thread of its rank.
template <class D>
concept device = std::copyable<typename D::stream> && std::movable<typename D::event> &&
    std::movable<typename D::buffer> && std::default_initializable<typename D::buffer> &&
    std::movable<typename D::staging> && std::default_initializable<typename D::staging> &&
    requires(D& d, const D& cd, typename D::stream stream, typename D::event& event,
             const typename D::event& recorded, typename D::buffer& buffer,
             typename D::staging& staging, void* to, const void* from, std::int64_t bytes,
             std::span<const row_copy> table) {
  { d.allocate(bytes) } -> std::same_as<result<typename D::buffer>>;
  { d.allocate_staging(bytes) } -> std::same_as<result<typename D::staging>>;
  { buffer.data() } -> std::same_as<void*>;
  { buffer.bytes() } -> std::same_as<std::int64_t>;
  { staging.data() } -> std::same_as<void*>;
  { staging.bytes() } -> std::same_as<std::int64_t>;
  { cd.memory_in_use() } -> std::same_as<std::int64_t>;  // bytes

  { cd.comm_stream() } -> std::same_as<typename D::stream>;
  { d.make_event() } -> std::same_as<result<typename D::event>>;
  { d.record(event, stream) } -> std::same_as<result<void>>;
  { d.wait(stream, recorded) } -> std::same_as<result<void>>;

  { d.fill_zero(to, bytes, stream) } -> std::same_as<result<void>>;
  { d.copy(to, from, bytes, stream) } -> std::same_as<result<void>>;
  { d.copy_strided(to, bytes, from, bytes, bytes, bytes, stream) } -> std::same_as<result<void>>;
  { d.upload(to, from, bytes, stream) } -> std::same_as<result<void>>;
  { d.download(to, from, bytes, stream) } -> std::same_as<result<void>>;
  { d.copy_rows(to, from, table, bytes, bytes, stream) } -> std::same_as<result<void>>;
};

}  // namespace v0
}  // namespace dyncp
