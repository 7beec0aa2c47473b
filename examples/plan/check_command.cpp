// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "evaluate.hpp"
#include "input.hpp"
#include "outputs.hpp"
#include "report.hpp"

#include <dyncp/io/format.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/plan_document.hpp>
#include <dyncp/io/text.hpp>

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

namespace tool {
namespace {

// Breaches by kind, in the order of the names.
std::map<std::string, std::int64_t> count_kinds(const std::vector<dyncp::violation>& violations) {
  std::map<std::string, std::int64_t> kinds;
  for (const dyncp::violation& v : violations) ++kinds[std::string(to_string(v.kind))];
  return kinds;
}

void write_times(dyncp::json_writer& w, std::string_view key,
                 const std::vector<std::vector<double>>& times) {
  w.begin_array(key);
  for (const std::vector<double>& row : times) {
    w.begin_array(dyncp::json_layout::row);
    for (const double t : row) w.value(t);
    w.end();
  }
  w.end();
}

std::string to_json(const evaluation& e) {
  dyncp::json_writer w;
  w.begin_object().member("valid", e.valid());
  w.begin_object("errors");
  for (const auto& [kind, count] : count_kinds(e.violations)) w.member(kind, count);
  w.end();
  w.begin_array("violations");
  for (const dyncp::violation& v : e.violations) {
    w.begin_object(dyncp::json_layout::row).member("kind", to_string(v.kind));
    w.member("micro_batch", v.micro_batch).member("group", v.group).member("sample", v.sequence);
    w.member("value", v.value).member("limit", v.limit).member("message", v.message).end();
  }
  w.end();
  if (e.timed) {
    const dyncp::plan_statistics& s = e.statistics;
    w.member("makespan_s", s.makespan_s).member("all_reduce_s", s.all_reduce_s);
    w.member("iteration_s", s.iteration_s).member("ideal_s", s.ideal_s);
    w.member("peak_tokens_per_rank", s.peak_tokens_per_rank);
    w.member("inflight_peak_tokens", s.inflight_peak_tokens);
    write_times(w, "forward_s", e.forward_s);
    write_times(w, "backward_s", e.backward_s);
    dyncp::write_statistics(w, "statistics", s);
  }
  return w.end().take();
}

void print_report(const plan_input& in, const evaluation& e, bool all) {
  constexpr std::size_t most_messages = 10;
  fmt::print("{}", describe_problem(in.problem));
  if (e.valid()) {
    fmt::print("plan   valid: {}\n", in.document.plan);
  } else {
    fmt::print("plan   INVALID: {} violation(s)\n", e.violations.size());
    for (const auto& [kind, count] : count_kinds(e.violations)) {
      fmt::print("  {:<20} {}\n", kind, count);
    }
    for (std::size_t i = 0; i < e.violations.size(); ++i) {
      if (!all && i == most_messages) {
        fmt::print("  ... {} more, --verbose lists them\n", e.violations.size() - i);
        break;
      }
      fmt::print("  {}\n", e.violations[i]);
    }
  }
  if (!e.timed) {
    fmt::print("\nno times: they mean nothing with these violations\n");
    return;
  }
  fmt::print("\n{}\n{}", describe_statistics(e.statistics),
             describe_micro_batches(in.document.plan, in.problem, e, all));
}

}  // namespace

int run_check(const options& o) {
  auto in = load_plan(o);
  if (!in) return report_error(in.error(), o.json);
  auto e = evaluate(in->document.plan, in->problem);
  if (!e) return report_error(e.error(), o.json);
  if (!o.trace.empty() && e->timed) {
    if (auto ok = write_trace(o.trace, in->document.plan, in->problem); !ok) {
      return report_error(ok.error(), o.json);
    }
  }
  if (o.json) {
    fmt::print("{}", to_json(*e));
  } else {
    print_report(*in, *e, o.verbose);
  }
  if (!e->valid()) {
    fmt::print(stderr, "dyncp-plan: invalid_plan: {}\n", e->violations.front());
    return 1;
  }
  return 0;
}

}  // namespace tool
