// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ranges>
#include <span>
#include <type_traits>

namespace dyncp {
inline namespace v0 {

/// How whole samples travel between ranks as bytes. `bytes` is asked for once, by the owner.
template <class Codec, class Sample>
concept sample_codec = requires(const Codec& c, const Sample& s, std::byte* to,
                                std::span<const std::byte> from) {
  { c.bytes(s) } -> std::convertible_to<std::int64_t>;
  c.pack(s, to);                                  // writes bytes(s) bytes
  { c.unpack(from) } -> std::convertible_to<result<Sample>>;
};

/// The codec of a contiguous range of plain numbers, a vector of token ids, say.
struct plain_codec {
  template <std::ranges::contiguous_range Sample>
    requires std::ranges::sized_range<const Sample> &&
             std::is_trivially_copyable_v<std::ranges::range_value_t<Sample>>
  [[nodiscard]] std::int64_t bytes(const Sample& s) const {
    return static_cast<std::int64_t>(std::ranges::size(s) *
                                     sizeof(std::ranges::range_value_t<Sample>));
  }
  template <std::ranges::contiguous_range Sample>
  void pack(const Sample& s, std::byte* to) const {
    if (std::ranges::size(s) == 0) return;
    std::memcpy(to, std::ranges::data(s), static_cast<std::size_t>(bytes(s)));
  }
  /// Becomes any contiguous range that can be made with a number of elements.
  struct bytes_of {
    std::span<const std::byte> from;
    template <std::ranges::contiguous_range Sample>
      requires std::constructible_from<Sample, std::size_t>
    operator result<Sample>() const {
      Sample out(from.size() / sizeof(std::ranges::range_value_t<Sample>));
      if (!from.empty()) std::memcpy(std::ranges::data(out), from.data(), from.size());
      return out;
    }
  };
  [[nodiscard]] bytes_of unpack(std::span<const std::byte> from) const { return {from}; }
};

/// The largest sample that travels: 2^40 bytes, so that sums over a batch stay within 63 bits.
inline constexpr std::int64_t max_sample_bytes = std::int64_t{1} << 40;

}  // namespace v0
}  // namespace dyncp
