// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/io/text.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Colours that people with any colour vision tell apart (Okabe and Ito), and what goes with them.
namespace palette {

inline constexpr std::array<std::string_view, 8> categories{
    "#56B4E9", "#009E73", "#F0E442", "#E69F00", "#D55E00", "#CC79A7", "#0072B2", "#555555"};
inline constexpr std::string_view ink = "#222222";
inline constexpr std::string_view faint = "#666666";
inline constexpr std::string_view line = "#D0D0D0";
inline constexpr std::string_view empty = "#F3F3F3";

/// The colour of a CP size: 1, 2, 4, ... each its own, from 128 on the last; others that of the
/// power of two below.
[[nodiscard]] constexpr std::string_view of_cp(std::int32_t cp) noexcept {
  std::size_t index = 0;
  while (cp > 1 && index + 1 < categories.size()) {
    cp /= 2;
    ++index;
  }
  return categories[index];
}

}  // namespace palette

/// Text for XML: & < > and quotes escaped.
[[nodiscard]] inline std::string xml_escaped(std::string_view raw) {
  std::string out;
  for (const char c : raw) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

/// A rectangle with its corner at the upper left.
struct svg_box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

/// Writes an SVG picture of a fixed size, in pixels from the upper left; byte for byte the same for
/// the same calls. Text is 11 pixels or more. Not thread-safe; distinct objects are independent.
class svg_writer {
 public:
  /// `title` is what screen readers and browsers name the picture by.
  svg_writer(double width, double height, std::string_view title) {
    text_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(width) +
            "\" height=\"" + number(height) + "\" viewBox=\"0 0 " + number(width) + " " +
            number(height) + "\" role=\"img\" font-family=\"system-ui, sans-serif\">\n<title>" +
            xml_escaped(title) + "</title>\n";
    fill({0, 0, width, height}, "#FFFFFF");
  }

  enum class anchor : std::int8_t { start, middle, end };

  void fill(svg_box b, std::string_view color, double opacity = 1.0) {
    text_ += "<rect" + attribute("x", b.x) + attribute("y", b.y) + attribute("width", b.width) +
             attribute("height", b.height) + " fill=\"" + std::string(color) + "\"" +
             (opacity < 1.0 ? attribute("fill-opacity", opacity) : "") + "/>\n";
  }

  /// Many rectangles of one colour, as one path.
  void fill_all(const std::vector<svg_box>& boxes, std::string_view color, double opacity = 1.0) {
    if (boxes.empty()) return;
    text_ += "<path fill=\"" + std::string(color) + "\"" +
             (opacity < 1.0 ? attribute("fill-opacity", opacity) : "") + " d=\"";
    for (const svg_box& b : boxes) {
      text_ += "M" + number(b.x) + " " + number(b.y) + "h" + number(b.width) + "v" +
               number(b.height) + "h" + number(-b.width) + "z";
    }
    text_ += "\"/>\n";
  }

  void line(double x1, double y1, double x2, double y2, std::string_view color,
            std::string_view dashes = {}) {
    text_ += "<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
             attribute("y2", y2) + " stroke=\"" + std::string(color) + "\"" +
             (dashes.empty() ? "" : " stroke-dasharray=\"" + std::string(dashes) + "\"") + "/>\n";
  }

  void polyline(const std::vector<std::pair<double, double>>& points, std::string_view color,
                double width, std::string_view dashes = {}) {
    text_ += "<polyline fill=\"none\" stroke=\"" + std::string(color) + "\"" +
             attribute("stroke-width", width) +
             (dashes.empty() ? "" : " stroke-dasharray=\"" + std::string(dashes) + "\"") +
             " points=\"";
    for (const auto& [x, y] : points) text_ += number(x) + "," + number(y) + " ";
    if (text_.back() == ' ') text_.pop_back();
    text_ += "\"/>\n";
  }

  void circle(double x, double y, double radius, std::string_view color) {
    text_ += "<circle" + attribute("cx", x) + attribute("cy", y) + attribute("r", radius) +
             " fill=\"" + std::string(color) + "\"/>\n";
  }

  void text(double x, double y, std::string_view words, double size = 12,
            std::string_view color = palette::ink, anchor where = anchor::start,
            bool bold = false) {
    text_ += "<text" + attribute("x", x) + attribute("y", y) +
             attribute("font-size", std::max(size, 11.0)) + " fill=\"" + std::string(color) +
             "\"" +
             (where == anchor::start    ? ""
              : where == anchor::middle ? " text-anchor=\"middle\""
                                        : " text-anchor=\"end\"") +
             (bold ? " font-weight=\"600\"" : "") + ">" + xml_escaped(words) + "</text>\n";
  }

  /// Closes the picture and gives it away.
  [[nodiscard]] std::string take() { return std::move(text_) + "</svg>\n"; }

 private:
  // Hundredths of a pixel, without trailing zeros.
  static std::string number(double value) {
    std::string out = text::fixed(value, 2);
    if (out.find('.') != std::string::npos) {
      out.erase(out.find_last_not_of('0') + 1);
      if (out.back() == '.') out.pop_back();
    }
    return out == "-0" ? "0" : out;
  }
  static std::string attribute(const char* name, double value) {
    return std::string(" ") + name + "=\"" + number(value) + "\"";
  }

  std::string text_;
};

}  // namespace v0
}  // namespace dyncp
