// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/padding.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/spec_fields.hpp>
#include <dyncp/plan/lower_bounds.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/limits.hpp>
#include <dyncp/problem/model_spec.hpp>
#include <dyncp/problem/parallel_spec.hpp>
#include <dyncp/problem/sequence.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The name of the file format, the value of its key "format".
inline constexpr std::string_view plan_format = "dyncp-plan-1";

/// A plan file: the plan and its lengths, and what is known of its making. docs/plan-format.md.
struct plan_document {
  dyncp::plan plan;
  std::vector<std::int64_t> seqlens;       ///< (n): what the samples of the plan index
  std::vector<std::int64_t> source_lines;  ///< (n) or empty: lines of the length file
  std::vector<std::int64_t> atoms;         ///< (n) or empty: `sequence::atom`, -1: none
  std::string packer;                      ///< empty: unknown
  std::optional<parallel_spec> parallel;   ///< `ranks` is the plan's
  std::optional<plan_limits> limits;       ///< `max_tokens_per_rank` is the plan's
  std::optional<model_spec> model;
  std::optional<cluster_spec> cluster;
  std::optional<plan_statistics> statistics;       ///< written, never read
  std::optional<dyncp::certificate> certificate;  ///< written, never read
};

namespace detail {

inline void write_padding(json_writer& w, const padding_rule& rule) {
  const bool only_multiple = !rule.zigzag && rule.multiple > 1;
  w.begin_object("pad", json_layout::row);
  w.member("mode", rule.zigzag ? "zigzag" : only_multiple ? "multiple" : "none");
  if (only_multiple) w.member("value", rule.multiple);
  if (rule.zigzag && rule.multiple > 1) w.member("multiple", rule.multiple);
  if (rule.sequence_parallel > 1) w.member("sequence_parallel", rule.sequence_parallel);
  if (rule.shard_multiple > 1) w.member("shard_multiple", rule.shard_multiple);
  w.end();
}

inline void write_integers(json_writer& w, std::string_view key,
                           const std::vector<std::int64_t>& values) {
  w.begin_array(key, json_layout::row);
  for (const std::int64_t v : values) w.value(v);
  w.end();
}

inline void write_micro_batches(json_writer& w, const plan& p) {
  w.begin_array("micro_batches");
  for (const micro_batch& mb : p.micro_batches) {
    w.begin_object(json_layout::row).begin_array("groups");
    for (const pack& pk : mb.packs) {
      w.begin_object().member("start", pk.ranks.begin).member("size", pk.ranks.size);
      w.begin_array("samples");
      for (const std::int32_t i : pk.sequences) w.value(i);
      w.end().end();
    }
    w.end().end();
  }
  w.end();
}

inline void write_parallel(json_writer& w, const parallel_spec& p) {
  w.begin_object("parallel", json_layout::row);
  w.member("pp", p.pp).member("vpp", p.vpp).member("tp", p.tp).member("static_cp", p.static_cp);
  w.member("min_cp", p.min_cp).member("max_cp", effective_max_cp(p));
  if (!p.cp_sizes.empty()) {
    w.begin_array("cp_sizes");
    for (const std::int32_t c : p.cp_sizes) w.value(c);
    w.end();
  }
  w.end();
}

inline void write_limits(json_writer& w, const plan_limits& l) {
  w.begin_object("limits", json_layout::row);
  w.member("max_inflight_tokens", l.max_inflight_tokens);
  w.member("max_sequences_per_pack", l.max_sequences_per_pack);
  w.member("micro_batches", l.micro_batches);
  w.member("micro_batch_multiple", l.micro_batch_multiple);
  w.member("no_idle_ranks", l.no_idle_ranks).member("uniform_cp", l.uniform_cp);
  w.end();
}

}  // namespace detail

/// Writes the statistics as the value of `key`; times in seconds.
inline void write_statistics(json_writer& w, std::string_view key, const plan_statistics& s) {
  w.begin_object(key);
  w.member("micro_batches", s.micro_batches);
  w.member("sequences", s.sequences);
  w.member("iteration_s", s.iteration_s);
  w.member("makespan_s", s.makespan_s);
  w.member("all_reduce_s", s.all_reduce_s);
  w.member("ideal_s", s.ideal_s);
  w.member("efficiency", s.efficiency);
  w.member("bubble", s.bubble);
  w.member("imbalance", s.imbalance);
  w.member("exposed_share", s.exposed_share);
  w.member("model_tflops_per_gpu", s.model_tflops_per_gpu);
  w.member("peak_tokens_per_rank", s.peak_tokens_per_rank);
  w.member("inflight_peak_tokens", s.inflight_peak_tokens);
  w.member("real_tokens", s.real_tokens);
  w.member("real_squares", s.real_squares);
  w.member("padded_tokens", s.padded_tokens);
  w.member("padded_squares", s.padded_squares);
  w.member("idle_slots", s.idle_slots);
  w.begin_array("cp_mix");
  for (const cp_usage& use : s.cp_mix) {
    w.begin_object(json_layout::row).member("cp", use.cp).member("packs", use.packs);
    w.member("sequences", use.sequences).member("tokens", use.tokens).end();
  }
  w.end().end();
}

/// Writes the lower bounds on the makespan, in seconds by name, as the value of `key`.
inline void write_certificate(json_writer& w, std::string_view key, const certificate& c) {
  w.begin_object(key, json_layout::row);
  for (const lower_bound& b : c.bounds) w.member(b.name, to_seconds(b.value));
  w.end();
}

/// The document as a plan file. Byte for byte the same for equal documents. O(size).
[[nodiscard]] inline std::string to_json(const plan_document& d) {
  json_writer w;
  w.begin_object().member("format", plan_format);
  w.member("num_ranks", d.plan.num_ranks);
  w.member("max_tokens_per_rank", d.plan.max_tokens_per_rank);
  detail::write_padding(w, d.plan.padding);
  if (!d.packer.empty()) w.member("packer", d.packer);
  if (d.parallel) detail::write_parallel(w, *d.parallel);
  if (d.limits) detail::write_limits(w, *d.limits);
  if (d.model) write_spec(w, "model", *d.model);
  if (d.cluster) write_spec(w, "cluster", *d.cluster);
  if (d.statistics) write_statistics(w, "statistics", *d.statistics);
  if (d.certificate) write_certificate(w, "bounds", *d.certificate);
  detail::write_integers(w, "seqlens", d.seqlens);
  if (!d.source_lines.empty()) detail::write_integers(w, "source_lines", d.source_lines);
  if (!d.atoms.empty()) detail::write_integers(w, "atoms", d.atoms);
  detail::write_micro_batches(w, d.plan);
  return w.end().take();
}

}  // namespace v0
}  // namespace dyncp
