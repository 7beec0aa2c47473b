// SPDX-License-Identifier: Apache-2.0
// All packers over a grid of settings, beside what published schedulers made of the same batches,
// and whether the goals hold. Simulated times; see docs/baselines.md and docs/results.md.
//
//   bench_compare [--full] [--results FILE] [--rows] [TRACE...]
//
// TRACE: a file of lengths whose name without the ending is a trace of tests/golden/peers.json;
// none: examples/data/github.len. --results FILE keeps every cell as it is done, and goes on from
// there when started again (with --full: compare-full.jsonl unless named). --rows prints each
// packer's row of each cell. Exit status 1 if a goal does not hold.
#include "grid.hpp"
#include "outcome.hpp"
#include "peers.hpp"
#include "record.hpp"
#include "report.hpp"

#include <dyncp/plan/lower_bounds.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/sim/fluid_bound.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

constexpr std::int32_t repeats = 3;
constexpr std::int64_t search_steps = 20000;
constexpr std::int64_t article_pack_tokens = 131072;

int fail(const dyncp::error& e) {
  std::fprintf(stderr, "bench_compare: %s\n", e.message().c_str());
  return 2;
}

compare::record bound_record(std::string who, double makespan_s, double all_reduce_s) {
  compare::record r;
  r.who = std::move(who);
  r.state = "bound";
  r.makespan_s = makespan_s;
  r.iteration_s = makespan_s + all_reduce_s;
  return r;
}

std::vector<compare::record> run_single(const compare::cell& cell,
                                        const std::vector<compare::peer_row>& peers) {
  const dyncp::problem& p = cell.batches.front();
  const dyncp::analytic_cost cost(p.model, p.cluster, p.parallel);
  const double all_reduce_s = dyncp::all_reduce_s(p.model, p.cluster, p.parallel);
  std::vector<compare::record> records{compare::measure(dyncp::dynamic_cp{}, p, repeats)};
  dyncp::dynamic_cp longer;
  longer.search_steps = search_steps;
  records.push_back(compare::measure(longer, p, 1, "dynamic_cp searched"));
  std::ranges::move(compare::measure_baselines(p, repeats), std::back_inserter(records));
  for (const compare::peer_row& row : peers) {
    if (row.trace != cell.trace || row.ranks != p.parallel.ranks) continue;
    compare::record r;
    r.who = "recorded " + row.packer;
    r.state = row.valid ? "valid" : "invalid";
    r.micro_batches = row.micro_batches;
    r.iteration_s = row.iteration_s;
    r.makespan_s = row.iteration_s - all_reduce_s;
    records.push_back(std::move(r));
  }
  if (cell.fluid) {
    records.push_back(bound_record(
        "fluid bound", dyncp::fluid_makespan_bound(p, cost).makespan_s, all_reduce_s));
  }
  const dyncp::lower_bound proven = dyncp::lower_bounds(p, cost).binding();
  records.push_back(bound_record("certificate " + std::string(proven.name),
                                 dyncp::to_seconds(proven.value), all_reduce_s));
  return records;
}

// Means over the batches. A packer that fails one of them fails the cell.
std::vector<compare::record> run_article(const compare::cell& cell) {
  std::vector<compare::record> sums;
  for (const dyncp::problem& p : cell.batches) {
    dyncp::problem bounded = p;
    bounded.parallel.max_cp = 8;
    const std::vector<compare::record> batch{
        compare::measure(dyncp::packing_only{.pack_tokens = article_pack_tokens}, p, 1),
        compare::measure(dyncp::static_balanced{.pack_tokens = article_pack_tokens}, p, 1),
        compare::measure(dyncp::dynamic_cp{}, bounded, 1, "dynamic_cp cp<=8"),
        compare::measure(dyncp::dynamic_cp{}, p, 1),
        bound_record("no-bubble ideal", dyncp::detail::ideal_seconds(p),
                     dyncp::all_reduce_s(p.model, p.cluster, p.parallel))};
    if (sums.empty()) {
      sums = batch;
      continue;
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      sums[i].micro_batches = std::max(sums[i].micro_batches, batch[i].micro_batches);
      sums[i].makespan_s += batch[i].makespan_s;
      sums[i].iteration_s += batch[i].iteration_s;
      sums[i].cpu_ms += batch[i].cpu_ms;
      if (batch[i].state != "valid" && batch[i].state != "bound") sums[i].state = batch[i].state;
    }
  }
  const auto count = static_cast<double>(cell.batches.size());
  for (compare::record& r : sums) {
    r.makespan_s /= count;
    r.iteration_s /= count;
    r.cpu_ms /= count;
  }
  return sums;
}

}  // namespace

int main(int argc, char** argv) {
  bool full = false;
  bool rows = false;
  std::string results;
  std::vector<std::string> traces;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--full") {
      full = true;
    } else if (word == "--rows") {
      rows = true;
    } else if (word == "--results" && i + 1 < argc) {
      results = argv[++i];
    } else if (word.starts_with("-")) {
      std::fprintf(stderr,
                   "usage: bench_compare [--full] [--results FILE] [--rows] [TRACE...]\n");
      return 2;
    } else {
      traces.emplace_back(word);
    }
  }
  if (traces.empty()) traces.emplace_back(DYNCP_DATA_DIR "/github.len");
  if (full && results.empty()) results = "compare-full.jsonl";

  const auto grid = full ? compare::full_grid(traces) : compare::default_grid(traces);
  if (!grid) return fail(grid.error());
  const auto peers = compare::read_peers(DYNCP_GOLDEN_DIR "/peers.json");
  if (!peers) return fail(peers.error());
  std::vector<compare::record> records;
  if (!results.empty()) {
    auto kept = compare::read_records(results);
    if (!kept) return fail(kept.error());
    records = *std::move(kept);
  }
  std::set<std::pair<std::string, std::string>> done;
  for (const compare::record& r : records) done.emplace(r.set, r.cell);

  std::size_t position = 0;
  for (const compare::cell& cell : *grid) {
    std::fprintf(stderr, "\r%zu of %zu cells: %-50s", ++position, grid->size(), cell.name.c_str());
    if (done.contains({cell.set, cell.name})) continue;
    std::vector<compare::record> fresh =
        cell.set == "article" ? run_article(cell) : run_single(cell, *peers);
    for (compare::record& r : fresh) {
      r.set = cell.set;
      r.cell = cell.name;
    }
    if (!results.empty()) {
      if (auto ok = compare::append_records(results, fresh); !ok) return fail(ok.error());
    }
    std::ranges::move(fresh, std::back_inserter(records));
  }
  std::fputs("\r\n", stderr);

  std::puts("Simulated with the cost forms reference-13b and, for the article's setting, study-13b."
            "\n");
  if (rows) std::printf("%s\n", compare::rows_table(records).c_str());
  std::fputs(compare::summary(records).c_str(), stdout);
  const compare::goals goals = compare::check_goals(records);
  std::printf("goals\n%s", goals.table.c_str());
  return goals.all_hold ? 0 : 1;
}
