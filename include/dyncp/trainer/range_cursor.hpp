// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/contain.hpp>
#include <dyncp/core/result.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <string_view>
#include <type_traits>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// Reads a range of the caller's once, element by element, and survives what its iterators throw:
/// the next `read` repeats the step that threw, so no element is lost or read twice.
///
/// Owns a range that it is given as an rvalue and views; an lvalue of another kind it refers to, so
/// that must outlive it. Movable; belongs to one thread.
template <std::ranges::input_range Range>
class range_cursor {
 public:
  using range_type = std::remove_reference_t<Range>;
  using value_type = std::ranges::range_value_t<range_type>;

  explicit range_cursor(Range&& range)
      : state_(std::make_unique<state>(std::forward<Range>(range))) {}

  /// The next element, or nothing at the end. Errors: callback_failed.
  [[nodiscard]] result<std::optional<value_type>> read(std::string_view who) {
    return contain(who, [&]() -> std::optional<value_type> {
      if (!arrive()) return std::nullopt;
      std::optional<value_type> value(*state_->at->it);
      state_->step_pending = true;
      ++taken_;
      return value;
    });
  }

  /// True when nothing is left to read. Errors: callback_failed.
  [[nodiscard]] result<bool> at_end(std::string_view who) {
    return contain(who, [&] { return !arrive(); });
  }

  /// The next call passes over `count` elements first, as far as the range goes, without reading
  /// them; by arithmetic where it can.
  void skip(std::int64_t count) noexcept { left_to_skip_ += count; }

  /// Gives up the element that `read` threw for: the next one reads what is behind it. False if
  /// there is none, or if the range threw before it came to it.
  bool pass() {
    state& s = *state_;
    if (!s.at || s.step_pending || left_to_skip_ > 0) return false;
    s.step_pending = true;
    ++taken_;
    return true;
  }

  /// The place in the range of the element that `read` gives next.
  [[nodiscard]] std::int64_t place() const noexcept { return taken_ + left_to_skip_; }

  /// Elements passed over or read.
  [[nodiscard]] std::int64_t taken() const noexcept { return taken_; }

 private:
  // Not std::views::all: clang 14 cannot compile the views of libstdc++ 12.
  static constexpr bool owns =
      !std::is_lvalue_reference_v<Range> || std::ranges::view<std::remove_const_t<range_type>>;

  struct position {
    std::ranges::iterator_t<range_type> it;
    std::ranges::sentinel_t<range_type> end;
  };
  struct state {
    explicit state(Range&& r) : held(hold(std::forward<Range>(r))) {}
    [[nodiscard]] range_type& range() {
      if constexpr (owns) {
        return held;
      } else {
        return *held;
      }
    }
    [[nodiscard]] static decltype(auto) hold(Range&& r) {
      if constexpr (owns) {
        return std::forward<Range>(r);
      } else {
        return &r;
      }
    }
    std::conditional_t<owns, range_type, range_type*> held;
    std::optional<position> at;
    bool step_pending = false;  // `it` stands on an element that was read
  };

  /// Moves to the next unread element; false at the end.
  bool arrive() {
    state& s = *state_;
    if (!s.at) s.at.emplace(position{std::ranges::begin(s.range()), std::ranges::end(s.range())});
    auto& [it, end] = *s.at;
    if (s.step_pending) {
      ++it;
      s.step_pending = false;
    }
    if constexpr (std::ranges::random_access_range<range_type> &&
                  std::sized_sentinel_for<std::ranges::sentinel_t<range_type>,
                                          std::ranges::iterator_t<range_type>>) {
      const auto here = static_cast<std::int64_t>(end - it);
      const std::int64_t jump = left_to_skip_ < here ? left_to_skip_ : here;
      it += static_cast<std::ranges::range_difference_t<range_type>>(jump);
      taken_ += jump;
      left_to_skip_ = 0;
    } else {
      for (; left_to_skip_ > 0 && it != end; --left_to_skip_) {
        ++it;
        ++taken_;
      }
      left_to_skip_ = 0;
    }
    return it != end;
  }

  std::unique_ptr<state> state_;
  std::int64_t taken_ = 0;
  std::int64_t left_to_skip_ = 0;
};

}  // namespace v0
}  // namespace dyncp
