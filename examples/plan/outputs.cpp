// SPDX-License-Identifier: Apache-2.0
#include "outputs.hpp"

#include "evaluate.hpp"

#include <dyncp/io/chrome_trace.hpp>
#include <dyncp/io/files.hpp>

#include <algorithm>
#include <utility>

namespace tool {

dyncp::plan_document make_document(const dyncp::problem& problem,
                                   const dyncp::selected_batch& batch, const std::string& packer,
                                   const dyncp::planned& made) {
  dyncp::plan_document d;
  d.plan = made.plan;
  bool atomic = false;
  for (const dyncp::sequence& s : problem.sequences) {
    d.seqlens.push_back(s.length);
    d.atoms.push_back(s.atom);
    atomic = atomic || s.atom >= 0;
  }
  if (!atomic) d.atoms.clear();
  d.source_lines = batch.source_lines;
  d.packer = packer;
  d.parallel = problem.parallel;
  d.limits = problem.limits;
  d.model = problem.model;
  d.cluster = problem.cluster;
  d.statistics = made.statistics;
  d.certificate = made.certificate;
  return d;
}

dyncp::result<void> write_trace(const std::string& path, const dyncp::plan& plan,
                                const dyncp::problem& problem) {
  const simulation run = simulate(plan, problem);
  auto trace = dyncp::chrome_trace(plan, problem, run.priced, run.time);
  if (!trace) return trace.error();
  return dyncp::write_file(path, *trace);
}

dyncp::error with_line(dyncp::error e, const dyncp::selected_batch& batch,
                       const std::string& source) {
  if (e.code != dyncp::errc::sequence_too_long && e.code != dyncp::errc::overflow) return e;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    if (batch.sequences[i].length != e.value) continue;
    e.what += " (" + source + " line " + std::to_string(batch.source_lines[i]) + ")";
    break;
  }
  return e;
}

}  // namespace tool
