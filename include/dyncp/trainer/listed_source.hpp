// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/contain.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/trainer/range_cursor.hpp>
#include <dyncp/trainer/step_vote.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The tokens of a sample: its size, or what its member `length()` says. The default of the data
/// iterators; give a function of your own for other types.
struct sample_length {
  template <class Sample>
    requires std::ranges::sized_range<const Sample> ||
             requires(const Sample& s) { { s.length() } -> std::convertible_to<std::int64_t>; }
  [[nodiscard]] std::int64_t operator()(const Sample& sample) const {
    if constexpr (requires { { sample.length() } -> std::convertible_to<std::int64_t>; }) {
      return static_cast<std::int64_t>(sample.length());
    } else {
      return static_cast<std::int64_t>(std::ranges::size(sample));
    }
  }
};

/// The loader of a process that holds no data: it plans, and gets parameters without samples.
struct no_loader {
  std::monostate operator()(const sequence&) const noexcept { return {}; }
};

namespace detail {

template <class T>
struct unwrapped {
  using type = T;
};
template <class T>
struct unwrapped<result<T>> {
  using type = T;
};

/// "sample 17 was announced with 100 tokens and has 90".
[[nodiscard]] inline error lying_length(const sequence& s, std::int64_t found) {
  return error{errc::invalid_length, "sample " + std::to_string(s.id) + " was announced with " +
               std::to_string(s.length) + " tokens and has " + std::to_string(found), found,
               s.length, "the next call plans with " + std::to_string(found) +
               " tokens; correct the list of lengths"};
}

}  // namespace detail

/// Samples whose lengths are known: a range of `sequence`, or of lengths (ids 0, 1, 2, ...), the
/// same on every rank. Planning reads the list alone; a sample is loaded when the plan gives it to
/// this rank. `Load`: (const sequence&) -> Sample or result<Sample>. `Length`: (const Sample&) ->
/// tokens, checked against the list.
template <std::ranges::input_range Range, class Load, class Length>
  requires std::convertible_to<std::ranges::range_value_t<Range>,
                               std::int64_t> ||
           std::convertible_to<std::ranges::range_value_t<Range>, sequence>
class listed_source {
 public:
  using sample_type = typename detail::unwrapped<
      std::remove_cvref_t<std::invoke_result_t<Load&, const sequence&>>>::type;
  static constexpr bool loads = !std::is_same_v<Load, no_loader>;
  /// Filling and delivering exchange nothing.
  static constexpr bool collective = false;

  struct batch {
    std::vector<sequence> sequences;
    std::vector<sequence> listed;                    // as read: none left out, no length corrected
    std::vector<std::optional<sample_type>> loaded;  // (sequences), kept when the step fails
    std::int64_t taken = 0;                          // elements of the range
    bool last = false;                               // the range ends with it
  };

  listed_source(Range&& range, Load load, Length length)
      : cursor_(std::forward<Range>(range)), load_(std::move(load)), length_(std::move(length)) {}

  /// Leaves out the first `count` elements of the range.
  void skip(std::int64_t count) noexcept { cursor_.skip(count); }

  /// Reads on until the batch holds `want` sequences or the range ends. An error leaves what was
  /// read in the batch.
  template <class Channel>
  [[nodiscard]] result<void> fill(Channel&, batch& b, std::int64_t, std::int64_t want) {
    while (!b.last && b.taken < want) {
      auto item = cursor_.read("the range of lengths");
      if (!item) return std::move(item).error();
      if (!*item) {
        b.last = true;
        break;
      }
      sequence s;
      if constexpr (std::convertible_to<value_type, std::int64_t>) {
        s.id = cursor_.taken() - 1;
        s.length = static_cast<std::int64_t>(**item);
      } else {
        s = **item;
      }
      b.sequences.push_back(s);
      b.listed.push_back(s);
      ++b.taken;
    }
    return {};
  }

  /// Loads the samples of the sequences that `rank` works on and are not loaded yet.
  /// On a length that differs from the list, `found` says what all ranks have to plan with.
  [[nodiscard]] result<void> load(batch& b, const plan_layout& layout, std::int32_t rank,
                                  length_correction& found) {
    if constexpr (loads) {
      b.loaded.resize(b.sequences.size());
      for (const placed_pack& p : layout.packs()) {
        if (!p.ranks.contains(rank)) continue;
        for (const std::int32_t i : p.sequences) DYNCP_TRY(load_one(b, i, found));
      }
    }
    return {};
  }

  /// The samples of `rank`, by micro-batch and in THD order. Requires `load`.
  [[nodiscard]] std::vector<sample_type> samples(batch& b, const plan_layout& layout,
                                                 std::int32_t rank) const {
    std::vector<sample_type> out;
    if constexpr (loads) {
      for (std::int32_t m = 0; m < layout.num_micro_batches(); ++m) {
        const placed_pack* const p = layout.pack_at(rank, m);
        if (p == nullptr) continue;
        for (const std::int32_t i : p->sequences) {
          std::optional<sample_type>& sample = b.loaded[static_cast<std::size_t>(i)];
          out.push_back(std::move(*sample));
          sample.reset();
        }
      }
    }
    return out;
  }

  /// Makes the batch what it was when it was read; its samples are loaded again.
  static void restore(batch& b) {
    b.sequences = b.listed;
    b.loaded.clear();
  }

  /// Takes sequences out of the batch. `gone` (sequences) marks them.
  static void remove(batch& b, const std::vector<bool>& gone) {
    b.loaded.resize(b.sequences.size());
    std::size_t kept = 0;
    for (std::size_t i = 0; i < b.sequences.size(); ++i) {
      if (gone[i]) continue;
      if (kept != i) {
        b.sequences[kept] = b.sequences[i];
        b.loaded[kept] = std::move(b.loaded[i]);
      }
      ++kept;
    }
    b.sequences.resize(kept);
    b.loaded.resize(kept);
  }

 private:
  using value_type = std::ranges::range_value_t<Range>;

  [[nodiscard]] result<void> load_one(batch& b, std::int32_t index, length_correction& found) {
    const auto i = static_cast<std::size_t>(index);
    const sequence& s = b.sequences[i];
    if (!b.loaded[i]) {
      auto sample = contain("the loader of sample " + std::to_string(s.id), [&] {
        return load_(s);
      });
      if (!sample) return std::move(sample).error();
      b.loaded[i] = std::move(*sample);
    }
    const auto length = contain("the length of sample " + std::to_string(s.id), [&] {
      return static_cast<std::int64_t>(length_(*b.loaded[i]));
    });
    if (!length) return length.error();
    if (*length == s.length) return {};
    found = {index, 0, *length};
    return detail::lying_length(s, *length);
  }

  range_cursor<Range> cursor_;
  Load load_;
  Length length_;
};

}  // namespace v0
}  // namespace dyncp
