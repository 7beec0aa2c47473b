// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/io/spec_fields.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/validate.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// {fmt} formatters for the types that messages name; widths and alignments of strings apply:
//
//   fmt::print("{}: {:>12}\n", pack.ranks, error.code);
//
// Not part of dyncp.hpp: {fmt} costs compile time that only those who print should pay.

namespace dyncp {
inline namespace v0 {

namespace detail {

/// A formatter for a type that has a `to_string` of its own.
template <class T>
struct named_formatter : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const T& value, Context& context) const {
    return fmt::formatter<std::string_view>::format(to_string(value), context);
  }
};

/// A formatter for a type by a function object that makes its text.
template <class T, class ToText>
struct text_formatter : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const T& value, Context& context) const {
    const std::string out = ToText{}(value);
    return fmt::formatter<std::string_view>::format(out, context);
  }
};

struct error_text {
  std::string operator()(const error& e) const {
    return std::string(to_string(e.code)) + ": " + e.message();
  }
};

struct range_text {
  std::string operator()(rank_range r) const {
    if (r.size == 1) return "rank " + std::to_string(r.begin);
    return "ranks " + std::to_string(r.begin) + ".." +
           std::to_string(std::int64_t{r.begin} + r.size - 1);
  }
};

struct violation_text {
  std::string operator()(const violation& v) const {
    return std::string(to_string(v.kind)) + ": " + v.message;
  }
};

struct load_text {
  std::string operator()(const load& l) const {
    return std::to_string(l.count) + " sequences, " + std::to_string(l.tokens) + " tokens, " +
           std::to_string(l.squares) + " squares";
  }
};

struct plan_text {
  std::string operator()(const plan& p) const {
    std::size_t packs = 0;
    std::size_t sequences = 0;
    for (const micro_batch& mb : p.micro_batches) {
      packs += mb.packs.size();
      for (const pack& pk : mb.packs) sequences += pk.sequences.size();
    }
    return std::to_string(sequences) + " sequences in " + std::to_string(packs) + " packs, " +
           std::to_string(p.micro_batches.size()) + " micro-batches on " +
           std::to_string(p.num_ranks) + " ranks";
  }
};

}  // namespace detail
}  // namespace v0
}  // namespace dyncp

template <>
struct fmt::formatter<dyncp::errc> : dyncp::detail::named_formatter<dyncp::errc> {};
template <>
struct fmt::formatter<dyncp::link> : dyncp::detail::named_formatter<dyncp::link> {};
template <>
struct fmt::formatter<dyncp::violation_kind>
    : dyncp::detail::named_formatter<dyncp::violation_kind> {};
template <>
struct fmt::formatter<dyncp::attention_mask>
    : dyncp::detail::named_formatter<dyncp::attention_mask> {};
template <>
struct fmt::formatter<dyncp::recomputation>
    : dyncp::detail::named_formatter<dyncp::recomputation> {};
template <>
struct fmt::formatter<dyncp::error>
    : dyncp::detail::text_formatter<dyncp::error, dyncp::detail::error_text> {};
template <>
struct fmt::formatter<dyncp::rank_range>
    : dyncp::detail::text_formatter<dyncp::rank_range, dyncp::detail::range_text> {};
template <>
struct fmt::formatter<dyncp::violation>
    : dyncp::detail::text_formatter<dyncp::violation, dyncp::detail::violation_text> {};
template <>
struct fmt::formatter<dyncp::load>
    : dyncp::detail::text_formatter<dyncp::load, dyncp::detail::load_text> {};
template <>
struct fmt::formatter<dyncp::plan>
    : dyncp::detail::text_formatter<dyncp::plan, dyncp::detail::plan_text> {};
