// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "evaluate.hpp"
#include "input.hpp"
#include "outputs.hpp"
#include "packers.hpp"
#include "report.hpp"

#include <dyncp/io/files.hpp>
#include <dyncp/io/html_report.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/length_distribution.hpp>
#include <dyncp/io/pictures.hpp>
#include <dyncp/io/plan_document.hpp>
#include <dyncp/io/table.hpp>
#include <dyncp/io/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tool {
namespace {

namespace text = dyncp::text;

struct contender {
  std::string packer;
  dyncp::result<dyncp::planned> made;
  double plan_s = 0;
};

using contenders = std::vector<contender>;

// The first that made a plan: the one the others are measured by.
const contender* baseline_of(const contenders& all) {
  for (const contender& c : all) {
    if (c.made) return &c;
  }
  return nullptr;
}

const contender* best_of(const contenders& all) {
  const contender* best = nullptr;
  for (const contender& c : all) {
    if (!c.made) continue;
    if (best == nullptr || c.made->statistics.iteration_s < best->made->statistics.iteration_s) {
      best = &c;
    }
  }
  return best;
}

dyncp::text_table make_table(const contenders& all) {
  dyncp::text_table table({"packer", "iteration", "speed-up", "TFLOP/s", "bubble", "imbalance",
                           "exposed", "peak tokens", "in flight", "padding", "M", "above bound",
                           "planned in"});
  const contender* base = baseline_of(all);
  for (const contender& c : all) {
    if (!c.made) {
      table.add({c.packer, std::string(to_string(c.made.error().code))});
      continue;
    }
    const dyncp::plan_statistics& s = c.made->statistics;
    const double bound_s = dyncp::to_seconds(c.made->certificate.binding().value);
    const auto tokens = [](double t) { return text::grouped(static_cast<std::int64_t>(t + 0.5)); };
    table.add({c.packer, text::human_seconds(s.iteration_s),
               text::fixed(base->made->statistics.iteration_s / s.iteration_s, 2) + "x",
               text::fixed(s.model_tflops_per_gpu, 1), text::percent(s.bubble),
               text::fixed(s.imbalance, 2), text::percent(s.exposed_share),
               tokens(s.peak_tokens_per_rank), tokens(s.inflight_peak_tokens),
               text::percent(padding_share(s)), std::to_string(s.micro_batches),
               bound_s > 0 ? text::percent(s.makespan_s / bound_s - 1.0) : "",
               text::human_seconds(c.plan_s)});
  }
  return table;
}

std::string bound_line(const contenders& all) {
  const contender* best = best_of(all);
  const dyncp::lower_bound bound = best->made->certificate.binding();
  return fmt::format("No plan of this batch has a makespan below {} (bound: {}).\n",
                     text::human_seconds(dyncp::to_seconds(bound.value)), bound.name);
}

std::string to_json(const contenders& all) {
  dyncp::json_writer w;
  w.begin_object().begin_array("packers");
  for (const contender& c : all) {
    w.begin_object().member("packer", c.packer);
    if (c.made) {
      w.member("plan_s", c.plan_s);
      dyncp::write_statistics(w, "statistics", c.made->statistics);
      dyncp::write_certificate(w, "bounds", c.made->certificate);
    } else {
      w.member("error", to_string(c.made.error().code)).member("what", c.made.error().message());
    }
    w.end();
  }
  return w.end().end().take();
}

dyncp::pictured_plan picture_of(const contender& c, const dyncp::problem& p) {
  const dyncp::plan_statistics& s = c.made->statistics;
  simulation run = simulate(c.made->plan, p);
  return {c.packer,
          fmt::format("iteration {}, {} TFLOP/s per GPU, bubble {}, {} micro-batches, at most {} "
                      "tokens a rank",
                      text::human_seconds(s.iteration_s), text::fixed(s.model_tflops_per_gpu, 1),
                      text::percent(s.bubble), s.micro_batches,
                      text::grouped(static_cast<std::int64_t>(s.peak_tokens_per_rank + 0.5))),
          std::move(run.priced), std::move(run.time), p.parallel.pp};
}

std::string headline(const contender& base, const contender& best, const dyncp::problem& p) {
  const double before = base.made->statistics.iteration_s;
  const double after = best.made->statistics.iteration_s;
  return fmt::format("{} sequences on {} ranks x pp {}: {} {} to {} {}, {}x",
                     text::grouped(static_cast<std::int64_t>(p.sequences.size())),
                     p.parallel.ranks, p.parallel.pp, base.packer, text::human_seconds(before),
                     best.packer, text::human_seconds(after), text::fixed(before / after, 2));
}

std::string make_page(const contenders& all, const dyncp::problem& p, const std::string& source) {
  const contender& base = *baseline_of(all);
  const contender& best = *best_of(all);
  const dyncp::pictured_plan before = picture_of(base, p);
  const dyncp::pictured_plan after = picture_of(best, p);
  std::vector<std::int64_t> lengths;
  for (const dyncp::sequence& s : p.sequences) lengths.push_back(s.length);
  const dyncp::length_distribution distribution(lengths);
  const dyncp::plan_statistics& s = best.made->statistics;
  const std::string title = headline(base, best, p);

  dyncp::html_page page(
      "Dynamic context parallelism: " + title,
      fmt::format("{}; model {}, cluster {}, tp {}, vpp {}, at most {} tokens a rank. All times "
                  "are simulated.",
                  source, p.model.name, p.cluster.name, p.parallel.tp, p.parallel.vpp,
                  text::grouped(p.limits.max_tokens_per_rank)));
  page.figures({{text::fixed(base.made->statistics.iteration_s / s.iteration_s, 2) + "x",
                 "faster than " + base.packer},
                {text::human_seconds(s.iteration_s), "an iteration"},
                {text::fixed(s.model_tflops_per_gpu, 0), "TFLOP/s per GPU"},
                {text::percent(s.bubble), "bubble"},
                {text::human_seconds(best.plan_s), "to plan"}});
  page.heading("Packers side by side");
  std::size_t emphasised = 0;
  while (&all[emphasised] != &best) ++emphasised;
  page.table(make_table(all), emphasised);
  page.paragraph(bound_line(all));
  page.heading("Every stage over time");
  page.picture(dyncp::before_after_picture(title, before, after));
  page.heading("Who works together");
  page.picture(dyncp::group_map(before));
  page.picture(dyncp::group_map(after));
  page.heading("Sequence lengths");
  page.picture(dyncp::distribution_picture(
      fmt::format("{} sequences, {} tokens, longest {}", text::grouped(distribution.count()),
                  text::grouped(distribution.tokens()), text::grouped(distribution.longest())),
      distribution));
  page.data("compare", to_json(all));
  return page.take();
}

dyncp::result<std::vector<packer_info>> wanted_packers(const options& o) {
  std::vector<packer_info> out;
  const bool all = o.packers.size() == 1 && o.packers.front() == "all";
  if (o.packers.empty() || all) {
    // Ours is last, the baselines before it.
    for (const packer_info& p : packers()) {
      if (all || p.main) out.push_back(p);
    }
    std::rotate(out.begin(), out.begin() + 1, out.end());
    return out;
  }
  for (const std::string& name : o.packers) {
    auto packer = find_packer(name);
    if (!packer) return packer.error();
    out.push_back(*packer);
  }
  return out;
}

}  // namespace

int run_compare(const options& o) {
  auto wanted = wanted_packers(o);
  if (!wanted) return report_error(wanted.error(), o.json);
  auto parameters = load_parameters(o);
  if (!parameters) return report_error(parameters.error(), o.json);
  auto in = load_input(o, false);
  if (!in) return report_error(in.error(), o.json);
  contenders all;
  for (const packer_info& packer : *wanted) {
    const auto start = std::chrono::steady_clock::now();
    auto made = run_packer(packer.name, in->problem, *parameters);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    all.push_back({packer.name, std::move(made), took.count()});
  }
  if (baseline_of(all) == nullptr) {
    return report_error(with_line(all.front().made.error(), in->batch, in->source), o.json);
  }
  for (const contender& c : all) {
    if (c.made) continue;
    fmt::print(stderr, "dyncp-plan: note: {} made no plan: {}\n", c.packer,
               with_line(c.made.error(), in->batch, in->source).message());
  }
  const contender& base = *baseline_of(all);
  const contender& best = *best_of(all);
  if (!o.svg.empty()) {
    const std::string svg =
        dyncp::before_after_picture(headline(base, best, in->problem),
                                    picture_of(base, in->problem), picture_of(best, in->problem));
    if (auto ok = dyncp::write_file(o.svg, svg); !ok) return report_error(ok.error(), o.json);
  }
  if (!o.html.empty()) {
    const std::string source = in->source.substr(in->source.find_last_of('/') + 1);
    if (auto ok = dyncp::write_file(o.html, make_page(all, in->problem, source)); !ok) {
      return report_error(ok.error(), o.json);
    }
  }
  if (o.json) {
    fmt::print("{}", to_json(all));
    return 0;
  }
  fmt::print("{}{}\n{}\n{}", describe_selection(in->batch), describe_problem(in->problem),
             make_table(all).render(), bound_line(all));
  for (const std::string& path : {o.svg, o.html}) {
    if (!path.empty()) fmt::print("written to {}\n", path);
  }
  return 0;
}

}  // namespace tool
