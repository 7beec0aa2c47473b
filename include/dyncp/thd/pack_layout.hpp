// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/thd/cu_seqlens.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_view.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// Owner of the arrays behind a `pack_view`, and the one place where its promises are checked.
///
/// A value: copies are deep, const members may be called concurrently.
/// Example:
///   const dyncp::padding_rule rule{.zigzag = true};
///   auto pack = dyncp::pack_layout::make(lengths, dyncp::layout_kind::zigzag, 2, rule);
///   if (!pack) return pack.error();
///   const auto rope = dyncp::positions(pack->view(), cp_rank);
class pack_layout {
 public:
  /// An empty pack on one rank.
  pack_layout() : cu_{{0}, {0}} {}

  /// The layout of `lengths` (tokens), in this order, padded by `rule`, on a group of `cp` ranks.
  ///
  /// Errors: invalid_argument for cp < 1, a rule with a multiple < 1 or one whose alignment the
  /// layout cannot be cut by; invalid_length, overflow as `prefix_sums`. Complexity: linear.
  [[nodiscard]] static result<pack_layout> make(std::span<const std::int64_t> lengths,
                                                layout_kind layout, std::int32_t cp,
                                                const padding_rule& rule) {
    if (cp < 1) return bad_group(cp);
    for (const auto& [name, multiple] :
         {std::pair<const char*, std::int64_t>{"sequence_parallel", rule.sequence_parallel},
          {"multiple", rule.multiple},
          {"shard_multiple", rule.shard_multiple}}) {
      if (multiple >= 1) continue;
      return error{errc::invalid_argument,
                   "padding_rule::" + std::string(name) + " is " + std::to_string(multiple),
                   multiple, 1, "use 1 for no padding"};
    }
    const std::int64_t align = alignment(rule, cp);
    const std::int64_t needed = length_multiple(layout, cp);
    if (align % needed != 0) {
      return error{
          errc::invalid_argument,
          "sequences padded to a multiple of " + std::to_string(align) + " cannot be cut " +
              std::string(to_string(layout)) + " over " + std::to_string(cp) + " ranks",
          align, needed,
          "set padding_rule::zigzag, or padding_rule::multiple to " + std::to_string(needed)};
    }
    auto cu = make_cu_seqlens(lengths, align);
    if (!cu) return std::move(cu).error();
    // Only a row split without a rule needs the second rounding: its shares, which the plan lets
    // differ by a token, are made equal by rows of no sequence.
    const std::int64_t tokens = round_up(padded_pack_tokens(rule, cp, cu->padded.back()), cp);
    if (tokens > std::numeric_limits<std::int32_t>::max()) {
      return error{errc::overflow, "the pack exceeds 2147483647 tokens with its tail", tokens,
                   std::numeric_limits<std::int32_t>::max(),
                   "put fewer tokens in a pack: cu_seqlens are 32-bit"};
    }
    return adopt(std::move(*cu), static_cast<std::int32_t>(tokens), layout, cp);
  }

  /// A layout from prefix sums that a trainer or `to_bucket` made; `tokens` includes the tail.
  ///
  /// Errors: invalid_argument with the first sequence that breaks a promise of `pack_view`.
  [[nodiscard]] static result<pack_layout> adopt(cu_seqlens cu, std::int32_t tokens,
                                                 layout_kind layout, std::int32_t cp) {
    if (cp < 1) return bad_group(cp);
    if (cu.real.empty() || cu.real.size() != cu.padded.size() || cu.real[0] != 0 ||
        cu.padded[0] != 0) {
      return make_error(errc::invalid_argument,
                        "real and padded cu_seqlens do not have the same number of entries, from 0",
                        "give one entry more than there are sequences in both");
    }
    const std::int64_t multiple = length_multiple(layout, cp);
    for (std::size_t s = 0; s + 1 < cu.real.size(); ++s) {
      const std::int64_t length = std::int64_t{cu.real[s + 1]} - cu.real[s];
      const std::int64_t padded = std::int64_t{cu.padded[s + 1]} - cu.padded[s];
      const std::string name = "sequence " + std::to_string(s) + " of the pack";
      if (length < 0 || padded < 0) {
        return error{errc::invalid_argument, name + " has a negative length: cu_seqlens descend",
                     length < 0 ? length : padded, 0, "give prefix sums"};
      }
      if (length > padded) {
        return error{errc::invalid_argument,
                     name + " has " + std::to_string(length) + " tokens in " +
                         std::to_string(padded) + " padded ones",
                     length, padded, "pad before packing"};
      }
      if (padded % multiple != 0) {
        return error{
            errc::invalid_argument,
            name + " is padded to " + std::to_string(padded) + ", not a multiple of " +
                std::to_string(multiple) + " as " + std::string(to_string(layout)) + " over " +
                std::to_string(cp) + " ranks needs",
            padded, multiple,
            "pad each sequence, not only the total, to a multiple of " + std::to_string(multiple)};
      }
    }
    if (tokens < cu.padded.back() || tokens % cp != 0) {
      return error{errc::invalid_argument,
                   "a pack of " + std::to_string(tokens) +
                       " tokens does not hold its sequences of " +
                       std::to_string(cu.padded.back()) + " padded tokens in equal shares on " +
                       std::to_string(cp) + " ranks",
                   tokens, cu.padded.back(), "round the pack up to a multiple of the ranks"};
    }
    if (layout != layout_kind::row_split && (tokens - cu.padded.back()) % cp != 0) {
      return error{errc::invalid_argument, "the tail of the pack cannot be cut over the ranks",
                   tokens - cu.padded.back(), cp, "make it a multiple of the ranks"};
    }
    pack_layout out;
    out.cu_ = std::move(cu);
    out.tokens_ = tokens;
    out.layout_ = layout;
    out.cp_ = cp;
    return out;
  }

  /// Valid while this object lives unmoved.
  [[nodiscard]] pack_view view() const noexcept {
    return {cu_.real.data(), cu_.padded.data(), sequences(), tokens_, cp_, layout_};
  }

  /// The same rows in another layout, on the same ranks. Errors: as `adopt`.
  [[nodiscard]] result<pack_layout> with_layout(layout_kind layout) const {
    return adopt(cu_, tokens_, layout, cp_);
  }

  [[nodiscard]] std::int32_t sequences() const noexcept {
    return static_cast<std::int32_t>(cu_.real.size()) - 1;
  }
  [[nodiscard]] std::int32_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::int32_t cp() const noexcept { return cp_; }
  [[nodiscard]] layout_kind layout() const noexcept { return layout_; }
  [[nodiscard]] const cu_seqlens& cu() const noexcept { return cu_; }
  [[nodiscard]] std::int32_t max_length() const noexcept { return dyncp::max_length(cu_.real); }
  [[nodiscard]] std::int32_t max_padded_length() const noexcept {
    return dyncp::max_length(cu_.padded);
  }

 private:
  [[nodiscard]] static error bad_group(std::int32_t cp) {
    return error{errc::invalid_argument, "a CP group of " + std::to_string(cp) + " ranks", cp, 1,
                 "use 1 or more"};
  }

  cu_seqlens cu_;
  std::int32_t tokens_ = 0;
  std::int32_t cp_ = 1;
  layout_kind layout_ = layout_kind::zigzag;
};

}  // namespace v0
}  // namespace dyncp
