// SPDX-License-Identifier: Apache-2.0
#include "input.hpp"

#include <dyncp/core/int_math.hpp>
#include <dyncp/io/json.hpp>
#include <dyncp/io/spec_fields.hpp>
#include <dyncp/problem/presets.hpp>

#include <algorithm>
#include <limits>
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

// Options are 64-bit so that a number too large is named as it was written.
result<std::int32_t> narrow(const char* name, std::int64_t value) {
  if (value < std::numeric_limits<std::int32_t>::min() ||
      value > std::numeric_limits<std::int32_t>::max()) {
    return error{errc::invalid_argument, std::string(name) + " is " + std::to_string(value), value,
                 std::numeric_limits<std::int32_t>::max(), "it must fit in 32 bits"};
  }
  return static_cast<std::int32_t>(value);
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

result<void> apply_job_options(const options& o, dyncp::parallel_spec& p) {
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
  return {};
}

}  // namespace

specs default_specs() {
  return {*dyncp::find_model("reference-13b"), *dyncp::find_cluster("reference-13b")};
}

result<specs> load_specs(const options& o, const specs& fallback) {
  specs out = fallback;
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

result<input> load_input(const options& o, bool static_only) {
  input out;
  auto loaded = load_specs(o, default_specs());
  if (!loaded) return loaded.error();
  dyncp::problem& p = out.problem;
  p.model = std::move(loaded->model);
  p.cluster = std::move(loaded->cluster);
  if (auto ok = apply_job_options(o, p.parallel); !ok) return ok.error();
  auto micro_batches = narrow("micro-batches", o.micro_batches);
  if (!micro_batches) return micro_batches.error();
  if (o.is_given("micro-batches") && *micro_batches < 1) {
    return error{errc::invalid_argument, "micro-batches is " + std::to_string(*micro_batches),
                 *micro_batches, 1, "fix 1 or more, or leave the choice to the planner"};
  }
  p.limits.micro_batches = *micro_batches;
  p.limits.max_tokens_per_rank = o.max_tokens_per_rank;
  if (auto ok = dyncp::check(p.parallel); !ok) return ok.error();

  auto list = dyncp::read_length_file(o.lengths);
  if (!list) return list.error();
  out.source = list->source;
  dyncp::length_selection wanted;
  wanted.min_length = o.min_length;
  wanted.max_length = o.max_length;
  wanted.skip = o.skip;
  wanted.count = o.batch;
  if (o.is_given("batch") && o.batch < 1) wanted.count = o.batch == -1 ? -2 : o.batch;
  wanted.drop_empty = o.drop_empty;
  if (o.drop_too_long && p.limits.max_tokens_per_rank > 0) {
    wanted.drop_above = longest_that_fits(p, static_only);
  }
  auto batch = dyncp::select_batch(*list, wanted);
  if (!batch) return batch.error();
  out.batch = std::move(*batch);
  p.sequences = out.batch.sequences;
  if (auto ok = dyncp::check(p); !ok) return ok.error();
  return out;
}

result<plan_input> load_plan(const options& o) {
  auto document = dyncp::read_plan_file(o.plan_file);
  if (!document) return document.error();
  plan_input out;
  out.document = std::move(*document);
  const dyncp::plan_document& d = out.document;
  dyncp::problem& p = out.problem;
  p.parallel = d.parallel.value_or(dyncp::parallel_spec{});
  p.parallel.ranks = d.plan.num_ranks;
  p.limits = d.limits.value_or(dyncp::plan_limits{});
  p.limits.max_tokens_per_rank = d.plan.max_tokens_per_rank;
  p.padding = d.plan.padding;
  if (auto ok = apply_job_options(o, p.parallel); !ok) return ok.error();
  // Only the static packers look at it; a plan is what it is.
  p.parallel.static_cp = 1;
  const specs fallback = default_specs();
  auto loaded = load_specs(o, {d.model.value_or(fallback.model),
                               d.cluster.value_or(fallback.cluster)});
  if (!loaded) return loaded.error();
  p.model = std::move(loaded->model);
  p.cluster = std::move(loaded->cluster);
  auto batch = dyncp::make_batch(d.seqlens);
  if (!batch) return batch.error();
  p.sequences = std::move(*batch);
  // The groups are judged one by one: that no token of some length fits is no error of the plan.
  if (auto ok = dyncp::check(p.parallel); !ok) return ok.error();
  if (p.sequences.empty()) {
    return dyncp::make_error(errc::empty_input, o.plan_file + ": seqlens is empty",
                             "a plan needs a sequence");
  }
  return out;
}

}  // namespace tool
