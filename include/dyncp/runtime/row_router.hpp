// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/device.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/message.hpp>
#include <dyncp/runtime/row_route.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

struct row_router_options {
  std::int64_t max_row_bytes = 0;  ///< of the widest rows that `run` will see
  bool adjoint = false;            ///< `run_adjoint` will be called, with sums of that many bytes
};

/// Carries out a `row_route`, as often as wanted, for rows of any width: tokens, labels,
/// log-probabilities, hidden states with their trailing dimensions.
///
/// Made once per plan; tables and buffers are allocated then, nothing later. Every rank of the pool
/// makes it and calls `run` in the same order. Messages: at most one per pair of ranks and run, in
/// rounds of one out and one in, rank + k against rank - k; rows that lie in one piece are sent and
/// received where they are, others through one gather or scatter.
///
/// Determinism: copies; the adjoint adds in the order of the ranks. Streams as in ring attention.
/// Errors: those of device and fabric. Thread safety: belongs to the thread of its rank.
template <backend B>
class row_router {
 public:
  using device_type = typename B::device_type;
  using stream = typename device_type::stream;

  /// Errors: invalid_argument for a route that delivers a row twice or outside the arrays.
  [[nodiscard]] static result<row_router> make(group_pool<B>& pool, const row_route& route,
                                               const row_router_options& options, stream s) {
    row_router out(pool, route, options);
    DYNCP_TRY(out.arrange(route));
    DYNCP_TRY(out.allocate(s));
    return out;
  }

  /// Bytes that this rank sends to others in one run, for rows of `row_bytes`.
  [[nodiscard]] std::int64_t bytes_sent(std::int64_t row_bytes) const noexcept {
    return row_bytes * rows_sent_;
  }
  [[nodiscard]] std::int64_t bytes_received(std::int64_t row_bytes) const noexcept {
    return row_bytes * rows_received_;
  }
  [[nodiscard]] std::int64_t src_rows() const noexcept { return src_rows_; }
  [[nodiscard]] std::int64_t dst_rows() const noexcept { return dst_rows_; }

  /// dst (dst_rows, row_bytes) from src (src_rows, row_bytes), in device memory, apart from each
  /// other. Rows that nothing is routed to become zero bytes.
  [[nodiscard]] result<void> run(const void* src, void* dst, std::int64_t row_bytes, stream s) {
    DYNCP_TRY(check_width(row_bytes));
    const auto* const from = static_cast<const std::byte*>(src);
    auto* const to = static_cast<std::byte*>(dst);
    auto* const space = static_cast<std::byte*>(space_.data());
    DYNCP_TRY(copy(local_, dst, src, row_bytes, s));
    DYNCP_TRY(copy(pack_, space, src, row_bytes, s));
    DYNCP_TRY(exchange(
        [&](const lane& l) -> const std::byte* {
          return l.direct ? from + l.row * row_bytes : space + l.buffer_row * row_bytes;
        },
        [&](const lane& l) -> std::byte* {
          return l.direct ? to + l.row * row_bytes : space + l.buffer_row * row_bytes;
        },
        out_, in_, row_bytes, s));
    return copy(unpack_, dst, space, row_bytes, s);
  }

  /// The transposed run: src_gradient (src_rows, width) gets, for each row, the sum of
  /// dst_gradient (dst_rows, width) over all places where `run` put it, on all ranks, in the order
  /// of the ranks. `add(device, stream, to, from, n)` adds n sums, as an attention provider does.
  ///
  /// Requires row_router_options::adjoint.
  template <class Sum, class Add>
  [[nodiscard]] result<void> run_adjoint(const Sum* dst_gradient, Sum* src_gradient,
                                         std::int64_t width, Add add, stream s) {
    const std::int64_t row_bytes = width * static_cast<std::int64_t>(sizeof(Sum));
    DYNCP_TRY(check_width(row_bytes));
    if (!options_.adjoint) {
      return make_error(errc::invalid_argument, "this row router was not made for its adjoint",
                        "set row_router_options::adjoint");
    }
    device_type& device = pool_->owner().device();
    auto* const space = static_cast<std::byte*>(space_.data());
    const auto* const from = reinterpret_cast<const std::byte*>(dst_gradient);
    DYNCP_TRY(copy(repack_, space, dst_gradient, row_bytes, s));
    DYNCP_TRY(exchange(
        [&](const lane& l) -> const std::byte* {
          return l.direct ? from + l.row * row_bytes : space + l.buffer_row * row_bytes;
        },
        [&](const lane& l) -> std::byte* { return space + l.buffer_row * row_bytes; }, in_, out_,
        row_bytes, s));
    DYNCP_TRY(device.fill_zero(src_gradient, src_rows_ * row_bytes, s));
    const std::int32_t rank = pool_->rank();
    std::size_t next = 0;
    for (std::int32_t peer = 0; peer < pool_->ranks(); ++peer) {
      std::int64_t row = peer == rank ? 0 : out_[static_cast<std::size_t>(peer)].buffer_row;
      for (; next < sends_.size() && sends_[next].to == peer; ++next) {
        const row_transfer& t = sends_[next];
        const Sum* const gradient = peer == rank
                                        ? dst_gradient + t.dst * width
                                        : reinterpret_cast<const Sum*>(space + row * row_bytes);
        DYNCP_TRY(add(device, s, src_gradient + t.src * width, gradient, t.rows * width));
        row += t.rows;
      }
    }
    return {};
  }

 private:
  /// The rows of one direction between this rank and a peer.
  struct lane {
    std::int64_t rows = 0;
    std::int64_t buffer_row = 0;
    bool direct = false;  ///< they lie in one piece of the array, from `row` on
    std::int64_t row = 0;
  };
  struct table {
    std::vector<row_copy> host;
    std::int64_t begin = 0;  // of the entry in device memory
    std::int64_t rows = 0;

    void add(std::int64_t dst, std::int64_t src, std::int64_t count) {
      if (count == 0) return;
      if (!host.empty()) {
        row_copy& last = host.back();
        const bool fill = src < 0 && last.src < 0;
        const bool follows = src >= 0 && last.src >= 0 && last.src + last.rows == src;
        if (last.dst + last.rows == dst && (fill || follows)) {
          last.rows += count;
          rows += count;
          return;
        }
      }
      host.push_back({rows, dst, src, count});
      rows += count;
    }
  };

  row_router(group_pool<B>& pool, const row_route& route, const row_router_options& options)
      : pool_(&pool),
        options_(options),
        src_rows_(route.src_rows),
        dst_rows_(route.dst_rows),
        out_(static_cast<std::size_t>(pool.ranks())),
        in_(static_cast<std::size_t>(pool.ranks())) {}

  [[nodiscard]] result<void> arrange(const row_route& route) {
    const std::int32_t rank = pool_->rank();
    std::vector<row_transfer> receives;
    for (const row_transfer& t : route.transfers) {
      const bool known = t.from >= 0 && t.from < pool_->ranks() && t.to >= 0 &&
                         t.to < pool_->ranks() && (t.from == rank || t.to == rank);
      const bool inside = t.rows >= 0 &&
                          (t.from != rank || (t.src >= 0 && t.src <= src_rows_ - t.rows)) &&
                          (t.to != rank || (t.dst >= 0 && t.dst <= dst_rows_ - t.rows));
      if (!known || !inside) {
        return error{errc::invalid_argument,
                     "a transfer of " + std::to_string(t.rows) + " rows from row " +
                         std::to_string(t.src) + " of rank " + std::to_string(t.from) + " to row " +
                         std::to_string(t.dst) + " of rank " + std::to_string(t.to) +
                         " does not fit rank " + std::to_string(rank),
                     t.rows, 0, "build the route for this rank, with the rows of its arrays"};
      }
      if (t.rows == 0) continue;
      if (t.from == rank) sends_.push_back(t);
      if (t.to == rank) receives.push_back(t);
    }
    // Messages are in the order of the route, the same on both ends.
    std::stable_sort(sends_.begin(), sends_.end(),
                     [](const row_transfer& a, const row_transfer& b) { return a.to < b.to; });
    std::stable_sort(receives.begin(), receives.end(),
                     [](const row_transfer& a, const row_transfer& b) { return a.from < b.from; });

    std::int64_t buffer = 0;
    lanes(sends_, out_, buffer, options_.adjoint,
          [](const row_transfer& t) { return std::pair(t.to, t.src); });
    lanes(receives, in_, buffer, false,
          [](const row_transfer& t) { return std::pair(t.from, t.dst); });
    buffer_rows_ = buffer;

    std::int64_t row = 0;
    std::int32_t last = -1;
    for (const row_transfer& t : sends_) {
      const lane& l = out_[static_cast<std::size_t>(t.to)];
      if (t.to == rank) {
        local_.add(t.dst, t.src, t.rows);
        continue;
      }
      rows_sent_ += t.rows;
      if (t.to != last) row = l.buffer_row;
      last = t.to;
      if (!l.direct) pack_.add(row, t.src, t.rows);
      row += t.rows;
    }
    last = -1;
    for (const row_transfer& t : receives) {
      if (t.from == rank) continue;
      const lane& l = in_[static_cast<std::size_t>(t.from)];
      rows_received_ += t.rows;
      if (t.from != last) row = l.buffer_row;
      last = t.from;
      if (!l.direct) {
        unpack_.add(t.dst, row, t.rows);
        if (options_.adjoint) repack_.add(row, t.dst, t.rows);
      }
      row += t.rows;
    }

    std::sort(receives.begin(), receives.end(),
              [](const row_transfer& a, const row_transfer& b) { return a.dst < b.dst; });
    std::int64_t covered = 0;
    for (const row_transfer& t : receives) {
      if (t.dst < covered) {
        return error{errc::invalid_argument,
                     "row " + std::to_string(t.dst) + " of rank " + std::to_string(rank) +
                         " is delivered twice",
                     t.dst, covered, "route each row once"};
      }
      local_.add(covered, -1, t.dst - covered);
      covered = t.dst + t.rows;
    }
    local_.add(covered, -1, dst_rows_ - covered);
    return {};
  }

  /// Sums up the rows of each peer, and finds where in the buffer or in the array they lie.
  template <class Key>
  void lanes(const std::vector<row_transfer>& transfers, std::vector<lane>& to,
             std::int64_t& buffer, bool always_buffered, Key key) const {
    for (std::size_t i = 0; i < transfers.size();) {
      const auto [peer, first] = key(transfers[i]);
      lane& l = to[static_cast<std::size_t>(peer)];
      l.direct = true;
      l.row = first;
      for (; i < transfers.size() && key(transfers[i]).first == peer; ++i) {
        l.direct = l.direct && key(transfers[i]).second == first + l.rows;
        l.rows += transfers[i].rows;
      }
      if (peer == pool_->rank()) continue;
      l.buffer_row = buffer;
      if (!l.direct || always_buffered) buffer += l.rows;
    }
  }

  [[nodiscard]] result<void> allocate(stream s) {
    device_type& device = pool_->owner().device();
    std::int64_t entries = 0;
    for (table* t : {&local_, &pack_, &unpack_, &repack_}) {
      t->begin = entries;
      entries += static_cast<std::int64_t>(t->host.size());
    }
    const std::int64_t bytes = entries * static_cast<std::int64_t>(sizeof(row_copy));
    auto tables = device.allocate(bytes);
    if (!tables) return std::move(tables).error();
    auto staging = device.allocate_staging(bytes);
    if (!staging) return std::move(staging).error();
    auto space = device.allocate(buffer_rows_ * options_.max_row_bytes);
    if (!space) return std::move(space).error();
    tables_ = std::move(*tables);
    staging_ = std::move(*staging);
    space_ = std::move(*space);
    auto* const host = static_cast<row_copy*>(staging_.data());
    for (table* t : {&local_, &pack_, &unpack_, &repack_}) {
      std::copy(t->host.begin(), t->host.end(), host + t->begin);
    }
    DYNCP_TRY(device.upload(tables_.data(), staging_.data(), bytes, s));
    auto event = device.make_event();
    if (!event) return std::move(event).error();
    events_.push_back(std::move(*event));
    return {};
  }

  [[nodiscard]] result<void> check_width(std::int64_t row_bytes) const {
    if (row_bytes >= 0 && row_bytes <= options_.max_row_bytes) return {};
    return error{errc::invalid_argument,
                 "rows of " + std::to_string(row_bytes) + " bytes on a router made for " +
                     std::to_string(options_.max_row_bytes),
                 row_bytes, options_.max_row_bytes, "raise row_router_options::max_row_bytes"};
  }

  [[nodiscard]] result<void> copy(const table& t, void* dst, const void* src,
                                  std::int64_t row_bytes, stream s) {
    if (t.rows == 0 || row_bytes == 0) return {};
    const auto* const first = static_cast<const row_copy*>(tables_.data()) + t.begin;
    return pool_->owner().device().copy_rows(dst, src, {first, t.host.size()}, t.rows, row_bytes,
                                             s);
  }

  template <class Source, class Place>
  [[nodiscard]] result<void> exchange(Source source, Place place, const std::vector<lane>& out,
                                      const std::vector<lane>& in, std::int64_t row_bytes,
                                      stream s) {
    const std::int32_t n = pool_->ranks();
    if (n == 1) return {};
    device_type& device = pool_->owner().device();
    const stream comm = device.comm_stream();
    DYNCP_TRY(device.record(events_[0], s));
    DYNCP_TRY(device.wait(comm, events_[0]));
    for (std::int32_t k = 1; k < n; ++k) {
      const std::int32_t to = (pool_->rank() + k) % n;
      const std::int32_t from = (pool_->rank() - k + n) % n;
      const lane& leaves = out[static_cast<std::size_t>(to)];
      const lane& comes = in[static_cast<std::size_t>(from)];
      const outgoing o{to, source(leaves), leaves.rows * row_bytes};
      const incoming i{from, place(comes), comes.rows * row_bytes};
      const std::size_t outs = o.bytes > 0 ? 1 : 0;
      const std::size_t ins = i.bytes > 0 ? 1 : 0;
      if (outs + ins == 0) continue;
      DYNCP_TRY(pool_->exchange(pool_->everyone(), {&o, outs}, {&i, ins}, comm));
    }
    DYNCP_TRY(device.record(events_[0], comm));
    return device.wait(s, events_[0]);
  }

  group_pool<B>* pool_;
  row_router_options options_;
  std::int64_t src_rows_;
  std::int64_t dst_rows_;
  std::int64_t rows_sent_ = 0;
  std::int64_t rows_received_ = 0;
  std::int64_t buffer_rows_ = 0;
  std::vector<lane> out_;            // (ranks)
  std::vector<lane> in_;             // (ranks)
  std::vector<row_transfer> sends_;  // from this rank, by peer
  table local_;                      // own rows, and zeros
  table pack_;                       // own rows to the buffer
  table unpack_;                     // the buffer to the result
  table repack_;                     // the gradient of the result to the buffer
  typename device_type::buffer tables_;
  typename device_type::staging staging_;
  typename device_type::buffer space_;
  std::vector<typename device_type::event> events_;  // one
};

}  // namespace v0
}  // namespace dyncp
