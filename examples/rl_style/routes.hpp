// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/runtime/row_route.hpp>
#include <dyncp/runtime/split_merge.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace rl_style {

using backend = dyncp::cpu::thread_backend;
using pool_type = dyncp::group_pool<backend>;

/// The three ways of per-token data through one plan, with the bytes that they took. Whole
/// sequences lie one behind the other in the order of the batch, at the ranks that `owners` says.
class routes {
 public:
  routes(pool_type& pool, dyncp::plan_layout layout, std::vector<std::int32_t> owners)
      : pool_(&pool),
        layout_(std::move(layout)),
        owners_(std::move(owners)),
        split_(made<dyncp::plan_split<backend>>(*pool_, layout_, owners_, widest, stream())),
        whole_(made<dyncp::plan_reroute<backend>>(*pool_, layout_, owners_, widest, stream())),
        merge_(
            made<dyncp::plan_merge<backend>>(*pool_, layout_, owners_, widest, false, stream())) {}
  routes(const routes&) = delete;
  routes& operator=(const routes&) = delete;

  /// This rank's shares of a field, (local rows, width), padding zero.
  template <class T>
  [[nodiscard]] std::vector<T> split(const std::vector<T>& owned, std::int32_t width = 1) {
    std::vector<T> out(elements(layout_.local_rows(pool_->rank()), width));
    const std::int64_t row = row_bytes<T>(width);
    split_.run(owned.data(), out.data(), row, stream()).value();
    pool_->synchronize(stream()).value();
    split_bytes += split_.router().bytes_sent(row);
    return out;
  }
  /// The whole sequences that this rank works on, in the order of the batch: (rows, width).
  template <class T>
  [[nodiscard]] std::vector<T> whole(const std::vector<T>& owned, std::int32_t width = 1) {
    std::vector<T> out(elements(dyncp::rows_of_worker(layout_, pool_->rank()).rows, width));
    const std::int64_t row = row_bytes<T>(width);
    whole_.run(owned.data(), out.data(), row, stream()).value();
    pool_->synchronize(stream()).value();
    whole_bytes += whole_.router().bytes_sent(row);
    return out;
  }
  /// The whole sequences of this rank from the shares of all.
  [[nodiscard]] std::vector<double> merge(const std::vector<double>& shares) {
    std::vector<double> out(
        elements(dyncp::rows_of_owner(layout_, owners_, pool_->rank()).rows, 1));
    merge_.run(shares.data(), out.data(), sizeof(double), stream()).value();
    pool_->synchronize(stream()).value();
    merged_bytes += merge_.bytes_sent(sizeof(double));
    return out;
  }

  [[nodiscard]] const dyncp::plan_layout& layout() const noexcept { return layout_; }

  std::int64_t split_bytes = 0;
  std::int64_t whole_bytes = 0;
  std::int64_t merged_bytes = 0;

 private:
  static constexpr std::int64_t widest = 4 * sizeof(double);

  template <class Route, class... Arguments>
  [[nodiscard]] static Route made(Arguments&&... arguments) {
    auto route = Route::make(std::forward<Arguments>(arguments)...);
    return std::move(route.value());
  }
  template <class T>
  [[nodiscard]] static std::int64_t row_bytes(std::int32_t width) noexcept {
    return width * static_cast<std::int64_t>(sizeof(T));
  }
  [[nodiscard]] static std::size_t elements(std::int64_t rows, std::int32_t width) noexcept {
    return static_cast<std::size_t>(rows * width);
  }
  [[nodiscard]] backend::device_type::stream stream() {
    return pool_->owner().device().main_stream();
  }

  pool_type* pool_;
  dyncp::plan_layout layout_;
  std::vector<std::int32_t> owners_;  // (sequences)
  dyncp::plan_split<backend> split_;
  dyncp::plan_reroute<backend> whole_;
  dyncp::plan_merge<backend> merge_;
};

}  // namespace rl_style
