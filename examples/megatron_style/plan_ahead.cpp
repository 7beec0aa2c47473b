// SPDX-License-Identifier: Apache-2.0
#include "demos.hpp"
#include "planning.hpp"

#include <dyncp/io/corpora.hpp>
#include <dyncp/planner/async_planner.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

namespace megatron_style {

planning_report plan_ahead(std::int32_t iterations, std::int32_t ahead) {
  dyncp::problem job;
  job.model = dyncp::find_model("reference-13b").value();
  job.cluster = dyncp::find_cluster("reference-13b").value();
  job.parallel.ranks = 64;
  job.parallel.pp = 8;
  job.parallel.static_cp = 8;
  job.limits.max_tokens_per_rank = 16384;
  job.padding.zigzag = true;

  dyncp::corpus lengths = dyncp::find_corpus("github").value();
  lengths.longest = 262144;
  dyncp::length_generator draw(lengths, 1);
  const auto next_batch = [&] {
    dyncp::problem batch = job;
    for (std::int64_t i = 0; i < 2048; ++i) batch.sequences.push_back({i, draw.next()});
    return batch;
  };

  planning_report out;
  out.sequences = 2048;
  dyncp::async_planner planner(batch_scheduler(scheduler::dynamic_cp, job), {.depth = ahead + 1});
  std::int32_t submitted = 0;
  double planned_before = 0;
  for (std::int32_t i = 0; i < iterations; ++i) {
    for (; submitted <= i + ahead; ++submitted) {
      static_cast<void>(planner.submit(submitted, next_batch()));
    }
    const dyncp::planned plan = planner.take(i).value();
    const dyncp::async_planner_report report = planner.report();
    (i == 0 ? out.first_wait_s : out.steady_wait_s) += report.last_wait_s;
    out.waits += i > 0 && report.last_wait_s > 0 ? 1 : 0;
    out.planning_s = std::max(out.planning_s, report.planning_s - planned_before);
    planned_before = report.planning_s;
    const double iteration_s = plan.statistics.iteration_s;
    out.iteration_s = i == 0 ? iteration_s : std::min(out.iteration_s, iteration_s);
    // Training goes on for iteration_s; less is waited here, as long as planning needs.
    const double pause_s = std::min(iteration_s, 0.05 + 4.0 * out.planning_s);
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
  }
  return out;
}

}  // namespace megatron_style
