// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/io/length_distribution.hpp>
#include <dyncp/io/svg.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A simulated plan and the words above its picture.
struct pictured_plan {
  std::string title;     ///< "packing_only"
  std::string subtitle;  ///< the numbers
  priced_plan priced;
  timeline time;         ///< of `priced`
  std::int32_t stages = 1;
};

namespace detail {

/// A step of 1, 2 or 5 times a power of ten that divides `span` into at most `most` parts.
[[nodiscard]] inline double round_step(double span, int most) {
  if (!(span > 0)) return 1.0;
  double step = std::pow(10.0, std::floor(std::log10(span / most)));
  for (const double factor : {2.0, 2.5, 2.0}) {
    if (span / step <= most) break;
    step *= factor;
  }
  return step;
}

/// The CP sizes in use, ascending.
[[nodiscard]] inline std::set<std::int32_t> sizes_in(const priced_plan& priced) {
  std::set<std::int32_t> sizes;
  for (const rank_range r : priced.ranks) sizes.insert(r.size);
  return sizes;
}

/// Boxes by CP size and direction, so that each colour is drawn once.
using boxes_by_color = std::map<std::pair<std::int32_t, bool>, std::vector<svg_box>>;

inline void draw_boxes(svg_writer& svg, const boxes_by_color& boxes) {
  for (const auto& [key, list] : boxes) {
    svg.fill_all(list, palette::of_cp(key.first), key.second ? 1.0 : 0.55);
  }
}

// `rows` says what a row is, in a picture of operations.
inline void draw_cp_legend(svg_writer& svg, double x, double y,
                           const std::set<std::int32_t>& sizes, const std::string& rows = {}) {
  svg.text(x, y, "CP size", 12, palette::faint);
  x += 54;
  for (const std::int32_t c : sizes) {
    svg.fill({x, y - 10, 12, 12}, palette::of_cp(c));
    svg.text(x + 16, y, std::to_string(c), 12);
    x += 28 + 8.0 * static_cast<double>(std::to_string(c).size());
  }
  if (rows.empty()) return;
  x += 12;
  svg.fill({x, y - 10, 12, 12}, palette::faint, 0.55);
  svg.text(x + 16, y, "forward (pale)", 12);
  svg.fill({x + 112, y - 10, 12, 12}, palette::faint);
  svg.text(x + 128, y, "backward", 12);
  svg.fill({x + 202, y - 10, 12, 12}, palette::empty);
  svg.text(x + 218, y, "bubble", 12);
  svg.text(x + 282, y, rows, 12, palette::faint);
}

/// Ranks to draw: all while their rows fit, else some at even distances, if possible a divisor of
/// the ranks, so that they fall on the first ranks of nodes and groups.
[[nodiscard]] inline std::vector<std::int32_t> ranks_to_draw(std::int32_t ranks,
                                                             std::int32_t stages) {
  constexpr std::int32_t most_rows = 40;
  const std::int32_t fit = std::clamp(most_rows / std::max(1, stages), 1, ranks);
  std::int32_t shown = fit;
  while (2 * shown > fit && ranks % shown != 0) --shown;
  if (ranks % shown != 0 || 2 * shown <= fit) shown = fit;
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < shown; ++i) {
    out.push_back(static_cast<std::int32_t>(std::int64_t{i} * ranks / shown));
  }
  return out;
}

class timeline_panel {
 public:
  timeline_panel(const pictured_plan& plan, double width, double seconds)
      : plan_(plan),
        ranks_(ranks_to_draw(plan.priced.num_ranks, plan.stages)),
        width_(width),
        per_second_((width - left - right) / seconds),
        seconds_(seconds) {}

  [[nodiscard]] double height() const {
    const double groups = static_cast<double>(ranks_.size());
    return top + groups * (plan_.stages * row + gap) + bottom;
  }

  void draw(svg_writer& svg, double y) const {
    svg.text(left, y + 16, plan_.title, 14, palette::ink, svg_writer::anchor::start, true);
    svg.text(left, y + 34, plan_.subtitle, 12, palette::faint);
    boxes_by_color boxes;
    std::vector<svg_box> lanes;
    const double first = y + top;
    const double end = to_seconds(plan_.time.makespan) * per_second_;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const double at = first + static_cast<double>(i) * (plan_.stages * row + gap);
      svg.text(left - 8, at + 0.5 * plan_.stages * row + 4, "rank " + std::to_string(ranks_[i]), 12,
               palette::ink, svg_writer::anchor::end);
      for (std::int32_t s = 0; s < plan_.stages; ++s) {
        lanes.push_back({left, at + s * row, end, row - 1});
      }
    }
    svg.fill_all(lanes, palette::empty);
    for (const timeline_slice& slice : plan_.time.slices) add(boxes, slice, first);
    draw_boxes(svg, boxes);
    draw_axis(svg, first);
  }

  static constexpr double left = 78;
  static constexpr double right = 24;

 private:
  static constexpr double top = 58;
  static constexpr double row = 10;
  static constexpr double gap = 6;
  static constexpr double bottom = 26;

  void add(boxes_by_color& boxes, const timeline_slice& slice, double first) const {
    const rank_range r = plan_.priced.ranks[static_cast<std::size_t>(slice.group)];
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (!r.contains(ranks_[i])) continue;
      const double x = left + to_seconds(slice.start) * per_second_;
      const double width = to_seconds(slice.end - slice.start) * per_second_;
      const double at = first + static_cast<double>(i) * (plan_.stages * row + gap) +
                        slice.stage * row;
      // A hair of space keeps neighbours apart where they are wide enough to see it.
      boxes[{r.size, slice.backward}].push_back(
          {x, at, width > 2.0 ? width - 0.4 : width, row - 1});
    }
  }

  void draw_axis(svg_writer& svg, double first) const {
    const double y = first + static_cast<double>(ranks_.size()) * (plan_.stages * row + gap);
    const double step = round_step(seconds_, 12);
    const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
    for (double t = 0; t <= seconds_ * (1 + 1e-9); t += step) {
      const double x = left + t * per_second_;
      svg.line(x, y - 2, x, y + 3, palette::faint);
      svg.text(x, y + 16, text::fixed(t, digits) + (t == 0 ? " s" : ""), 11, palette::faint,
               svg_writer::anchor::middle);
    }
    const double end = left + to_seconds(plan_.time.makespan) * per_second_;
    svg.line(end, first - 8, end, y + 3, palette::ink, "4 3");
    const bool inside = end > width_ - 90;
    svg.text(end + (inside ? -5 : 5), first - 3,
             text::human_seconds(to_seconds(plan_.time.makespan)), 12, palette::ink,
             inside ? svg_writer::anchor::end : svg_writer::anchor::start, true);
  }

  const pictured_plan& plan_;
  std::vector<std::int32_t> ranks_;
  double width_;
  double per_second_;
  double seconds_;
};

}  // namespace detail

/// One plan above the other on one time axis: what every stage of some ranks does when. A row is a
/// stage (the first on top), rows of a rank stand together; the colour is the CP size, forward
/// pale, backward full, the bubble grey. All ranks are drawn when they fit in 40 rows, else ranks
/// at even distances. Deterministic; O(slices). Requires a plan with a makespan above 0.
[[nodiscard]] inline std::string before_after_picture(const std::string& title,
                                                      const pictured_plan& before,
                                                      const pictured_plan& after,
                                                      double width = 1200) {
  const double seconds =
      to_seconds(std::max({before.time.makespan, after.time.makespan, ticks{1}}));
  const detail::timeline_panel upper(before, width, seconds);
  const detail::timeline_panel lower(after, width, seconds);
  std::set<std::int32_t> sizes = detail::sizes_in(before.priced);
  sizes.merge(detail::sizes_in(after.priced));
  constexpr double head = 62;
  svg_writer svg(width, head + upper.height() + lower.height() + 10, title);
  svg.text(detail::timeline_panel::left, 24, title, 16, palette::ink, svg_writer::anchor::start,
           true);
  const auto shown = detail::ranks_to_draw(after.priced.num_ranks, after.stages).size();
  const std::int32_t all = after.priced.num_ranks;
  detail::draw_cp_legend(svg, detail::timeline_panel::left, 46, sizes,
                         "rows of a rank are its stages, the first on top" +
                             (static_cast<std::int32_t>(shown) < all
                                  ? "; " + std::to_string(shown) + " of " + std::to_string(all) +
                                        " ranks are drawn"
                                  : std::string{}));
  upper.draw(svg, head);
  lower.draw(svg, head + upper.height());
  return svg.take();
}

/// Who works with whom: a column is a micro-batch, a row a rank, the colour the CP size of its
/// group; the deeper, the longer the pack takes beside the longest of the plan; grey is idle.
/// Deterministic; O(M * ranks) at most.
[[nodiscard]] inline std::string group_map(const pictured_plan& plan, double width = 1200) {
  constexpr double left = 78;
  constexpr double top = 66;
  const priced_plan& priced = plan.priced;
  const double columns = std::max(1, priced.num_micro_batches());
  const double row = std::min(320.0 / priced.num_ranks, 14.0);
  const double column = (width - left - 24) / columns;
  const double height = row * priced.num_ranks;
  svg_writer svg(width, top + height + 34, plan.title);
  svg.text(left, 20, plan.title, 14, palette::ink, svg_writer::anchor::start, true);
  svg.text(left, 38, plan.subtitle, 12, palette::faint);
  detail::draw_cp_legend(svg, left, 56, detail::sizes_in(priced));
  svg.fill({left, top, columns * column, height}, palette::empty);

  ticks longest = 1;
  for (const op_cost& cost : priced.costs) longest = std::max(longest, cost.total());
  constexpr int shades = 8;
  std::map<std::pair<std::int32_t, int>, std::vector<svg_box>> boxes;
  for (std::int32_t j = 0; j < priced.num_micro_batches(); ++j) {
    for (std::int32_t g = priced.first_group[static_cast<std::size_t>(j)];
         g < priced.first_group[static_cast<std::size_t>(j) + 1]; ++g) {
      const rank_range r = priced.ranks[static_cast<std::size_t>(g)];
      const double share =
          static_cast<double>(priced.costs[static_cast<std::size_t>(g)].total()) /
          static_cast<double>(longest);
      const int shade = std::clamp(static_cast<int>(share * shades), 0, shades - 1);
      const double inset = column > 4 ? 0.5 : 0.0;
      const double line = row * r.size > 4 ? 0.5 : 0.0;
      boxes[{r.size, shade}].push_back({left + j * column + inset, top + r.begin * row + line,
                                        column - 2 * inset, r.size * row - 2 * line});
    }
  }
  for (const auto& [key, list] : boxes) {
    svg.fill_all(list, palette::of_cp(key.first), 0.30 + 0.70 * (key.second + 1) / shades);
  }
  const std::int32_t rank_step = std::max(1, static_cast<std::int32_t>(std::ceil(16 / row)));
  for (std::int32_t r = 0; r < priced.num_ranks; r += static_cast<std::int32_t>(
                               next_power_of_two(rank_step))) {
    svg.text(left - 8, top + (r + 0.5) * row + 4, "rank " + std::to_string(r), 11, palette::faint,
             svg_writer::anchor::end);
  }
  const auto step = static_cast<std::int32_t>(std::max(1.0, detail::round_step(columns, 16)));
  for (std::int32_t j = 0; j < priced.num_micro_batches(); j += step) {
    svg.text(left + (j + 0.5) * column, top + height + 16,
             (j == 0 ? "micro-batch " : "") + std::to_string(j), 11, palette::faint,
             svg_writer::anchor::middle);
  }
  return svg.take();
}

/// The shares of sequences (full line) and of tokens (dashed) in sequences up to a length, with the
/// published points of a corpus where one is given. Deterministic.
[[nodiscard]] inline std::string distribution_picture(const std::string& title,
                                                      const length_distribution& lengths,
                                                      const corpus* published = nullptr,
                                                      double width = 760) {
  constexpr double left = 60;
  constexpr double top = 52;
  constexpr double height = 300;
  const double plot = width - left - 24;
  const std::int64_t longest = std::max<std::int64_t>(2, lengths.longest());
  const double high = std::ceil(std::log2(static_cast<double>(longest)));
  const double low = std::min(6.0, high - 1.0);  // from 64 tokens
  const auto x_of = [&](double length) {
    return left + plot * std::clamp((std::log2(length) - low) / (high - low), 0.0, 1.0);
  };
  const auto y_of = [&](double share) { return top + height * (1.0 - share); };
  svg_writer svg(width, top + height + 44, title);
  svg.text(left, 22, title, 14, palette::ink, svg_writer::anchor::start, true);
  svg.polyline({{left, 38}, {left + 24, 38}}, palette::categories[6], 2);
  svg.text(left + 30, 42, "sequences", 12);
  svg.polyline({{left + 110, 38}, {left + 134, 38}}, palette::categories[4], 2, "6 3");
  svg.text(left + 140, 42, "tokens", 12);
  if (published != nullptr && !published->points.empty()) {
    svg.circle(left + 212, 38, 3.5, palette::ink);
    svg.text(left + 222, 42, "published", 12);
  }
  for (int k = 0; k <= 4; ++k) {
    const double share = 0.25 * k;
    svg.line(left, y_of(share), left + plot, y_of(share), palette::line);
    svg.text(left - 8, y_of(share) + 4, text::fixed(100 * share, 0) + " %", 11, palette::faint,
             svg_writer::anchor::end);
  }
  for (double k = low; k <= high; k += 1.0) {
    const double x = x_of(std::exp2(k));
    svg.line(x, top + height, x, top + height + 4, palette::faint);
    const auto length = static_cast<std::int64_t>(std::exp2(k));
    svg.text(x, top + height + 18,
             length < 1024 ? std::to_string(length)
             : length < (1 << 20) ? std::to_string(length >> 10) + "K"
                                  : std::to_string(length >> 20) + "M",
             11, palette::faint, svg_writer::anchor::middle);
  }
  svg.text(left + plot / 2, top + height + 36, "sequence length, tokens", 12, palette::faint,
           svg_writer::anchor::middle);
  std::vector<std::pair<double, double>> sequences;
  std::vector<std::pair<double, double>> tokens;
  constexpr int steps = 160;
  for (int i = 0; i <= steps; ++i) {
    const double length = std::exp2(low + (high - low) * i / steps);
    const auto up_to = static_cast<std::int64_t>(length + 1e-9);
    sequences.emplace_back(x_of(length), y_of(lengths.sequences_up_to(up_to)));
    tokens.emplace_back(x_of(length), y_of(lengths.tokens_up_to(up_to)));
  }
  svg.polyline(sequences, palette::categories[6], 2);
  svg.polyline(tokens, palette::categories[4], 2, "6 3");
  if (published != nullptr) {
    for (const published_point& point : published->points) {
      const double x = x_of(static_cast<double>(point.at_most));
      if (point.sequences >= 0) svg.circle(x, y_of(point.sequences), 3.5, palette::ink);
      if (point.tokens >= 0) svg.circle(x, y_of(point.tokens), 3.5, palette::ink);
    }
  }
  return svg.take();
}

/// Quota and makespan over the number of micro-batches.
struct curve_picture_data {
  struct point {
    std::int32_t micro_batches = 0;
    double quota_s = 0;
    double makespan_s = 0;
  };
  std::vector<point> points;  ///< ascending in M
  std::int32_t chosen = 0;    ///< the planner's M; 0: none
  std::int32_t knee = 0;      ///< of the makespan; 0: none
};

namespace detail {

/// One plot of a value over M, from 0 up, with its own axis.
class curve_panel {
 public:
  curve_panel(svg_writer& svg, double x, double y, double width, double height, double low,
              double high, double most)
      : svg_(svg), x_(x), y_(y), width_(width), height_(height), low_(low), high_(high),
        most_(most) {}

  void axes(const std::string& name) {
    svg_.text(x_, y_ - 8, name, 12, palette::ink, svg_writer::anchor::start, true);
    const double step = round_step(most_, 5);
    for (double v = 0; v <= most_ * (1 + 1e-9); v += step) {
      svg_.line(x_, y_of(v), x_ + width_, y_of(v), palette::line);
      svg_.text(x_ - 8, y_of(v) + 4, v == 0 ? "0" : text::human_seconds(v), 11, palette::faint,
                svg_writer::anchor::end);
    }
    const double column = std::max(1.0, round_step(high_ - low_, 12));
    for (double m = std::ceil(low_ / column) * column; m <= high_ + 1e-9; m += column) {
      svg_.line(x_of(m), y_ + height_, x_of(m), y_ + height_ + 4, palette::faint);
      svg_.text(x_of(m), y_ + height_ + 17, text::fixed(m, 0), 11, palette::faint,
                svg_writer::anchor::middle);
    }
  }

  void curve(const std::vector<std::pair<double, double>>& values, std::string_view color) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [m, v] : values) points.emplace_back(x_of(m), y_of(v));
    svg_.polyline(points, color, 2);
    for (const auto& [x, y] : points) svg_.circle(x, y, 3, color);
  }

  /// `line` is where the words stand, counted from the bottom.
  void mark(double m, const std::string& words, std::string_view color, int line) {
    if (m < low_ || m > high_) return;
    const double x = x_of(m);
    svg_.line(x, y_, x, y_ + height_, color, "4 3");
    const bool left = x > x_ + 0.8 * width_;
    svg_.text(x + (left ? -5 : 5), y_ + height_ - 10 - 16 * line, words, 12, color,
              left ? svg_writer::anchor::end : svg_writer::anchor::start);
  }

 private:
  [[nodiscard]] double x_of(double m) const {
    return x_ + width_ * (m - low_) / std::max(1.0, high_ - low_);
  }
  [[nodiscard]] double y_of(double v) const { return y_ + height_ * (1.0 - v / most_); }

  svg_writer& svg_;
  double x_, y_, width_, height_, low_, high_, most_;
};

}  // namespace detail

/// Makespan above, quota below, over M, with the planner's choice and the knee marked (the
/// article's figure 7). Requires at least one point.
[[nodiscard]] inline std::string curve_picture(const std::string& title,
                                               const curve_picture_data& data,
                                               double width = 760) {
  constexpr double left = 78;
  constexpr double height = 200;
  svg_writer svg(width, 2 * height + 150, title);
  svg.text(left, 24, title, 14, palette::ink, svg_writer::anchor::start, true);
  std::vector<std::pair<double, double>> makespan;
  std::vector<std::pair<double, double>> quota;
  double most_makespan = 0;
  double most_quota = 0;
  for (const auto& p : data.points) {
    makespan.emplace_back(p.micro_batches, p.makespan_s);
    quota.emplace_back(p.micro_batches, p.quota_s);
    most_makespan = std::max(most_makespan, p.makespan_s);
    most_quota = std::max(most_quota, p.quota_s);
  }
  const double low = data.points.empty() ? 0 : data.points.front().micro_batches;
  const double high = data.points.empty() ? 1 : data.points.back().micro_batches;
  const double plot = width - left - 30;
  detail::curve_panel upper(svg, left, 60, plot, height, low, high, std::max(1e-12, most_makespan));
  upper.axes("simulated makespan");
  upper.curve(makespan, palette::categories[6]);
  if (data.chosen > 0) {
    upper.mark(data.chosen, "chosen M = " + std::to_string(data.chosen), palette::ink, 0);
  }
  if (data.knee > 0) {
    upper.mark(data.knee, "knee M = " + std::to_string(data.knee), palette::categories[4], 1);
  }
  detail::curve_panel lower(svg, left, 60 + height + 50, plot, height, low, high,
                            std::max(1e-12, most_quota));
  lower.axes("quota: forward + backward of an equal share, one virtual stage");
  lower.curve(quota, palette::categories[1]);
  svg.text(left + plot / 2, 2 * height + 144, "micro-batches M", 12, palette::faint,
           svg_writer::anchor::middle);
  return svg.take();
}

}  // namespace v0
}  // namespace dyncp
