// SPDX-License-Identifier: Apache-2.0
#include "demos.hpp"

#include <dyncp/io/table.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

namespace megatron_style {
namespace {

constexpr scheduler all_schedulers[] = {scheduler::packing_only, scheduler::static_cp,
                                        scheduler::dynamic_cp};

std::string describe(const world_shape& w) {
  std::string text = fmt::format("{} ranks (dp*cp {}, pp {}, tp {}), {}", w.ranks(), w.domain,
                                 w.stages, w.tp, w.chunks == 1 ? "1F1B" : "interleaved 1F1B");
  return w.chunks == 1 ? text : fmt::format("{} with {} chunks", text, w.chunks);
}

std::string cp_mix(const dyncp::plan_statistics& plan) {
  std::string text;
  for (const dyncp::cp_usage& u : plan.cp_mix) {
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", u.packs, u.cp);
  }
  return text;
}

std::string range_of(std::int32_t least, std::int32_t most) {
  return least == most ? std::to_string(least) : fmt::format("{}..{}", least, most);
}

template <class T>
int compare_with_dense(const demo_options& demo, run_options options) {
  const reference<T> dense = make_reference<T>(options);
  const double bound = parity_bound(demo.single);
  int failed = 0;
  dyncp::text_table table(
      {"scheduler", "micro-batches", "loss", "loss error", "gradient error", ""});
  for (const scheduler who : all_schedulers) {
    options.plan_by = who;
    run_result run;
    if (demo.mpi) {
      if constexpr (sizeof(T) == sizeof(double)) run = run_mpi(options, &dense);
    } else {
      run = run_threads<T>(options, &dense);
    }
    if (!run.failures.empty()) throw std::runtime_error(run.failures.front());
    if (run.steps.empty()) continue;  // another process has them
    const deviation worst = run.worst();
    const bool equal = worst.loss <= bound && worst.gradient <= bound;
    failed += equal ? 0 : 1;
    std::map<std::int32_t, int> counts;
    for (const step_result& s : run.steps) ++counts[s.plan.micro_batches];
    table.add({std::string(name_of(who)),
               range_of(counts.begin()->first, counts.rbegin()->first),
               fmt::format("{:.6f}", run.steps.back().report.loss),
               fmt::format("{:.1e}", worst.loss), fmt::format("{:.1e}", worst.gradient),
               equal ? "equal" : "DIFFERENT"});
  }
  if (table.rows().empty()) return failed;
  fmt::print("{}, {} steps of {} samples, {}\n", describe(demo.world), demo.steps, demo.batch,
             demo.single ? "float" : "double");
  fmt::print("dense rank: loss {:.6f} at first, {:.6f} at last; equal means within {:.0e}\n{}\n",
             dense.losses.front(), dense.losses.back(), bound, table.render("  "));
  return failed;
}

}  // namespace

run_options make_run(const demo_options& demo, std::int32_t longest,
                     std::int64_t max_tokens_per_rank) {
  run_options o;
  o.world = demo.world;
  o.static_cp = demo.static_cp;
  o.max_tokens_per_rank = max_tokens_per_rank;
  o.global_batch_size = demo.batch;
  o.samples = make_samples(demo.batch * demo.steps, 8, longest, 7);
  return o;
}

int show_parity(const demo_options& demo) {
  // The longest sample needs the static CP size, and a few micro-batches come out of a batch.
  const run_options options = make_run(demo, 60 * demo.static_cp, 64);
  return demo.single ? compare_with_dense<float>(demo, options)
                     : compare_with_dense<double>(demo, options);
}

std::vector<race_entry> race(const demo_options& demo, std::int32_t rounds) {
  run_options options = make_run(demo, 1100, 1200 / demo.static_cp);
  // One batch, again and again: times differ by noise alone.
  for (std::size_t i = 0; i < options.samples.size(); ++i) {
    const sample& same = options.samples[i % static_cast<std::size_t>(demo.batch)];
    options.samples[i].length = same.length;
    options.samples[i].prompt = same.prompt;
  }
  std::vector<race_entry> entries;
  for (const scheduler who : all_schedulers) entries.push_back({who, {}});
  for (std::int32_t round = 0; round < rounds; ++round) {
    for (race_entry& e : entries) {
      options.plan_by = e.who;
      const run_result run = run_threads<double>(options, nullptr);
      if (!run.failures.empty()) throw std::runtime_error(run.failures.front());
      for (const step_result& s : run.steps) {
        const double so_far = e.best.report.makespan_s;
        if (so_far == 0 || s.report.makespan_s < so_far) e.best = s;
      }
    }
  }
  return entries;
}

bool same_order(const std::vector<race_entry>& entries, double margin) noexcept {
  for (const race_entry& a : entries) {
    for (const race_entry& b : entries) {
      if (a.best.plan.makespan_s * (1.0 + margin) >= b.best.plan.makespan_s) continue;
      if (a.best.report.makespan_s >= b.best.report.makespan_s) return false;
    }
  }
  return true;
}

int show_race(const demo_options& demo) {
  constexpr double margin = 0.05;
  const std::vector<race_entry> entries = race(demo, 2);
  const double slowest = entries.front().best.report.makespan_s;
  dyncp::text_table times({"scheduler", "micro-batches", "packs of CP size", "simulated ms",
                           "virtual ms", "speedup"});
  dyncp::text_table costs({"scheduler", "bubble", "pipeline wait ms", "group wait ms",
                           "planner wait ms", "ring KiB", "pipeline KiB", "gradient KiB"});
  for (const race_entry& e : entries) {
    const step_report& r = e.best.report;
    const std::string name(name_of(e.who));
    const auto kib = [](std::int64_t b) { return fmt::format("{:.0f}", double(b) / 1024.0); };
    const auto ms = [](double s) { return fmt::format("{:.2f}", 1e3 * s); };
    times.add({name, std::to_string(e.best.plan.micro_batches), cp_mix(e.best.plan),
               ms(e.best.plan.makespan_s), ms(r.makespan_s),
               fmt::format("{:.2f}x", slowest / r.makespan_s)});
    costs.add({name, fmt::format("{:.0f} %", 100.0 * r.bubble_share()), ms(r.pipeline_wait_s),
               ms(r.group_wait_s), ms(e.best.plan_wait_s), kib(r.ring_bytes),
               kib(r.pipeline_bytes), kib(r.gradient_bytes)});
  }
  const bool same = same_order(entries, margin);
  fmt::print("the same {} samples with each scheduler: {}, static CP {}\n", demo.batch,
             describe(demo.world), demo.static_cp);
  fmt::print("{}\n{}", times.render("  "), costs.render("  "));
  fmt::print("  order of simulated times that differ by over {:.0f} %: {}\n\n", 100 * margin,
             same ? "the same in virtual time" : "ANOTHER one in virtual time");
  return same ? 0 : 1;
}

int show_planning() {
  const planning_report r = plan_ahead(6);
  fmt::print("planning ahead, global batch size {}, 13B model on 512 GPUs, not trained here\n",
             r.sequences);
  fmt::print("  an iteration takes {:.1f} s (simulated), its plan at most {:.0f} ms\n",
             r.iteration_s, 1e3 * r.planning_s);
  fmt::print(
      "  the trainer waits {:.1f} ms for the first plan, {:.1f} ms for all others ({} late)\n\n",
      1e3 * r.first_wait_s, 1e3 * r.steady_wait_s, r.waits);
  return 0;
}

}  // namespace megatron_style
