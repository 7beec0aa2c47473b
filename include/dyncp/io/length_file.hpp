// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/core/splitmix.hpp>
#include <dyncp/io/files.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/problem/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Sequence lengths from a file and the line that each stands on.
struct length_list {
  std::string source;                 ///< the file, for messages
  std::vector<std::int64_t> lengths;  ///< (n): tokens, 0 .. 2^40; an empty sequence is kept
  std::vector<std::int64_t> lines;    ///< (n): counted from 1
  std::vector<std::int64_t> atoms{};  ///< (n) or empty: `sequence::atom`
};

namespace detail {

[[nodiscard]] inline std::string_view trimmed(std::string_view text) noexcept {
  constexpr std::string_view blanks = " \t\r\v\f";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

[[nodiscard]] inline std::string at_line(const std::string& source, std::int64_t line) {
  return source + " line " + std::to_string(line);
}

/// A length, 0 .. 2^40, from one word of a file.
[[nodiscard]] inline result<std::int64_t> parse_length(std::string_view word,
                                                       const std::string& source,
                                                       std::int64_t line) {
  const text::parsed_integer number = text::parse_integer(word);
  if (number.status == text::parse_status::malformed) {
    return error{errc::parse_error, at_line(source, line) + ": " + text::quoted(word) +
                 " is not a length", line, 0, "write one whole number of tokens a line"};
  }
  if (number.status == text::parse_status::overflow) {
    return error{errc::overflow, at_line(source, line) + ": " + text::quoted(word) +
                 " does not fit in 64 bits", 0, max_sequence_length,
                 "lengths are at most 2^40 tokens"};
  }
  if (number.value < 0 || number.value > max_sequence_length) {
    return invalid_length_error(at_line(source, line) + ": the sequence", number.value);
  }
  return number.value;
}

/// Calls `use(line_text, number)` for each line; the first error that it returns ends the walk.
template <class Use>
[[nodiscard]] result<void> for_each_line(std::string_view text, Use use) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);  // byte order mark
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (auto ok = use(text.substr(0, end), number); !ok) return ok;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

[[nodiscard]] inline error no_lengths(const std::string& source) {
  return make_error(errc::empty_input, source + " holds no length",
                    "write one whole number of tokens a line");
}

}  // namespace detail

/// Lengths, one whole number of tokens a line. Blanks around the number, CRLF, empty lines and
/// lines that begin with # are allowed; nothing else is.
///
/// Errors, each with file, line and text: empty_input (no length at all), parse_error, overflow
/// (over 63 bits), invalid_length (negative or above 2^40). O(bytes); pure.
[[nodiscard]] inline result<length_list> parse_lengths(std::string_view text, std::string source) {
  length_list out;
  out.source = std::move(source);
  auto ok = detail::for_each_line(text, [&](std::string_view line, std::int64_t number) {
    const std::string_view word = detail::trimmed(line);
    if (word.empty() || word.front() == '#') return result<void>{};
    auto length = detail::parse_length(word, out.source, number);
    if (!length) return result<void>{length.error()};
    out.lengths.push_back(*length);
    out.lines.push_back(number);
    return result<void>{};
  });
  if (!ok) return ok.error();
  if (out.lengths.empty()) return detail::no_lengths(out.source);
  return out;
}

/// Most sequences that a histogram may stand for.
inline constexpr std::int64_t max_histogram_count = std::int64_t{1} << 24;

/// Lengths from a histogram: a length and how many sequences have it, two whole numbers a line,
/// with blanks or a comma between them. Blanks, CRLF, empty lines and # as in `parse_lengths`.
/// The list has them in the order of the file; `shuffle` it before batches are taken.
///
/// Errors: those of `parse_lengths`; invalid_argument for a negative count; overflow for more than
/// 2^24 sequences. O(bytes + sequences); pure.
[[nodiscard]] inline result<length_list> parse_histogram(std::string_view text,
                                                         std::string source) {
  length_list out;
  out.source = std::move(source);
  auto ok = detail::for_each_line(text, [&](std::string_view line, std::int64_t number) {
    const std::string_view words = detail::trimmed(line);
    if (words.empty() || words.front() == '#') return result<void>{};
    const std::string here = detail::at_line(out.source, number);
    const std::size_t gap = words.find_first_of(" \t,");
    if (gap == std::string_view::npos) {
      return result<void>{error{errc::parse_error, here + ": " + text::quoted(words) +
                                " is not a length and a count", number, 0,
                                "write two whole numbers a line"}};
    }
    auto length = detail::parse_length(words.substr(0, gap), out.source, number);
    if (!length) return result<void>{length.error()};
    std::string_view rest = detail::trimmed(words.substr(gap));
    if (!rest.empty() && rest.front() == ',') rest = detail::trimmed(rest.substr(1));
    const text::parsed_integer count = text::parse_integer(rest);
    if (count.status == text::parse_status::malformed) {
      return result<void>{error{errc::parse_error, here + ": " + text::quoted(rest) +
                                " is not a count", number, 0, "write two whole numbers a line"}};
    }
    if (count.value < 0) {
      return result<void>{error{errc::invalid_argument, here + ": the count is " +
                                std::string(rest), count.value, 0, "counts are 0 or more"}};
    }
    const auto before = static_cast<std::int64_t>(out.lengths.size());
    if (count.status == text::parse_status::overflow ||
        count.value > max_histogram_count - before) {
      return result<void>{error{errc::overflow, here + ": with " + std::string(rest) +
                                " more the histogram stands for too many sequences", count.value,
                                max_histogram_count, "divide the counts by a common factor"}};
    }
    const auto n = static_cast<std::size_t>(count.value);
    out.lengths.insert(out.lengths.end(), n, *length);
    out.lines.insert(out.lines.end(), n, number);
    return result<void>{};
  });
  if (!ok) return ok.error();
  if (out.lengths.empty()) return detail::no_lengths(out.source);
  return out;
}

/// Puts the list in an order that depends on the seed alone, the same on every platform.
/// Requires at most 2^31-1 lengths. O(n).
inline void shuffle(length_list& list, std::uint64_t seed) {
  splitmix random(seed);
  for (std::size_t i = list.lengths.size(); i > 1; --i) {
    const auto j = static_cast<std::size_t>(random.below(static_cast<std::int32_t>(i)));
    std::swap(list.lengths[i - 1], list.lengths[j]);
    std::swap(list.lines[i - 1], list.lines[j]);
    if (!list.atoms.empty()) std::swap(list.atoms[i - 1], list.atoms[j]);
  }
}

/// `parse_lengths` of a file; "-" is the standard input. Errors: those and io_error.
[[nodiscard]] inline result<length_list> read_length_file(const std::string& path) {
  auto text = read_file(path);
  if (!text) return text.error();
  return parse_lengths(*text, path == "-" ? "standard input" : path);
}

/// Which lengths of a list make up a batch: first the filter, then `skip` and `count`, then what
/// is dropped on request. Dropped sequences make the batch smaller, never move others into it.
struct length_selection {
  std::int64_t min_length = 0;
  std::int64_t max_length = max_sequence_length;
  std::int64_t skip = 0;
  std::int64_t count = -1;      ///< -1: all that are left
  bool drop_empty = false;      ///< length 0 is dropped instead of an error
  std::int64_t drop_above = 0;  ///< longer ones are dropped; 0: none
};

/// A batch with the way back to its file, and how many lengths went where.
struct selected_batch {
  std::vector<sequence> sequences;         ///< ids 0, 1, 2, ...
  std::vector<std::int64_t> source_lines;  ///< (sequences): line in the file
  std::int64_t read = 0;                   ///< lengths in the list
  std::int64_t filtered = 0;               ///< outside min_length .. max_length
  std::int64_t skipped = 0;
  std::int64_t left = 0;                   ///< after the batch
  std::int64_t dropped_empty = 0;
  std::int64_t dropped_too_long = 0;
};

/// The batch that a selection makes of a list.
///
/// Errors: invalid_argument for a selection outside its domain; invalid_length for a length 0 that
/// is selected and not dropped; empty_input when nothing is left. O(n); pure.
[[nodiscard]] inline result<selected_batch> select_batch(const length_list& list,
                                                         const length_selection& wanted) {
  if (wanted.min_length < 0 || wanted.max_length < wanted.min_length) {
    return error{errc::invalid_argument,
                 "min-length " + std::to_string(wanted.min_length) + " and max-length " +
                     std::to_string(wanted.max_length) + " leave nothing",
                 wanted.min_length, wanted.max_length, "use 0 <= min-length <= max-length"};
  }
  if (wanted.skip < 0 || wanted.count < -1 || wanted.count == 0) {
    return error{errc::invalid_argument,
                 wanted.skip < 0 ? "skip is " + std::to_string(wanted.skip)
                                 : "batch is " + std::to_string(wanted.count),
                 wanted.skip < 0 ? wanted.skip : wanted.count, wanted.skip < 0 ? 0 : 1,
                 "skip 0 or more sequences and plan 1 or more"};
  }
  selected_batch out;
  out.read = static_cast<std::int64_t>(list.lengths.size());
  for (std::size_t i = 0; i < list.lengths.size(); ++i) {
    const std::int64_t length = list.lengths[i];
    if (length < wanted.min_length || length > wanted.max_length) {
      ++out.filtered;
      continue;
    }
    if (out.skipped < wanted.skip) {
      ++out.skipped;
      continue;
    }
    const std::int64_t taken = static_cast<std::int64_t>(out.sequences.size()) +
                               out.dropped_empty + out.dropped_too_long;
    if (wanted.count >= 0 && taken == wanted.count) {
      ++out.left;
      continue;
    }
    if (length == 0 && !wanted.drop_empty) {
      return invalid_length_error(detail::at_line(list.source, list.lines[i]) + ": the sequence",
                                  0);
    }
    if (length == 0) {
      ++out.dropped_empty;
    } else if (wanted.drop_above > 0 && length > wanted.drop_above) {
      ++out.dropped_too_long;
    } else {
      out.sequences.push_back({static_cast<std::int64_t>(out.sequences.size()), length,
                               list.atoms.empty() ? -1 : list.atoms[i]});
      out.source_lines.push_back(list.lines[i]);
    }
  }
  if (out.sequences.empty()) {
    return error{errc::empty_input,
                 "no sequence is left of the " + std::to_string(out.read) + " in " + list.source +
                     ": " + std::to_string(out.filtered) + " are filtered by length, " +
                     std::to_string(out.skipped) + " skipped, " +
                     std::to_string(out.dropped_empty) + " empty, " +
                     std::to_string(out.dropped_too_long) + " too long",
                 0, 1, "widen --min-length and --max-length, or lower --skip"};
  }
  return out;
}

}  // namespace v0
}  // namespace dyncp
