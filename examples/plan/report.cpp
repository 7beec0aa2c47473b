// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <dyncp/io/format.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/table.hpp>
#include <dyncp/io/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

namespace tool {
namespace {

namespace text = dyncp::text;

// "16 8x2 1x8": sizes of the groups of a micro-batch, largest first.
std::string group_sizes(const dyncp::micro_batch& mb) {
  std::map<std::int32_t, int, std::greater<>> count;
  for (const dyncp::pack& pk : mb.packs) ++count[pk.ranks.size];
  std::string out;
  for (const auto& [size, n] : count) {
    out += (out.empty() ? "" : " ") + std::to_string(size) +
           (n == 1 ? "" : "x" + std::to_string(n));
  }
  return out.empty() ? "-" : out;
}

}  // namespace

int exit_status(dyncp::errc code) noexcept {
  switch (code) {
    case dyncp::errc::invalid_argument:
    case dyncp::errc::unknown_name:
    case dyncp::errc::unsupported:
    case dyncp::errc::io_error: return 2;
    default: return 1;
  }
}

int report_error(const dyncp::error& e, bool json) {
  fmt::print(stderr, "dyncp-plan: {}: {}\n", e.code, e.what);
  if (e.value != 0 || e.limit != 0) {
    fmt::print(stderr, "  value {}, limit {}\n", e.value, e.limit);
  }
  if (!e.hint.empty()) fmt::print(stderr, "  hint: {}\n", e.hint);
  if (json) {
    dyncp::json_writer w;
    w.begin_object().member("valid", false).begin_object("error");
    w.member("code", to_string(e.code)).member("what", e.what).member("value", e.value);
    w.member("limit", e.limit).member("hint", e.hint).end();
    fmt::print("{}", w.end().str());
  }
  return exit_status(e.code);
}

std::string describe_problem(const dyncp::problem& p) {
  const dyncp::length_sums sums = dyncp::sum_lengths(p.sequences);
  const dyncp::parallel_spec& par = p.parallel;
  std::string shape = fmt::format("{} ranks x pp {}", par.ranks, par.pp);
  if (par.vpp > 1) shape += fmt::format(" (vpp {})", par.vpp);
  if (par.tp > 1) shape += fmt::format(" x tp {}", par.tp);
  const std::int64_t gpus = std::int64_t{par.ranks} * par.pp * par.tp;
  return fmt::format("batch  {} sequences, {} tokens, longest {}\n"
                     "job    {} = {} GPUs, {} tokens a rank, model {}, cluster {}\n",
                     text::grouped(sums.count), text::grouped(sums.tokens),
                     text::grouped(sums.longest), shape, text::grouped(gpus),
                     text::grouped(p.limits.max_tokens_per_rank), p.model.name, p.cluster.name);
}

double padding_share(const dyncp::plan_statistics& s) {
  if (s.real_tokens == 0) return 0.0;
  return static_cast<double>(s.padded_tokens - s.real_tokens) / static_cast<double>(s.real_tokens);
}

std::string describe_mix(const std::vector<dyncp::cp_usage>& mix) {
  std::int64_t all = 0;
  for (const dyncp::cp_usage& use : mix) all += use.tokens;
  dyncp::text_table table({"cp", "packs", "sequences", "tokens", "share"});
  for (const dyncp::cp_usage& use : mix) {
    table.add({std::to_string(use.cp), text::grouped(use.packs), text::grouped(use.sequences),
               text::grouped(use.tokens),
               text::percent(static_cast<double>(use.tokens) /
                             static_cast<double>(std::max<std::int64_t>(1, all)))});
  }
  return table.render();
}

std::string mix_hint(const std::vector<dyncp::cp_usage>& mix, const dyncp::problem& p) {
  const std::vector<std::int32_t> sizes = dyncp::allowed_cp_sizes(p.parallel);
  if (mix.size() != 1 || sizes.size() < 2) return {};
  if (mix.front().cp == sizes.front()) {
    return fmt::format("hint: every pack has the smallest cp, {}: no sequence here needs more; "
                       "dynamic CP pays with longer ones or a lower --max-tokens-per-rank\n",
                       mix.front().cp);
  }
  if (mix.front().cp == sizes.back()) {
    return fmt::format("hint: every pack has the largest cp, {}: raise --max-tokens-per-rank or "
                       "--max-cp if memory and ranks allow it\n",
                       mix.front().cp);
  }
  return {};
}

std::string describe_statistics(const dyncp::plan_statistics& s,
                                const dyncp::certificate* bounds) {
  const auto tokens = [](double t) { return text::grouped(static_cast<std::int64_t>(t + 0.5)); };
  std::string out;
  const auto row = [&](const char* name, const std::string& value, const std::string& more) {
    out += fmt::format("{:<14} {:>10}   {}\n", name, value, more);
  };
  row("iteration", text::human_seconds(s.iteration_s),
      fmt::format("makespan {} + all-reduce {}", text::human_seconds(s.makespan_s),
                  text::human_seconds(s.all_reduce_s)));
  if (bounds != nullptr && bounds->binding().value > 0) {
    const dyncp::lower_bound bound = bounds->binding();
    const double bound_s = dyncp::to_seconds(bound.value);
    row("bound", text::human_seconds(bound_s),
        fmt::format("no plan has a shorter makespan ({}); this one is {} above", bound.name,
                    text::percent(s.makespan_s / bound_s - 1.0)));
  }
  row("ideal", text::human_seconds(s.ideal_s),
      "all work spread evenly; efficiency " + text::percent(s.efficiency));
  row("throughput", text::fixed(s.model_tflops_per_gpu, 1),
      "TFLOP/s per GPU, model FLOPs of real tokens");
  row("bubble", text::percent(s.bubble),
      fmt::format("imbalance {}, exposed ring {}", text::fixed(s.imbalance, 3),
                  text::percent(s.exposed_share)));
  row("micro-batches", std::to_string(s.micro_batches),
      "idle slots of ranks: " + text::grouped(s.idle_slots));
  row("tokens a rank", tokens(s.peak_tokens_per_rank),
      "in flight on stage 0: " + tokens(s.inflight_peak_tokens));
  row("padding", text::percent(padding_share(s)), "of the real tokens");
  return out + "\n" + describe_mix(s.cp_mix);
}

std::string describe_micro_batches(const dyncp::plan& plan, const dyncp::problem& problem,
                                   const evaluation& e, bool all) {
  constexpr std::size_t head = 4;
  constexpr std::size_t tail = 2;
  const std::size_t count = plan.micro_batches.size();
  dyncp::text_table table(
      {"micro-batch", "groups", "sequences", "tokens", "most a rank", "forward", "backward"});
  for (std::size_t j = 0; j < count; ++j) {
    if (!all && count > head + tail + 1 && j >= head && j < count - tail) {
      if (j == head) {
        table.add({"...", fmt::format("{} more (-v)", count - head - tail)});
      }
      continue;
    }
    std::size_t sequences = 0;
    std::int64_t tokens = 0;
    std::int64_t most = 0;
    double forward = 0;
    double backward = 0;
    for (std::size_t g = 0; g < plan.micro_batches[j].packs.size(); ++g) {
      const dyncp::pack& pk = plan.micro_batches[j].packs[g];
      sequences += pk.sequences.size();
      if (!e.timed) continue;
      const std::int64_t held =
          dyncp::pack_load(pk, problem.sequences, plan.padding).tokens;
      tokens += held;
      most = std::max(most, dyncp::ceil_div(held, pk.ranks.size));
      forward = std::max(forward, e.forward_s[j][g]);
      backward = std::max(backward, e.backward_s[j][g]);
    }
    std::vector<std::string> row{std::to_string(j), group_sizes(plan.micro_batches[j]),
                                 text::grouped(static_cast<std::int64_t>(sequences))};
    if (e.timed) {
      for (std::string cell : {text::grouped(tokens), text::grouped(most),
                               text::human_seconds(forward), text::human_seconds(backward)}) {
        row.push_back(std::move(cell));
      }
    }
    table.add(std::move(row));
  }
  return table.render();
}

std::string describe_selection(const dyncp::selected_batch& b) {
  std::string out;
  const auto add = [&](std::int64_t n, const char* what) {
    if (n > 0) out += (out.empty() ? "" : ", ") + text::grouped(n) + " " + what;
  };
  add(b.filtered, "filtered by length");
  add(b.skipped, "skipped");
  add(b.left, "after the batch");
  add(b.dropped_empty, "empty and dropped");
  add(b.dropped_too_long, "too long and dropped");
  if (out.empty()) return out;
  return fmt::format("file   {} lengths: {}\n", text::grouped(b.read), out);
}

}  // namespace tool
