// SPDX-License-Identifier: Apache-2.0
#include "input.hpp"

#include "evaluate.hpp"

#include <dyncp/core/int_math.hpp>
#include <dyncp/cost/memory.hpp>
#include <dyncp/io/files.hpp>
#include <dyncp/io/json.hpp>
#include <dyncp/io/spec_fields.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/problem/presets.hpp>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace tool {
namespace {

using dyncp::errc;
using dyncp::error;
using dyncp::result;

// A preset of that name, or else a file: what looks like a path is never taken for a typing error.
template <class Spec, class Find>
result<Spec> preset_or_file(const std::string& name, Find find) {
  auto preset = find(name);
  if (preset) return preset;
  const bool path = name.find('/') != std::string::npos || name.find('.') != std::string::npos;
  return path ? dyncp::read_spec_file<Spec>(name) : preset;
}

result<std::int32_t> narrow(const std::string& name, std::int64_t value) {
  if (value < std::numeric_limits<std::int32_t>::min() ||
      value > std::numeric_limits<std::int32_t>::max()) {
    return error{errc::invalid_argument, name + " is " + std::to_string(value), value,
                 std::numeric_limits<std::int32_t>::max(), "it must fit in 32 bits"};
  }
  return static_cast<std::int32_t>(value);
}

// An option that says "none" by being left out, not by a number below `least`.
result<std::int64_t> at_least(const options& o, const std::string& name, std::int64_t value,
                              std::int64_t least, std::int64_t otherwise) {
  if (!o.is_given(name)) return otherwise;
  if (value < least) {
    return error{errc::invalid_argument, name + " is " + std::to_string(value), value, least,
                 "use " + std::to_string(least) + " or more, or leave it out"};
  }
  return value;
}

struct job_field {
  const char* name;
  std::int64_t options::*option;
  std::int32_t dyncp::parallel_spec::*field;
};

constexpr job_field job_fields[] = {
    {"ranks", &options::ranks, &dyncp::parallel_spec::ranks},
    {"pp", &options::pp, &dyncp::parallel_spec::pp},
    {"vpp", &options::vpp, &dyncp::parallel_spec::vpp},
    {"tp", &options::tp, &dyncp::parallel_spec::tp},
    {"cp", &options::cp, &dyncp::parallel_spec::static_cp},
    {"min-cp", &options::min_cp, &dyncp::parallel_spec::min_cp},
    {"max-cp", &options::max_cp, &dyncp::parallel_spec::max_cp},
};

result<void> apply_parallel(const options& o, dyncp::parallel_spec& p) {
  for (const job_field& f : job_fields) {
    if (!o.is_given(f.name)) continue;
    auto value = narrow(f.name, o.*f.option);
    if (!value) return value.error();
    // 0 stands for "ranks" inside the library, but nobody who writes --max-cp 0 means that.
    if (f.field == &dyncp::parallel_spec::max_cp && *value == 0) {
      return error{errc::invalid_argument, "max-cp is 0", 0, 1, "max-cp must lie in 1 .. ranks"};
    }
    p.*f.field = *value;
  }
  if (!o.cp_sizes.empty()) p.cp_sizes.clear();
  for (const std::string& word : o.cp_sizes) {
    const dyncp::text::parsed_integer number = dyncp::text::parse_integer(word);
    if (number.status != dyncp::text::parse_status::ok || number.value < 1 ||
        number.value > dyncp::max_ranks) {
      return dyncp::make_error(errc::invalid_argument,
                               "cp-sizes holds " + dyncp::text::quoted(word),
                               "list whole numbers of 1 .. ranks: --cp-sizes 1,2,4,6");
    }
    p.cp_sizes.push_back(static_cast<std::int32_t>(number.value));
  }
  return {};
}

// Limits that `plan` and `check` share; the model and cluster are needed for --memory-gib.
result<void> apply_limits(const options& o, dyncp::problem& p) {
  dyncp::plan_limits& l = p.limits;
  auto inflight = at_least(o, "max-inflight-tokens", o.max_inflight_tokens, 1,
                           l.max_inflight_tokens);
  if (!inflight) return inflight.error();
  l.max_inflight_tokens = *inflight;
  auto cap = at_least(o, "max-sequences-per-pack", o.max_sequences_per_pack, 1,
                      l.max_sequences_per_pack);
  if (!cap) return cap.error();
  auto cap32 = narrow("max-sequences-per-pack", *cap);
  if (!cap32) return cap32.error();
  l.max_sequences_per_pack = *cap32;
  auto multiple = at_least(o, "micro-batch-multiple", o.micro_batch_multiple, 1,
                           l.micro_batch_multiple);
  if (!multiple) return multiple.error();
  auto multiple32 = narrow("micro-batch-multiple", *multiple);
  if (!multiple32) return multiple32.error();
  l.micro_batch_multiple = *multiple32;
  l.no_idle_ranks = l.no_idle_ranks || o.no_idle_ranks;
  l.uniform_cp = l.uniform_cp || o.uniform_cp;
  if (o.memory_gib.empty()) return {};
  const dyncp::text::parsed_number gib = dyncp::text::parse_number(o.memory_gib);
  if (!gib.ok || gib.value <= 0) {
    return dyncp::make_error(errc::invalid_argument,
                             "memory-gib is " + dyncp::text::quoted(o.memory_gib),
                             "give the memory of a GPU in GiB, above 0");
  }
  if (auto ok = dyncp::check(p.parallel); !ok) return ok;
  auto tokens = dyncp::max_inflight_tokens_for(gib.value, p.model, p.cluster, p.parallel,
                                               l.max_tokens_per_rank);
  if (!tokens) return tokens.error();
  l.max_inflight_tokens =
      l.max_inflight_tokens > 0 ? std::min(l.max_inflight_tokens, *tokens) : *tokens;
  return {};
}

result<dyncp::padding_rule> make_padding(const options& o, std::int32_t tp) {
  dyncp::padding_rule rule;
  if (o.pad != "none" && o.pad != "zigzag") {
    return dyncp::make_error(errc::unknown_name, "pad is " + dyncp::text::quoted(o.pad),
                             "known: none, zigzag; a multiple is --pad-multiple N");
  }
  rule.zigzag = o.pad == "zigzag";
  rule.multiple = o.pad_multiple;
  rule.shard_multiple = o.shard_multiple;
  if (o.sequence_parallel) rule.sequence_parallel = tp;
  return rule;
}

struct specs {
  dyncp::model_spec model;
  dyncp::cluster_spec cluster;
};

// What is planned when nothing is said.
specs default_specs() {
  return {*dyncp::find_model("reference-13b"), *dyncp::find_cluster("reference-13b")};
}

// Presets or files, with --set applied; `fallback` where the option was not given.
result<specs> load_specs(const options& o, specs fallback) {
  specs out = std::move(fallback);
  if (!o.model.empty()) {
    auto model = preset_or_file<dyncp::model_spec>(o.model, dyncp::find_model);
    if (!model) return model.error();
    out.model = std::move(*model);
  }
  if (!o.cluster.empty()) {
    auto cluster = preset_or_file<dyncp::cluster_spec>(o.cluster, dyncp::find_cluster);
    if (!cluster) return cluster.error();
    out.cluster = std::move(*cluster);
  }
  for (const std::string& assignment : o.sets) {
    if (auto ok = dyncp::set_field(out.model, out.cluster, assignment); !ok) return ok.error();
  }
  if (auto ok = dyncp::check_fields(out.model); !ok) return ok.error();
  return out;
}

// Longest sequence that some allowed group can hold (with `static_only`: the static one); 0: none.
std::int64_t longest_that_fits(const dyncp::problem& p, bool static_only) {
  std::vector<std::int32_t> sizes = dyncp::allowed_cp_sizes(p.parallel);
  if (static_only) sizes = {p.parallel.static_cp};
  std::int64_t longest = 0;
  for (const std::int32_t c : sizes) {
    std::int64_t room = dyncp::pack_capacity(p, c);
    if (p.padding.shard_multiple > 1) room -= room % (p.padding.shard_multiple * c);
    longest = std::max(longest, room - room % dyncp::alignment(p.padding, c));
  }
  return longest;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

result<dyncp::length_list> load_lengths(const options& o) {
  std::string format = o.format;
  if (format == "auto") {
    const bool jsonl = ends_with(o.lengths, ".jsonl") || ends_with(o.lengths, ".ndjson");
    const bool histogram = ends_with(o.lengths, ".hist") || ends_with(o.lengths, ".histogram");
    format = jsonl ? "jsonl" : histogram ? "histogram" : "lines";
  }
  if (format != "lines" && format != "jsonl" && format != "histogram") {
    return dyncp::make_error(errc::unknown_name, "format is " + dyncp::text::quoted(o.format),
                             "known: auto, lines, jsonl, histogram");
  }
  auto text = dyncp::read_file(o.lengths);
  if (!text) return text.error();
  const std::string source = o.lengths == "-" ? "standard input" : o.lengths;
  auto list = format == "jsonl"       ? dyncp::parse_json_lines(*text, source)
              : format == "histogram" ? dyncp::parse_histogram(*text, source)
                                      : dyncp::parse_lengths(*text, source);
  if (!list) return list;
  auto group = at_least(o, "atomic", o.atomic, 1, 0);
  if (!group) return group.error();
  if (*group > 1) {
    list->atoms.resize(list->lengths.size());
    for (std::size_t i = 0; i < list->atoms.size(); ++i) {
      list->atoms[i] = static_cast<std::int64_t>(i) / *group;
    }
  }
  if (o.is_given("shuffle")) dyncp::shuffle(*list, static_cast<std::uint64_t>(o.shuffle));
  return list;
}

result<dyncp::problem> load_job(const options& o) {
  dyncp::problem p;
  auto loaded = load_specs(o, default_specs());
  if (!loaded) return loaded.error();
  p.model = std::move(loaded->model);
  p.cluster = std::move(loaded->cluster);
  if (auto ok = apply_parallel(o, p.parallel); !ok) return ok.error();
  if (auto ok = dyncp::check(p.parallel); !ok) return ok.error();
  auto padding = make_padding(o, p.parallel.tp);
  if (!padding) return padding.error();
  p.padding = *padding;
  p.limits.max_tokens_per_rank = o.max_tokens_per_rank;
  if (auto ok = apply_limits(o, p); !ok) return ok.error();
  auto micro_batches = at_least(o, "micro-batches", o.micro_batches, 1, 0);
  if (!micro_batches) return micro_batches.error();
  auto narrowed = narrow("micro-batches", *micro_batches);
  if (!narrowed) return narrowed.error();
  p.limits.micro_batches = *narrowed;
  if (auto ok = check_size(*narrowed, p.parallel); !ok) return ok.error();
  // All but the sequences is checked on one of a single token, before any file is read.
  p.sequences = {{0, 1, -1}};
  if (auto ok = dyncp::check(p); !ok) return ok.error();
  p.sequences.clear();
  return p;
}

result<dyncp::selected_batch> take_batch(const options& o, const dyncp::length_list& list,
                                         const dyncp::problem& job, bool static_only,
                                         std::int64_t index) {
  auto size = at_least(o, "batch", o.batch, 1, -1);
  if (!size) return size.error();
  dyncp::length_selection wanted;
  wanted.min_length = o.min_length;
  wanted.max_length = o.max_length;
  wanted.skip = index == 0 ? o.skip : o.skip + index * *size;
  wanted.count = *size;
  wanted.drop_empty = o.drop_empty;
  if (o.drop_too_long) wanted.drop_above = longest_that_fits(job, static_only);
  return dyncp::select_batch(list, wanted);
}

result<input> load_input(const options& o, bool static_only) {
  input out;
  auto job = load_job(o);
  if (!job) return job.error();
  out.problem = std::move(*job);
  auto list = load_lengths(o);
  if (!list) return list.error();
  out.source = list->source;
  auto batch = take_batch(o, *list, out.problem, static_only);
  if (!batch) return batch.error();
  out.batch = std::move(*batch);
  out.problem.sequences = out.batch.sequences;
  if (auto ok = dyncp::check(out.problem); !ok) return ok.error();
  return out;
}

result<packer_parameters> load_parameters(const options& o) {
  packer_parameters out;
  auto pack_tokens = at_least(o, "pack-tokens", o.pack_tokens, 1, 0);
  if (!pack_tokens) return pack_tokens.error();
  out.pack_tokens = *pack_tokens;
  auto size = at_least(o, "micro-batch-size", o.micro_batch_size, 1, 0);
  if (!size) return size.error();
  out.micro_batch_size = *size;
  return out;
}

result<plan_input> load_plan(const options& o) {
  auto document = dyncp::read_plan_file(o.plan_file);
  if (!document) return document.error();
  plan_input out;
  out.document = std::move(*document);
  const dyncp::plan_document& d = out.document;
  dyncp::problem& p = out.problem;
  const specs fallback = default_specs();
  auto loaded = load_specs(o, {d.model.value_or(fallback.model),
                               d.cluster.value_or(fallback.cluster)});
  if (!loaded) return loaded.error();
  p.model = std::move(loaded->model);
  p.cluster = std::move(loaded->cluster);
  p.parallel = d.parallel.value_or(dyncp::parallel_spec{});
  p.parallel.ranks = d.plan.num_ranks;
  if (auto ok = apply_parallel(o, p.parallel); !ok) return ok.error();
  // Only the static packers look at it; a plan is what it is.
  p.parallel.static_cp = 1;
  if (auto ok = dyncp::check(p.parallel); !ok) return ok.error();
  p.limits = d.limits.value_or(dyncp::plan_limits{});
  p.limits.max_tokens_per_rank = d.plan.max_tokens_per_rank;
  p.padding = d.plan.padding;
  if (auto ok = apply_limits(o, p); !ok) return ok.error();
  auto batch = dyncp::make_batch(d.seqlens);
  if (!batch) return batch.error();
  p.sequences = std::move(*batch);
  for (std::size_t i = 0; i < d.atoms.size(); ++i) p.sequences[i].atom = d.atoms[i];
  if (p.sequences.empty()) {
    return dyncp::make_error(errc::empty_input, o.plan_file + ": seqlens is empty",
                             "a plan needs a sequence");
  }
  return out;
}

}  // namespace tool
