// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "evaluate.hpp"
#include "input.hpp"
#include "packers.hpp"
#include "report.hpp"

#include <dyncp/io/files.hpp>
#include <dyncp/io/plan_document.hpp>
#include <dyncp/io/text.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace tool {
namespace {

// An error that names a sequence by its place in the batch also tells its line in the file.
dyncp::error with_line(dyncp::error e, const input& in) {
  if (e.code != dyncp::errc::sequence_too_long && e.code != dyncp::errc::overflow) return e;
  for (std::size_t i = 0; i < in.problem.sequences.size(); ++i) {
    if (in.problem.sequences[i].length != e.value) continue;
    e.what += fmt::format(" ({} line {})", in.source, in.batch.source_lines[i]);
    break;
  }
  return e;
}

dyncp::plan_document make_document(const input& in, const options& o, dyncp::planned made) {
  dyncp::plan_document d;
  d.plan = std::move(made.plan);
  for (const dyncp::sequence& s : in.problem.sequences) d.seqlens.push_back(s.length);
  d.source_lines = in.batch.source_lines;
  d.packer = o.packer;
  d.parallel = in.problem.parallel;
  d.limits = in.problem.limits;
  d.model = in.problem.model;
  d.cluster = in.problem.cluster;
  d.statistics = std::move(made.statistics);
  return d;
}

}  // namespace

int run_plan(const options& o) {
  auto packer = find_packer(o.packer);
  if (!packer) return report_error(packer.error(), o.json);
  auto in = load_input(o, packer->static_cp);
  if (!in) return report_error(in.error(), o.json);
  if (o.is_given("batch") && static_cast<std::int64_t>(in->problem.sequences.size()) +
                                     in->batch.dropped_empty + in->batch.dropped_too_long <
                                 o.batch) {
    fmt::print(stderr, "dyncp-plan: note: only {} sequences were left for a batch of {}\n",
               in->problem.sequences.size(), o.batch);
  }

  const auto start = std::chrono::steady_clock::now();
  auto made = run_packer(o.packer, in->problem);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!made) return report_error(with_line(made.error(), *in), o.json);

  const dyncp::plan_document document = make_document(*in, o, std::move(*made));
  const std::string json = o.json || !o.out.empty() ? dyncp::to_json(document) : std::string();
  if (!o.out.empty()) {
    if (auto ok = dyncp::write_file(o.out, json); !ok) return report_error(ok.error(), o.json);
  }
  if (o.json) {
    fmt::print("{}", json);
    return 0;
  }
  auto evaluated = evaluate(document.plan, in->problem);
  if (!evaluated) return report_error(evaluated.error(), false);
  fmt::print("{}{}packer {}, planned in {}\n\n{}\n{}", describe_selection(in->batch),
             describe_problem(in->problem), o.packer, dyncp::text::human_seconds(took.count()),
             describe_statistics(*document.statistics),
             describe_micro_batches(document.plan, in->problem, *evaluated, o.verbose));
  if (!o.out.empty()) fmt::print("\nwritten to {}\n", o.out);
  return 0;
}

}  // namespace tool
