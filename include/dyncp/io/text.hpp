// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Numbers to and from text, without locale: the same bytes on every machine. All functions here
/// are pure and safe to call concurrently.
namespace text {

enum class parse_status { ok, malformed, overflow };

struct parsed_integer {
  parse_status status = parse_status::malformed;
  std::int64_t value = 0;
};

/// An integer of decimal digits with an optional minus sign, nothing before or after it.
[[nodiscard]] inline parsed_integer parse_integer(std::string_view text) noexcept {
  parsed_integer out;
  const char* const end = text.data() + text.size();
  const auto [last, code] = std::from_chars(text.data(), end, out.value);
  if (last != end) return out;
  if (code == std::errc{}) out.status = parse_status::ok;
  if (code == std::errc::result_out_of_range) out.status = parse_status::overflow;
  return out;
}

struct parsed_number {
  bool ok = false;
  double value = 0;
};

/// A finite decimal number: "600e12", "0.5", "-3". Hexadecimal, "inf" and "nan" are refused.
[[nodiscard]] inline parsed_number parse_number(std::string_view text) noexcept {
  parsed_number out;
  const char* const end = text.data() + text.size();
  const auto [last, code] = std::from_chars(text.data(), end, out.value);
  out.ok = last == end && code == std::errc{} && std::isfinite(out.value);
  return out;
}

/// The text in quotes for a message: control bytes escaped, cut after 40 bytes.
[[nodiscard]] inline std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 40;
  constexpr const char* digits = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    } else {
      out += c;
    }
  }
  out += text.size() > longest ? "'..." : "'";
  return out;
}

/// The shortest decimal text that reads back as the same double; "null" if it is not finite.
[[nodiscard]] inline std::string shortest(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[32];
  const auto done = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, done.ptr};
}

/// The value with `digits` digits after the point, for |value| < 1e18 and digits <= 9; values
/// outside are given in the shortest form.
[[nodiscard]] inline std::string fixed(double value, int digits) {
  if (!(std::abs(value) < 1e18)) return shortest(value);
  char buffer[48];
  const auto done =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, digits);
  return {buffer, done.ptr};
}

[[nodiscard]] inline std::string to_decimal(int128 value) {
  const bool negative = value < 0;
  std::string out;
  do {
    const int digit = static_cast<int>(value % 10);
    out += static_cast<char>('0' + (digit < 0 ? -digit : digit));
    value /= 10;
  } while (value != 0);
  if (negative) out += '-';
  std::reverse(out.begin(), out.end());
  return out;
}

/// "5,812,345"
[[nodiscard]] inline std::string grouped(int128 value) {
  std::string out = to_decimal(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t i = out.size(); i > first + 3; i -= 3) out.insert(i - 3, 1, ',');
  return out;
}

/// "12.35 s", "3.210 ms", "4.500 us": four digits that count.
[[nodiscard]] inline std::string human_seconds(double s) {
  const auto scaled = [](double value, const char* unit) {
    return fixed(value, value < 10 ? 3 : value < 100 ? 2 : 1) + unit;
  };
  if (s == 0) return "0 s";
  if (!(std::abs(s) < 1e18)) return shortest(s) + " s";
  if (std::abs(s) >= 0.9995) return scaled(s, " s");
  if (std::abs(s) >= 0.9995e-3) return scaled(s * 1e3, " ms");
  return scaled(s * 1e6, " us");
}

/// "21.4 %" of a share.
[[nodiscard]] inline std::string percent(double share, int digits = 1) {
  return fixed(100.0 * share, digits) + " %";
}

/// Edits (insert, delete, replace) that turn `a` into `b`. O(|a| * |b|).
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      const std::size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above + 1, row[j - 1] + 1, replace});
      diagonal = above;
    }
  }
  return row[b.size()];
}

/// The name nearest to `text`: the first that begins with it, or else by edits; "" when none shares
/// half of its letters.
[[nodiscard]] inline std::string nearest_name(std::string_view text,
                                              const std::vector<std::string>& names) {
  constexpr std::size_t longest = 64;
  std::string best;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const std::string& name : names) {
    const bool begun = text.size() >= 3 && name.substr(0, text.size()) == text;
    const std::size_t distance = begun ? 0 : edit_distance(text.substr(0, longest), name);
    if (distance < least && 2 * distance <= std::max(text.size(), name.size())) {
      least = distance;
      best = name;
    }
  }
  return best;
}

/// "a, b, c"
[[nodiscard]] inline std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace text
}  // namespace v0
}  // namespace dyncp
