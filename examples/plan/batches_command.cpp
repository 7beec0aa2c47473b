// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "input.hpp"
#include "outputs.hpp"
#include "packers.hpp"
#include "report.hpp"

#include <dyncp/io/files.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/plan_document.hpp>
#include <dyncp/io/table.hpp>
#include <dyncp/io/text.hpp>

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tool {
namespace {

namespace text = dyncp::text;

struct batch_result {
  dyncp::plan_statistics statistics;
  double bound_s = 0;
  double plan_s = 0;
};

// A bar on stderr, only where somebody is watching it.
class progress_bar {
 public:
  progress_bar(std::int64_t total, bool quiet)
      : total_(std::max<std::int64_t>(1, total)), shown_(!quiet && isatty(STDERR_FILENO) != 0) {}
  ~progress_bar() {
    if (shown_) fmt::print(stderr, "\r\x1b[K");
  }
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;

  void show(std::int64_t done) const {
    if (!shown_) return;
    constexpr std::int64_t width = 40;
    const auto filled = static_cast<std::size_t>(width * done / total_);
    fmt::print(stderr, "\r[{:<40}] {} of {} batches", std::string(filled, '#'), done, total_);
    std::fflush(stderr);
  }

 private:
  std::int64_t total_;
  bool shown_;
};

// "plan.json" becomes "plan-7.json".
std::string numbered(const std::string& path, std::int64_t index) {
  const std::size_t slash = path.find_last_of('/');
  const std::size_t dot = path.find_last_of('.');
  const bool has_end = dot != std::string::npos && (slash == std::string::npos || dot > slash + 1);
  const std::size_t at = has_end ? dot : path.size();
  return path.substr(0, at) + "-" + std::to_string(index) + path.substr(at);
}

// Lengths that the filter leaves, after --skip.
std::int64_t count_left(const options& o, const dyncp::length_list& list) {
  const auto kept = std::count_if(list.lengths.begin(), list.lengths.end(), [&](std::int64_t n) {
    return n >= o.min_length && n <= o.max_length;
  });
  const std::int64_t skipped = std::max<std::int64_t>(0, o.skip);
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(kept) - skipped);
}

std::vector<dyncp::cp_usage> total_mix(const std::vector<batch_result>& all) {
  std::map<std::int32_t, dyncp::cp_usage> sum;
  for (const batch_result& b : all) {
    for (const dyncp::cp_usage& use : b.statistics.cp_mix) {
      dyncp::cp_usage& s = sum[use.cp];
      s.cp = use.cp;
      s.packs += use.packs;
      s.sequences += use.sequences;
      s.tokens += use.tokens;
    }
  }
  std::vector<dyncp::cp_usage> mix;
  for (const auto& [cp, use] : sum) mix.push_back(use);
  return mix;
}

std::string batch_table(const std::vector<batch_result>& all, bool every) {
  constexpr std::size_t head = 12;
  constexpr std::size_t tail = 4;
  dyncp::text_table table({"batch", "sequences", "tokens", "M", "iteration", "TFLOP/s", "bubble",
                           "above bound", "planned in"});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!every && all.size() > head + tail + 1 && i >= head && i < all.size() - tail) {
      if (i == head) {
        table.add({"...", std::to_string(all.size() - head - tail) + " more (-v)"});
      }
      continue;
    }
    const dyncp::plan_statistics& s = all[i].statistics;
    table.add({std::to_string(i), text::grouped(s.sequences), text::grouped(s.real_tokens),
               std::to_string(s.micro_batches), text::human_seconds(s.iteration_s),
               text::fixed(s.model_tflops_per_gpu, 1), text::percent(s.bubble),
               all[i].bound_s > 0 ? text::percent(s.makespan_s / all[i].bound_s - 1.0) : "",
               text::human_seconds(all[i].plan_s)});
  }
  return table.render();
}

std::string summary(const std::vector<batch_result>& all) {
  std::vector<double> iteration;
  double flops_time = 0;
  double time = 0;
  double slowest_plan = 0;
  double plan_time = 0;
  dyncp::int128 tokens = 0;
  for (const batch_result& b : all) {
    iteration.push_back(b.statistics.iteration_s);
    time += b.statistics.iteration_s;
    flops_time += b.statistics.model_tflops_per_gpu * b.statistics.iteration_s;
    plan_time += b.plan_s;
    slowest_plan = std::max(slowest_plan, b.plan_s);
    tokens += b.statistics.real_tokens;
  }
  std::sort(iteration.begin(), iteration.end());
  const double count = static_cast<double>(all.size());
  return fmt::format("{} batches, {} tokens in {}: mean iteration {}, median {}, longest {}\n"
                     "{} TFLOP/s per GPU over all; planned in {} a batch, {} at most\n",
                     all.size(), text::grouped(tokens), text::human_seconds(time),
                     text::human_seconds(time / count),
                     text::human_seconds(iteration[iteration.size() / 2]),
                     text::human_seconds(iteration.back()),
                     text::fixed(time > 0 ? flops_time / time : 0.0, 1),
                     text::human_seconds(plan_time / count), text::human_seconds(slowest_plan));
}

std::string to_json(const std::vector<batch_result>& all) {
  dyncp::json_writer w;
  w.begin_object().begin_array("batches");
  for (const batch_result& b : all) {
    w.begin_object();
    dyncp::write_statistics(w, "statistics", b.statistics);
    w.member("bound_s", b.bound_s).member("plan_s", b.plan_s).end();
  }
  w.end().begin_array("cp_mix");
  for (const dyncp::cp_usage& use : total_mix(all)) {
    w.begin_object(dyncp::json_layout::row).member("cp", use.cp).member("packs", use.packs);
    w.member("sequences", use.sequences).member("tokens", use.tokens).end();
  }
  return w.end().end().take();
}

dyncp::result<std::int64_t> wanted_batches(const options& o, std::int64_t left) {
  if (!o.is_given("batch")) {
    return dyncp::make_error(dyncp::errc::invalid_argument, "--batches needs --batch",
                             "say how many sequences a batch has: --batch N");
  }
  if (o.batch < 1) {
    return dyncp::error{dyncp::errc::invalid_argument, "batch is " + std::to_string(o.batch),
                        o.batch, 1, "use 1 or more"};
  }
  const std::int64_t whole = std::max<std::int64_t>(1, left / o.batch);
  if (o.batches == "all") return whole;
  const text::parsed_integer count = text::parse_integer(o.batches);
  if (count.status != text::parse_status::ok || count.value < 1) {
    return dyncp::make_error(dyncp::errc::invalid_argument,
                             "batches is " + text::quoted(o.batches), "use all, or 1 or more");
  }
  if (count.value > whole) {
    fmt::print(stderr, "dyncp-plan: note: the file holds {} batches of {}, not {}\n", whole,
               o.batch, count.value);
  }
  return std::min(count.value, whole);
}

}  // namespace

int run_batches(const options& o, const packer_info& packer) {
  auto parameters = load_parameters(o);
  if (!parameters) return report_error(parameters.error(), o.json);
  auto job = load_job(o);
  if (!job) return report_error(job.error(), o.json);
  auto list = load_lengths(o);
  if (!list) return report_error(list.error(), o.json);
  const std::int64_t left = count_left(o, *list);
  auto count = wanted_batches(o, left);
  if (!count) return report_error(count.error(), o.json);

  std::vector<batch_result> all;
  {
    const progress_bar bar(*count, o.json);
    for (std::int64_t i = 0; i < *count; ++i) {
      bar.show(i);
      auto batch = take_batch(o, *list, *job, packer.static_cp, i);
      if (!batch) return report_error(batch.error(), o.json);
      job->sequences = batch->sequences;
      const auto start = std::chrono::steady_clock::now();
      auto made = run_packer(packer.name, *job, *parameters);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (!made) {
        dyncp::error e = with_line(made.error(), *batch, list->source);
        e.what = "batch " + std::to_string(i) + ": " + e.what;
        return report_error(e, o.json);
      }
      if (!o.out.empty()) {
        const std::string json =
            dyncp::to_json(make_document(*job, *batch, packer.name, *made));
        if (auto ok = dyncp::write_file(numbered(o.out, i), json); !ok) {
          return report_error(ok.error(), o.json);
        }
      }
      all.push_back({made->statistics, dyncp::to_seconds(made->certificate.binding().value),
                     took.count()});
    }
  }
  if (o.json) {
    fmt::print("{}", to_json(all));
    return 0;
  }
  const std::vector<dyncp::cp_usage> mix = total_mix(all);
  const std::int64_t rest = left - std::min(left, *count * o.batch);
  fmt::print("{}\n{}\n{}{}", batch_table(all, o.verbose), describe_mix(mix), summary(all),
             mix_hint(mix, *job));
  if (rest > 0 && o.batches == "all") {
    fmt::print("{} sequences at the end make no whole batch and are left out\n",
               text::grouped(rest));
  }
  return 0;
}

}  // namespace tool
