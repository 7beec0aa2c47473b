// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "evaluate.hpp"
#include "input.hpp"
#include "outputs.hpp"
#include "packers.hpp"
#include "report.hpp"

#include <dyncp/io/files.hpp>
#include <dyncp/io/plan_document.hpp>
#include <dyncp/io/text.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

namespace tool {
namespace {

// Says on stderr when the file held less than the batch that was asked for.
void note_short_batch(const options& o, const dyncp::selected_batch& b) {
  const std::int64_t taken =
      static_cast<std::int64_t>(b.sequences.size()) + b.dropped_empty + b.dropped_too_long;
  if (!o.is_given("batch") || taken >= o.batch) return;
  fmt::print(stderr, "dyncp-plan: note: only {} sequences were left for a batch of {}\n", taken,
             o.batch);
}

}  // namespace

int run_plan(const options& o) {
  auto packer = find_packer(o.packer);
  if (!packer) return report_error(packer.error(), o.json);
  for (const auto& [together, names] :
       {std::pair{!o.batches.empty() && o.curve, "--batches and --curve"},
        std::pair{!o.batches.empty() && !o.trace.empty(), "--batches and --trace"},
        std::pair{o.curve && !o.trace.empty(), "--curve and --trace"},
        std::pair{o.curve && !o.out.empty(), "--curve and --out"},
        std::pair{o.curve && o.is_given("micro-batches"), "--curve and --micro-batches"}}) {
    if (!together) continue;
    return report_error(dyncp::make_error(dyncp::errc::invalid_argument,
                                          std::string(names) + " exclude each other",
                                          "leave one of them out"),
                        o.json);
  }
  if (!o.svg.empty() && !o.curve) {
    return report_error(dyncp::make_error(dyncp::errc::invalid_argument,
                                          "--svg of plan draws the curve only",
                                          "add --curve, or use compare --svg for timelines"),
                        o.json);
  }
  if (!o.batches.empty()) return run_batches(o, *packer);
  if (o.curve) return run_curve(o, *packer);

  auto parameters = load_parameters(o);
  if (!parameters) return report_error(parameters.error(), o.json);
  auto in = load_input(o, packer->static_cp);
  if (!in) return report_error(in.error(), o.json);
  note_short_batch(o, in->batch);
  const auto start = std::chrono::steady_clock::now();
  auto made = run_packer(o.packer, in->problem, *parameters);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!made) return report_error(with_line(made.error(), in->batch, in->source), o.json);

  const dyncp::plan_document document = make_document(in->problem, in->batch, o.packer, *made);
  const std::string json = o.json || !o.out.empty() ? dyncp::to_json(document) : std::string();
  if (!o.out.empty()) {
    if (auto ok = dyncp::write_file(o.out, json); !ok) return report_error(ok.error(), o.json);
  }
  if (!o.trace.empty()) {
    if (auto ok = write_trace(o.trace, made->plan, in->problem); !ok) {
      return report_error(ok.error(), o.json);
    }
  }
  if (o.json) {
    fmt::print("{}", json);
    return 0;
  }
  auto evaluated = evaluate(made->plan, in->problem);
  if (!evaluated) return report_error(evaluated.error(), false);
  fmt::print("{}{}packer {}, planned in {}\n\n{}\n{}", describe_selection(in->batch),
             describe_problem(in->problem), o.packer, dyncp::text::human_seconds(took.count()),
             describe_statistics(made->statistics, &made->certificate),
             describe_micro_batches(made->plan, in->problem, *evaluated, o.verbose));
  fmt::print("{}", mix_hint(made->statistics.cp_mix, in->problem));
  if (!o.out.empty()) fmt::print("\nplan written to {}\n", o.out);
  if (!o.trace.empty()) fmt::print("trace written to {}: open it in ui.perfetto.dev\n", o.trace);
  return 0;
}

}  // namespace tool
