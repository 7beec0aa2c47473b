// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A table of text for people: the first column to the left, the others to the right.
///
///   text_table t({"cp", "packs"});
///   t.add({"8", "12"});
///   std::string text = t.render("  ");
///
/// Distinct objects are independent; const members are safe to call concurrently.
class text_table {
 public:
  explicit text_table(std::vector<std::string> header) : header_(std::move(header)) {}

  /// Cells beyond the header's are cut off, missing ones are empty.
  void add(std::vector<std::string> row) {
    row.resize(header_.size());
    rows_.push_back(std::move(row));
  }

  [[nodiscard]] bool empty() const noexcept { return rows_.empty(); }
  [[nodiscard]] const std::vector<std::string>& header() const noexcept { return header_; }
  [[nodiscard]] const std::vector<std::vector<std::string>>& rows() const noexcept {
    return rows_;
  }

  /// Lines with `indent` before each and no blanks at their ends. Widths count UTF-8 characters.
  [[nodiscard]] std::string render(const std::string& indent = {}) const {
    std::vector<std::size_t> widths(header_.size(), 0);
    widen(widths, header_);
    for (const auto& row : rows_) widen(widths, row);
    std::string out;
    append(out, indent, widths, header_);
    for (const auto& row : rows_) append(out, indent, widths, row);
    return out;
  }

 private:
  static std::size_t width(const std::string& text) noexcept {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
  }

  static void widen(std::vector<std::size_t>& widths, const std::vector<std::string>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }

  static void append(std::string& out, const std::string& indent,
                     const std::vector<std::size_t>& widths, const std::vector<std::string>& row) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - width(row[i]), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? row[i] + blanks : blanks + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }

  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace v0
}  // namespace dyncp
