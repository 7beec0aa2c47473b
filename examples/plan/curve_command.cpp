// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "input.hpp"
#include "outputs.hpp"
#include "packers.hpp"
#include "report.hpp"

#include <dyncp/core/int_math.hpp>
#include <dyncp/cost/quota.hpp>
#include <dyncp/io/files.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/pictures.hpp>
#include <dyncp/io/table.hpp>
#include <dyncp/io/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace tool {
namespace {

namespace text = dyncp::text;

struct curve_point {
  std::int32_t micro_batches = 0;
  double quota_s = 0;     ///< forward and backward of an average pack on a virtual stage
  double makespan_s = 0;  ///< simulated; 0: no plan at this M
  double tflops = 0;
  double bubble = 0;
};

// Plans at fixed numbers of micro-batches, each once.
class sweep {
 public:
  sweep(const std::string& packer, const packer_parameters& parameters,
        const dyncp::problem& problem, double total_s)
      : packer_(packer), parameters_(parameters), problem_(problem), total_s_(total_s) {}

  const curve_point& at(std::int32_t m) {
    const auto known = points_.find(m);
    if (known != points_.end()) return known->second;
    curve_point p;
    p.micro_batches = m;
    p.quota_s = quota_s(m);
    problem_.limits.micro_batches = m;
    if (auto made = run_packer(packer_, problem_, parameters_)) {
      p.makespan_s = made->statistics.makespan_s;
      p.tflops = made->statistics.model_tflops_per_gpu;
      p.bubble = made->statistics.bubble;
    }
    return points_.emplace(m, p).first->second;
  }

  [[nodiscard]] double quota_s(std::int32_t m) const {
    const auto ranks = static_cast<std::size_t>(problem_.parallel.ranks);
    const auto solved = dyncp::quota(std::vector<std::int32_t>(ranks, m), problem_.parallel.vpp,
                                     problem_.parallel.pp, total_s_);
    return solved ? solved->per_micro_batch.front() : 0.0;
  }

 private:
  std::string packer_;
  packer_parameters parameters_;
  dyncp::problem problem_;
  double total_s_;
  std::map<std::int32_t, curve_point> points_;
};

std::string knee_line(const char* what, const dyncp::result<std::int32_t>& knee) {
  if (!knee) return fmt::format("knee of the {}: beyond the curve\n", what);
  return fmt::format("knee of the {}: M = {}, one more pp lowers it by less than 5 %\n", what,
                     *knee);
}

std::string bar_chart(const std::vector<curve_point>& points) {
  constexpr double width = 40;
  double longest = 0;
  for (const curve_point& p : points) longest = std::max(longest, p.makespan_s);
  dyncp::text_table table({"M", "quota", "makespan", "TFLOP/s", "bubble", ""});
  std::string out;
  for (const curve_point& p : points) {
    const bool planned = p.makespan_s > 0;
    table.add({std::to_string(p.micro_batches), text::human_seconds(p.quota_s),
               planned ? text::human_seconds(p.makespan_s) : "no plan",
               planned ? text::fixed(p.tflops, 1) : "",
               planned ? text::percent(p.bubble) : "", ""});
  }
  const std::string lines = table.render();
  std::size_t i = 0;
  for (std::size_t begin = 0; begin < lines.size(); ++i) {
    const std::size_t end = lines.find('\n', begin);
    out += lines.substr(begin, end - begin);
    if (i > 0 && points[i - 1].makespan_s > 0) {
      const double share = points[i - 1].makespan_s / longest;
      out += "  " + std::string(static_cast<std::size_t>(width * share + 0.5), '#');
    }
    out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string to_json(const std::vector<curve_point>& points,
                    const dyncp::result<std::int32_t>& quota_knee,
                    const dyncp::result<std::int32_t>& makespan_knee) {
  dyncp::json_writer w;
  w.begin_object();
  if (quota_knee) w.member("quota_knee", *quota_knee);
  if (makespan_knee) w.member("makespan_knee", *makespan_knee);
  w.begin_array("points");
  for (const curve_point& p : points) {
    w.begin_object(dyncp::json_layout::row).member("micro_batches", p.micro_batches);
    w.member("quota_s", p.quota_s);
    if (p.makespan_s > 0) {
      w.member("makespan_s", p.makespan_s).member("model_tflops_per_gpu", p.tflops);
      w.member("bubble", p.bubble);
    }
    w.end();
  }
  return w.end().end().take();
}

}  // namespace

int run_curve(const options& o, const packer_info& packer) {
  auto parameters = load_parameters(o);
  if (!parameters) return report_error(parameters.error(), o.json);
  auto in = load_input(o, packer.static_cp);
  if (!in) return report_error(in.error(), o.json);
  const dyncp::problem& p = in->problem;
  auto chosen = run_packer(o.packer, p, *parameters);
  if (!chosen) return report_error(with_line(chosen.error(), in->batch, in->source), o.json);

  // From the fewest that the token limit allows to beyond the planner's choice.
  const std::int64_t multiple = dyncp::micro_batch_multiple(p);
  const std::int64_t pp = p.parallel.pp;
  const double room =
      static_cast<double>(p.limits.max_tokens_per_rank) * static_cast<double>(p.parallel.ranks);
  const auto fewest = static_cast<std::int64_t>(
      static_cast<double>(chosen->statistics.real_tokens) / room);
  const std::int64_t most =
      std::min<std::int64_t>(1 << 20, std::max<std::int64_t>({6 * pp, 2 * fewest,
                                       std::int64_t{chosen->statistics.micro_batches} * 3 / 2}));
  const std::int64_t step =
      dyncp::round_up(std::max<std::int64_t>(1, (most - fewest) / 20), multiple);
  const std::int64_t first = dyncp::round_up(std::max<std::int64_t>(1, fewest), step);

  // The workload of the batch on one virtual stage, in rank seconds.
  const double total_s = chosen->statistics.ideal_s * p.parallel.ranks / p.parallel.vpp;
  sweep plans(o.packer, *parameters, p, total_s);
  std::vector<curve_point> points;
  for (std::int64_t m = first; m <= most; m += step) {
    points.push_back(plans.at(static_cast<std::int32_t>(m)));
  }
  auto start = static_cast<std::int32_t>(first);
  for (const curve_point& c : points) {
    if (c.makespan_s > 0) {
      start = c.micro_batches;
      break;
    }
  }
  const auto quota_knee = dyncp::knee([&](std::int32_t m) { return plans.quota_s(m); },
                                      p.parallel.pp, start, static_cast<std::int32_t>(multiple),
                                      1 << 20);
  const auto makespan_knee = dyncp::knee(
      [&](std::int32_t m) {
        const double s = plans.at(m).makespan_s;
        return s > 0 ? s : 1e300;  // no plan: never a knee
      },
      p.parallel.pp, start, static_cast<std::int32_t>(step), static_cast<std::int32_t>(most));
  if (!o.svg.empty()) {
    dyncp::curve_picture_data data;
    for (const curve_point& c : points) {
      if (c.makespan_s > 0) data.points.push_back({c.micro_batches, c.quota_s, c.makespan_s});
    }
    data.chosen = chosen->statistics.micro_batches;
    if (makespan_knee) data.knee = *makespan_knee;
    const std::string title = fmt::format("{}: makespan and quota over M, {} ranks, pp {}",
                                          o.packer, p.parallel.ranks, pp);
    if (auto ok = dyncp::write_file(o.svg, dyncp::curve_picture(title, data)); !ok) {
      return report_error(ok.error(), o.json);
    }
  }
  if (o.json) {
    fmt::print("{}", to_json(points, quota_knee, makespan_knee));
    return 0;
  }
  fmt::print("{}packer {}; quota: the work of the batch in equal shares, forward and backward of "
             "one virtual stage\n\n{}\nchosen: M = {}, makespan {}\n{}{}",
             describe_problem(p), o.packer, bar_chart(points), chosen->statistics.micro_batches,
             text::human_seconds(chosen->statistics.makespan_s),
             knee_line("makespan", makespan_knee), knee_line("quota", quota_knee));
  return 0;
}

}  // namespace tool
