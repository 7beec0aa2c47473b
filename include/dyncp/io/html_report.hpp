// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/io/svg.hpp>
#include <dyncp/io/table.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Builds one HTML page that needs nothing else: pictures stand in it as SVG, numbers as tables
/// and, for programs, as JSON. Byte for byte the same for the same calls. Not thread-safe;
/// distinct objects are independent.
class html_page {
 public:
  html_page(std::string_view title, std::string_view lead) {
    text_ = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
            xml_escaped(title) + "</title>\n<style>\n" + style() +
            "</style>\n</head>\n<body>\n<h1>" + xml_escaped(title) + "</h1>\n<p class=\"lead\">" + xml_escaped(lead) + "</p>\n";
  }

  void heading(std::string_view words) { text_ += "<h2>" + xml_escaped(words) + "</h2>\n"; }
  void paragraph(std::string_view words) { text_ += "<p>" + xml_escaped(words) + "</p>\n"; }

  /// Big numbers in a row: (value, what it is).
  void figures(const std::vector<std::pair<std::string, std::string>>& values) {
    text_ += "<div class=\"figures\">\n";
    for (const auto& [value, what] : values) {
      text_ += "<div><b>" + xml_escaped(value) + "</b><span>" + xml_escaped(what) +
               "</span></div>\n";
    }
    text_ += "</div>\n";
  }

  void picture(const std::string& svg) {
    text_ += "<div class=\"picture\">\n" + svg + "</div>\n";
  }

  /// The row `emphasised` (counted from 0) stands out.
  void table(const text_table& t, std::size_t emphasised = static_cast<std::size_t>(-1)) {
    text_ += "<div class=\"picture\"><table>\n<thead>";
    row("th", t.header());
    text_ += "</thead>\n<tbody>\n";
    for (std::size_t i = 0; i < t.rows().size(); ++i) {
      row("td", t.rows()[i], i == emphasised ? " class=\"best\"" : "");
    }
    text_ += "</tbody>\n</table></div>\n";
  }

  /// JSON for programs, not shown.
  void data(std::string_view id, std::string json) {
    // "</" would end the script element.
    for (std::size_t at = 0; (at = json.find("</", at)) != std::string::npos; at += 3) {
      json.replace(at, 2, "<\\/");
    }
    text_ += "<script type=\"application/json\" id=\"" + xml_escaped(id) + "\">\n" + json +
             "</script>\n";
  }

  [[nodiscard]] std::string take() { return std::move(text_) + "</body>\n</html>\n"; }

 private:
  static std::string style() {
    return "body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1240px;margin:2em auto;"
           "padding:0 1em}\n"
           "h1{font-size:1.5em;margin:0 0 .2em}h2{font-size:1.15em;margin:2em 0 .5em}\n"
           ".lead{color:#555;margin-top:0}\n"
           ".figures{display:flex;flex-wrap:wrap;gap:1em;margin:1.2em 0}\n"
           ".figures div{background:#f3f3f3;border-radius:6px;padding:.7em 1.1em}\n"
           ".figures b{display:block;font-size:1.5em}.figures span{color:#555}\n"
           ".picture{overflow-x:auto;margin:.6em 0}\n"
           "table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}\n"
           "th,td{padding:.35em .55em;text-align:right;border-bottom:1px solid #ddd;"
           "white-space:nowrap}\n"
           "th:first-child,td:first-child{text-align:left}\n"
           "th{color:#555;font-weight:600}tr.best td{font-weight:600;background:#eef6fb}\n";
  }

  void row(const char* cell, const std::vector<std::string>& values, const char* attribute = "") {
    text_ += std::string("<tr") + attribute + ">";
    for (const std::string& value : values) {
      text_ += std::string("<") + cell + ">" + xml_escaped(value) + "</" + cell + ">";
    }
    text_ += "</tr>\n";
  }

  std::string text_;
};

}  // namespace v0
}  // namespace dyncp
