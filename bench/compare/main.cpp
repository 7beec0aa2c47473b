// SPDX-License-Identifier: Apache-2.0
// All packers on the first lengths of a trace, R = 8, 32, 64, beside what published schedulers made
// of the same batch. Simulated times; see docs/baselines.md.
//
//   bench_compare [LENGTHS [PEERS [COUNT [REPEATS]]]]
//
// LENGTHS: a file of lengths, whose name without the ending is the trace of PEERS (the rows of
// tests/golden/peers.json). COUNT sequences (2048) of 16 .. 131072 tokens; CPU time is the best of
// REPEATS (3) plans.
#include "outcome.hpp"
#include "peers.hpp"

#include <dyncp/io/length_file.hpp>
#include <dyncp/io/table.hpp>
#include <dyncp/problem/presets.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

struct setting {
  std::int64_t limit;
  std::int32_t max_cp;  // 0: R
};

std::string number(double value, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

int fail(const dyncp::error& e) {
  std::fprintf(stderr, "bench_compare: %s\n", e.message().c_str());
  return 1;
}

std::string trace_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name.substr(0, name.find_last_of('.'));
}

const compare::peer_row* find(const std::vector<compare::peer_row>& rows,
                              const std::string& trace, const std::string& packer,
                              std::int32_t ranks, std::int64_t limit) {
  for (const compare::peer_row& row : rows) {
    if (row.trace == trace && row.packer == packer && row.ranks == ranks && row.limit == limit) {
      return &row;
    }
  }
  return nullptr;
}

std::vector<std::string> table_row(const dyncp::problem& p, const compare::outcome& o,
                                   const compare::peer_row* recorded) {
  std::vector<std::string> row{o.packer, std::to_string(p.parallel.ranks),
                               std::to_string(p.limits.max_tokens_per_rank)};
  if (!o.refused.empty()) {
    row.insert(row.end(), {"-", "-", number(o.cpu_ms, 2), o.refused});
    return row;
  }
  row.insert(row.end(), {std::to_string(o.micro_batches), number(o.iteration_s, 4),
                         number(o.cpu_ms, 2), o.violation.empty() ? "valid" : o.violation});
  if (recorded != nullptr) {
    row.insert(row.end(),
               {std::to_string(recorded->micro_batches), number(recorded->iteration_s, 4),
                number(100 * (o.iteration_s / recorded->iteration_s - 1), 4)});
  }
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string lengths = argc > 1 ? argv[1] : DYNCP_DATA_DIR "/github.len";
  const std::string peers = argc > 2 ? argv[2] : DYNCP_GOLDEN_DIR "/peers.json";
  dyncp::length_selection wanted;
  wanted.min_length = 16;
  wanted.max_length = 131072;
  wanted.count = argc > 3 ? std::strtoll(argv[3], nullptr, 10) : 2048;
  const auto repeats = static_cast<std::int32_t>(argc > 4 ? std::strtol(argv[4], nullptr, 10) : 3);

  const auto list = dyncp::read_length_file(lengths);
  if (!list) return fail(list.error());
  const auto batch = dyncp::select_batch(*list, wanted);
  if (!batch) return fail(batch.error());
  const auto rows = compare::read_peers(peers);
  if (!rows) return fail(rows.error());

  dyncp::problem p;
  p.sequences = batch->sequences;
  p.model = *dyncp::find_model("reference-13b");
  p.cluster = *dyncp::find_cluster("reference-13b");
  p.parallel.pp = 8;
  p.parallel.static_cp = 8;
  const bool recorded_batch = wanted.count == 2048;

  std::printf("%s: %zu sequences, reference-13b, pp 8, static cp 8; simulated\n",
              lengths.c_str(), p.sequences.size());
  dyncp::text_table table({"packer", "R", "limit", "M", "iteration s", "plan CPU ms", "plan",
                           "recorded M", "recorded s", "difference %"});
  // The recorded runs: 16384 tokens a rank with CP up to R, and #2959's 65536 with CP up to 8.
  for (const setting& s : {setting{16384, 0}, setting{65536, 8}}) {
    for (const std::int32_t ranks : {8, 32, 64}) {
      p.parallel.ranks = ranks;
      p.parallel.max_cp = s.max_cp;
      p.limits.max_tokens_per_rank = s.limit;
      compare::measure_all(p, repeats, [&](const compare::outcome& o) {
        const compare::peer_row* row =
            recorded_batch ? find(*rows, trace_of(lengths), o.packer, ranks, s.limit) : nullptr;
        table.add(table_row(p, o, row));
      });
    }
  }
  std::fputs(table.render().c_str(), stdout);
  return 0;
}
