// SPDX-License-Identifier: Apache-2.0
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/io/html_report.hpp>
#include <dyncp/io/pictures.hpp>
#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/problem/presets.hpp>

#include "support/random.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

struct compared {
  dyncp::problem problem;
  dyncp::pictured_plan before;
  dyncp::pictured_plan after;
};

template <class Packer>
dyncp::pictured_plan pictured(const dyncp::problem& p, const Packer& packer) {
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const auto plan = packer.pack(p, cost);
  REQUIRE(plan);
  dyncp::pictured_plan out;
  out.title = std::string(Packer::name) + " <&>";
  out.subtitle = "numbers";
  out.priced = dyncp::price_plan(*plan, p, cost);
  out.time = dyncp::event_simulator{}.trace(out.priced, {p.parallel.pp, 1});
  out.stages = p.parallel.pp;
  return out;
}

compared compare(std::int32_t ranks, std::int32_t pp) {
  dyncp_test::random rng(5);
  std::vector<std::int64_t> lengths{20000};
  for (int i = 0; i < 100; ++i) lengths.push_back(rng.between(50, 2000));
  compared c;
  c.problem.sequences = *dyncp::make_batch(lengths);
  c.problem.model = *dyncp::find_model("reference-13b");
  c.problem.cluster = *dyncp::find_cluster("reference-13b");
  c.problem.parallel.ranks = ranks;
  c.problem.parallel.pp = pp;
  c.problem.parallel.static_cp = 4;
  c.problem.limits.max_tokens_per_rank = 8192;
  c.before = pictured(c.problem, dyncp::packing_only{});
  c.after = pictured(c.problem, dyncp::dynamic_cp{});
  return c;
}

// Sum of the areas of all boxes h w v h in paths, without the lanes' colour.
double drawn_area(const std::string& svg) {
  double area = 0;
  for (std::size_t at = 0; (at = svg.find("<path fill=\"", at)) != std::string::npos;) {
    at += 12;
    const bool lane = svg.compare(at, dyncp::palette::empty.size(), dyncp::palette::empty) == 0;
    const std::size_t end = svg.find("\"/>", at);
    for (std::size_t box = svg.find('h', svg.find(" d=\"", at)); box < end;) {
      const double width = std::strtod(svg.c_str() + box + 1, nullptr);
      const std::size_t v = svg.find('v', box);
      const double height = std::strtod(svg.c_str() + v + 1, nullptr);
      if (!lane) area += width * height;
      box = svg.find('h', svg.find('z', box));
    }
    at = end;
  }
  return area;
}

}  // namespace

TEST_CASE("the before and after picture draws the busy time of the ranks it shows") {
  const compared c = compare(8, 4);
  const std::string svg = dyncp::before_after_picture("8 ranks: 2 s to 1 s", c.before, c.after);
  CHECK(svg.find("<svg ") == 0);
  CHECK(svg.find("<title>8 ranks: 2 s to 1 s</title>") != std::string::npos);
  CHECK(svg.find("packing_only &lt;&amp;&gt;") != std::string::npos);
  CHECK(svg == dyncp::before_after_picture("8 ranks: 2 s to 1 s", c.before, c.after));

  // All 8 ranks fit: 32 rows of 10 pixels, 9 of them filled; 1098 pixels are the longer makespan.
  double busy_s = 0;
  for (const dyncp::pictured_plan* plan : {&c.before, &c.after}) {
    for (const dyncp::timeline_slice& slice : plan->time.slices) {
      busy_s += dyncp::to_seconds(slice.end - slice.start) *
                plan->priced.ranks[static_cast<std::size_t>(slice.group)].size;
    }
  }
  const double longest_s =
      dyncp::to_seconds(std::max(c.before.time.makespan, c.after.time.makespan));
  const double expected = busy_s / longest_s * 1098.0 * 9.0;
  // Boxes are set apart by 0.4 pixels where they are wide.
  CHECK(std::abs(drawn_area(svg) / expected - 1.0) < 0.06);
}

TEST_CASE("many ranks are drawn at even distances, on first ranks of groups") {
  CHECK(dyncp::detail::ranks_to_draw(32, 8) == std::vector<std::int32_t>{0, 8, 16, 24});
  CHECK(dyncp::detail::ranks_to_draw(4, 4) == std::vector<std::int32_t>{0, 1, 2, 3});
  CHECK(dyncp::detail::ranks_to_draw(7, 16) == std::vector<std::int32_t>{0, 3});
  CHECK(dyncp::detail::ranks_to_draw(100, 64) == std::vector<std::int32_t>{0});
}

TEST_CASE("the map of groups colours every rank that works") {
  const compared c = compare(8, 2);
  const std::string svg = dyncp::group_map(c.after);
  double cells = 0;
  for (const dyncp::rank_range r : c.after.priced.ranks) cells += r.size;
  const double column = 1098.0 / c.after.priced.num_micro_batches();
  const double expected = cells * column * 14.0;
  CHECK(drawn_area(svg) <= expected);
  CHECK(drawn_area(svg) > 0.7 * expected);
}

TEST_CASE("colours stand for CP sizes") {
  CHECK(dyncp::palette::of_cp(1) != dyncp::palette::of_cp(2));
  CHECK(dyncp::palette::of_cp(4) != dyncp::palette::of_cp(8));
  CHECK(dyncp::palette::of_cp(6) == dyncp::palette::of_cp(4));
  CHECK(dyncp::palette::of_cp(1024) == dyncp::palette::of_cp(128));
}

TEST_CASE("text is never below 11 pixels, and escaped") {
  dyncp::svg_writer svg(100, 50, "a & b");
  svg.text(1, 2, "<x>", 4);
  const std::string out = svg.take();
  CHECK(out.find("font-size=\"11\"") != std::string::npos);
  CHECK(out.find("&lt;x&gt;") != std::string::npos);
  CHECK(out.find("<title>a &amp; b</title>") != std::string::npos);
}

TEST_CASE("axes have round steps") {
  CHECK(dyncp::detail::round_step(10, 10) == doctest::Approx(1));
  CHECK(dyncp::detail::round_step(17.2, 12) == doctest::Approx(2));
  CHECK(dyncp::detail::round_step(0.033, 12) == doctest::Approx(0.005));
  CHECK(dyncp::detail::round_step(0, 12) == 1.0);
}

TEST_CASE("distribution and curve pictures") {
  const dyncp::length_distribution d({100, 2000, 50000});
  const dyncp::corpus github = *dyncp::find_corpus("github");
  const std::string with_points = dyncp::distribution_picture("lengths", d, &github);
  const std::string without = dyncp::distribution_picture("lengths", d);
  CHECK(with_points.find("published") != std::string::npos);
  CHECK(without.find("published") == std::string::npos);
  CHECK(dyncp::distribution_picture("one", dyncp::length_distribution({1})).size() > 100);

  dyncp::curve_picture_data data;
  data.points = {{8, 2.0, 10.0}, {16, 1.0, 8.0}, {24, 0.7, 7.9}};
  data.chosen = 24;
  data.knee = 16;
  const std::string curve = dyncp::curve_picture("curve", data);
  CHECK(curve.find("knee M = 16") != std::string::npos);
  CHECK(curve.find("chosen M = 24") != std::string::npos);
  CHECK(dyncp::curve_picture("empty", {}).size() > 100);
}

TEST_CASE("a page holds its pictures, tables and data, and nothing from elsewhere") {
  dyncp::html_page page("a <b>", "lead");
  page.heading("numbers");
  page.figures({{"1.7x", "faster"}});
  dyncp::text_table table({"packer", "time"});
  table.add({"x<y", "1 s"});
  page.table(table, 0);
  page.data("blob", "{\"a\":\"</script>\"}");
  const std::string html = page.take();
  CHECK(html.find("<title>a &lt;b&gt;</title>") != std::string::npos);
  CHECK(html.find("<tr class=\"best\"><td>x&lt;y</td><td>1 s</td></tr>") != std::string::npos);
  CHECK(html.find("<\\/script>\"}") != std::string::npos);
  CHECK(html.find("src=") == std::string::npos);
  CHECK(html.find("href=") == std::string::npos);
}
