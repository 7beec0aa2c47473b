// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/io/text.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// How the members of a JSON object or array are set: one a line, or all on the line of the
/// bracket that opens them.
enum class json_layout : std::int8_t { lines, row };

/// Writes JSON text, byte for byte the same for the same calls: doubles in the shortest form that
/// reads back equal, keys in the order of the calls, two blanks of indentation.
///
///   json_writer w;
///   w.begin_object().member("cp", 8).begin_array("loads", json_layout::row).value(1.5).end();
///   std::string text = w.end().take();   // ends with a line feed
///
/// Requires balanced calls and keys in objects alone. Not thread-safe; distinct objects are
/// independent. Never fails: text that is not UTF-8 is written with replacement characters.
class json_writer {
 public:
  json_writer& begin_object(json_layout layout = json_layout::lines) {
    return open('{', '}', layout);
  }
  json_writer& begin_object(std::string_view key, json_layout layout = json_layout::lines) {
    return this->key(key).open('{', '}', layout);
  }
  json_writer& begin_array(json_layout layout = json_layout::lines) {
    return open('[', ']', layout);
  }
  json_writer& begin_array(std::string_view key, json_layout layout = json_layout::lines) {
    return this->key(key).open('[', ']', layout);
  }

  /// Closes the object or array that was opened last.
  json_writer& end() {
    DYNCP_ASSERT(!open_.empty());
    const level last = open_.back();
    open_.pop_back();
    if (last.members > 0 && last.layout == json_layout::lines) new_line();
    text_ += last.close;
    if (open_.empty()) text_ += '\n';
    return *this;
  }

  json_writer& key(std::string_view name) {
    separate();
    append_string(name);
    text_ += open_.back().layout == json_layout::lines ? ": " : ":";
    after_key_ = true;
    return *this;
  }

  template <class T>
  json_writer& member(std::string_view name, const T& value) {
    return key(name).value(value);
  }

  json_writer& value(std::string_view v) {
    separate();
    append_string(v);
    return *this;
  }
  json_writer& value(const std::string& v) { return value(std::string_view(v)); }
  json_writer& value(const char* v) { return value(std::string_view(v)); }
  json_writer& value(bool v) { return raw(v ? "true" : "false"); }
  json_writer& value(double v) { return raw(text::shortest(v)); }
  json_writer& value(int128 v) { return raw(text::to_decimal(v)); }
  template <std::integral T>
  json_writer& value(T v) {
    return raw(std::to_string(v));
  }

  /// A number that is text already: decimal digits, as JSON writes them.
  json_writer& number(std::string_view digits) { return raw(digits); }

  /// The text so far; complete when every bracket is closed.
  [[nodiscard]] const std::string& str() const noexcept { return text_; }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  struct level {
    char close;
    json_layout layout;
    std::size_t members;
  };

  json_writer& raw(std::string_view v) {
    separate();
    text_ += v;
    return *this;
  }

  json_writer& open(char bracket, char close, json_layout layout) {
    separate();
    // What lies in a row stays in it.
    if (!open_.empty() && open_.back().layout == json_layout::row) layout = json_layout::row;
    text_ += bracket;
    open_.push_back({close, layout, 0});
    return *this;
  }

  void separate() {
    if (std::exchange(after_key_, false) || open_.empty()) return;
    level& now = open_.back();
    if (now.members++ > 0) text_ += ',';
    if (now.layout == json_layout::lines) new_line();
  }

  void new_line() {
    text_ += '\n';
    text_.append(2 * open_.size(), ' ');
  }

  void append_string(std::string_view s) {
    text_ += '"';
    while (!s.empty()) {
      const auto byte = static_cast<unsigned char>(s.front());
      const std::size_t length = byte < 0x80 ? 1 : utf8_length(s);
      if (length == 0) {
        text_ += "\\ufffd";
        s.remove_prefix(1);
        continue;
      }
      if (length == 1) {
        append_ascii(s.front());
      } else {
        text_ += s.substr(0, length);
      }
      s.remove_prefix(length);
    }
    text_ += '"';
  }

  void append_ascii(char c) {
    constexpr const char* digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (byte < 0x20) {
      text_ += "\\u00";
      text_ += digits[byte >> 4];
      text_ += digits[byte & 15];
    } else {
      text_ += c;
    }
  }

  // Bytes of the well-formed character that `s` begins with; 0: none.
  static std::size_t utf8_length(std::string_view s) noexcept {
    const auto at = [&](std::size_t i) {
      return i < s.size() ? static_cast<unsigned char>(s[i]) : 0U;
    };
    const auto follows = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xbf) {
      return at(i) >= low && at(i) <= high;
    };
    const unsigned first = at(0);
    if (first >= 0xc2 && first <= 0xdf && follows(1)) return 2;
    if (first >= 0xe0 && first <= 0xef && follows(2) &&
        follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf)) {
      return 3;
    }
    if (first >= 0xf0 && first <= 0xf4 && follows(2) && follows(3) &&
        follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf)) {
      return 4;
    }
    return 0;
  }

  std::string text_;
  std::vector<level> open_;
  bool after_key_ = false;
};

}  // namespace v0
}  // namespace dyncp
