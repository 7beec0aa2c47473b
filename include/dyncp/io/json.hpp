// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/padding.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cost/cost_fitter.hpp>
#include <dyncp/cost/fitted_cost.hpp>
#include <dyncp/cost/load.hpp>
#include <dyncp/io/cost_document.hpp>
#include <dyncp/io/files.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/io/plan_document.hpp>
#include <dyncp/io/spec_fields.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/limits.hpp>
#include <dyncp/problem/parallel_spec.hpp>
#include <dyncp/problem/sequence.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

// Reading plans and specs from JSON. Needs nlohmann-json and is the only header that does, so it is
// not part of dyncp.hpp; writing (plan_document.hpp, spec_fields.hpp) needs nothing.
//
// Nothing here throws: every access is checked by type first. Each error names the file and the
// path in it: "plan.json: micro_batches[2].groups[0].start is -1, not in 0 .. 7".

namespace detail {

/// A value inside a parsed document and the way to it. Views refer to their parents: they live on
/// the stack of the functions that walk the document.
class json_view {
 public:
  json_view(const nlohmann::json& value, const std::string& source)
      : value_(&value), source_(&source) {}

  [[nodiscard]] std::string path() const {
    if (parent_ == nullptr) return {};
    const std::string before = parent_->path();
    if (key_.data() == nullptr) return before + '[' + std::to_string(index_) + ']';
    return before + (before.empty() ? "" : ".") + std::string(key_);
  }

  [[nodiscard]] error fail(errc code, const std::string& what, std::int64_t value = 0,
                           std::int64_t limit = 0, std::string hint = {}) const {
    const std::string here = path();
    return {code, *source_ + ": " + (here.empty() ? "the document" : here) + " " + what, value,
            limit, std::move(hint)};
  }

  [[nodiscard]] bool is_object() const noexcept { return value_->is_object(); }
  [[nodiscard]] bool is_array() const noexcept { return value_->is_array(); }
  [[nodiscard]] bool is_string() const noexcept { return value_->is_string(); }
  [[nodiscard]] std::size_t size() const noexcept { return value_->size(); }

  /// "a string", "an object", ... for messages.
  [[nodiscard]] std::string type() const {
    const std::string name = value_->type_name();
    if (value_->is_null()) return name;
    return (name == "object" || name == "array" ? "an " : "a ") + name;
  }

  [[nodiscard]] result<json_view> item(std::size_t i) const {
    if (!is_array() || i >= value_->size()) return fail(errc::parse_error, "has no such item");
    json_view view((*value_)[i], *source_);
    view.parent_ = this;
    view.index_ = i;
    return view;
  }

  [[nodiscard]] std::optional<json_view> find(const char* key) const {
    if (!is_object()) return std::nullopt;
    const auto it = value_->find(key);
    if (it == value_->end()) return std::nullopt;
    json_view view(*it, *source_);
    view.parent_ = this;
    view.key_ = key;
    return view;
  }

  [[nodiscard]] result<json_view> at(const char* key) const {
    if (!is_object()) return fail(errc::parse_error, "is " + type() + ", not an object");
    if (auto view = find(key)) return *view;
    return fail(errc::parse_error, "lacks the key '" + std::string(key) + "'");
  }

  [[nodiscard]] result<json_view> array_at(const char* key) const {
    auto view = at(key);
    if (view && !view->is_array()) {
      return view->fail(errc::parse_error, "is " + view->type() + ", not an array");
    }
    return view;
  }

  [[nodiscard]] std::vector<std::string> keys() const {
    std::vector<std::string> names;
    if (is_object()) {
      for (const auto& [name, unused] : value_->items()) names.push_back(name);
    }
    return names;
  }

  /// A whole number in least .. most; `code` is the error for one outside.
  template <std::integral T>
  [[nodiscard]] result<T> integer(T least, T most, errc code = errc::invalid_argument) const {
    const auto outside = [&](std::int64_t value) {
      return fail(code, "is " + value_->dump() + ", not in " + std::to_string(least) + " .. " +
                            std::to_string(most), value, static_cast<std::int64_t>(most));
    };
    if (const auto* u = value_->get_ptr<const nlohmann::json::number_unsigned_t*>()) {
      if (*u > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return outside(std::numeric_limits<std::int64_t>::max());
      }
      const auto v = static_cast<std::int64_t>(*u);
      if (v < std::int64_t{least} || v > std::int64_t{most}) return outside(v);
      return static_cast<T>(v);
    }
    if (const auto* s = value_->get_ptr<const nlohmann::json::number_integer_t*>()) {
      if (*s < std::int64_t{least} || *s > std::int64_t{most}) return outside(*s);
      return static_cast<T>(*s);
    }
    if (value_->is_number()) {
      return fail(errc::parse_error, "is " + value_->dump() + ", not a whole number of 64 bits");
    }
    return fail(errc::parse_error, "is " + type() + ", not a whole number");
  }

  [[nodiscard]] result<bool> boolean() const {
    if (const auto* b = value_->get_ptr<const bool*>()) return *b;
    return fail(errc::parse_error, "is " + type() + ", not true or false");
  }

  [[nodiscard]] result<std::string> string() const {
    if (const auto* s = value_->get_ptr<const std::string*>()) return *s;
    return fail(errc::parse_error, "is " + type() + ", not a string");
  }

  /// A finite number.
  [[nodiscard]] result<double> number() const {
    if (value_->is_number()) {
      const double v = value_->get<double>();
      if (std::isfinite(v)) return v;
    }
    return fail(errc::parse_error, "is " + type() + ", not a finite number");
  }

  /// A scalar as text for `set_field`.
  [[nodiscard]] result<std::string> scalar() const {
    if (is_string()) return string();
    if (value_->is_number() || value_->is_boolean()) return value_->dump();
    return fail(errc::parse_error, "is " + type() + ", not a number, a string, true or false");
  }

 private:
  const nlohmann::json* value_;
  const std::string* source_;
  const json_view* parent_ = nullptr;
  std::string_view key_;  // data() == nullptr: an item of an array
  std::size_t index_ = 0;
};

/// Finds the place of the first error in a text that is not JSON, or that names a key of an object
/// twice: readers differ in which of the two they take.
class json_error_finder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    open_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    twice_ = name;
    return false;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception&) override {
    position_ = position;
    token_ = last_token;
    return false;
  }

  [[nodiscard]] std::size_t position() const noexcept { return position_; }
  [[nodiscard]] const std::string& token() const noexcept { return token_; }
  /// A key that an object has twice.
  [[nodiscard]] const std::optional<std::string>& twice() const noexcept { return twice_; }

 private:
  std::size_t position_ = 0;  // bytes read, counted from 1
  std::string token_;
  std::optional<std::string> twice_;
  std::vector<std::set<std::string>> open_;  // the keys of each object that is open
};

[[nodiscard]] inline result<nlohmann::json> parse_json(std::string_view text,
                                                       const std::string& source) {
  // Two passes: a callback of `parse` would do with one, but that looks through the enclosing array
  // after each of its objects.
  json_error_finder finder;
  if (nlohmann::json::sax_parse(text, &finder)) {
    return nlohmann::json::parse(text, nullptr, false);
  }
  if (finder.twice()) {
    return make_error(errc::parse_error,
                      source + ": an object has the key " + text::quoted(*finder.twice()) +
                          " twice",
                      "keep one of them");
  }
  std::int64_t line = 1;
  std::int64_t column = 1;
  for (const char c : text.substr(0, finder.position() == 0 ? 0 : finder.position() - 1)) {
    column = c == '\n' ? 1 : column + 1;
    line += c == '\n' ? 1 : 0;
  }
  std::string what = source + " line " + std::to_string(line) + " column " +
                     std::to_string(column) + ": not JSON";
  if (!finder.token().empty()) what += " near " + text::quoted(finder.token());
  return error{errc::parse_error, what, line, 0,
               text.empty() ? "the file is empty" : "check for a missing bracket or comma"};
}

template <std::integral T>
[[nodiscard]] result<void> read_member(const json_view& object, const char* key, T& member,
                                       T least, T most) {
  if (auto view = object.find(key)) {
    auto value = view->integer<T>(least, most);
    if (!value) return value.error();
    member = *value;
  }
  return {};
}

[[nodiscard]] inline result<void> read_member(const json_view& object, const char* key,
                                              bool& member) {
  if (auto view = object.find(key)) {
    auto value = view->boolean();
    if (!value) return value.error();
    member = *value;
  }
  return {};
}

[[nodiscard]] inline result<std::vector<std::int64_t>> read_integers(const json_view& array,
                                                                     std::int64_t least,
                                                                     std::int64_t most,
                                                                     errc code) {
  std::vector<std::int64_t> values;
  values.reserve(array.size());
  for (std::size_t i = 0; i < array.size(); ++i) {
    auto item = array.item(i);
    if (!item) return item.error();
    auto value = item->integer<std::int64_t>(least, most, code);
    if (!value) return value.error();
    values.push_back(*value);
  }
  return values;
}

inline constexpr std::int64_t most_multiple = std::int64_t{1} << 24;

[[nodiscard]] inline result<padding_rule> read_padding(const json_view& pad) {
  padding_rule rule;
  auto mode_view = pad.at("mode");
  if (!mode_view) return mode_view.error();
  auto mode = mode_view->string();
  if (!mode) return mode.error();
  if (*mode != "none" && *mode != "zigzag" && *mode != "multiple") {
    return mode_view->fail(errc::unknown_name, "is " + text::quoted(*mode), 0, 0,
                           "known: none, zigzag, multiple");
  }
  rule.zigzag = *mode == "zigzag";
  if (*mode == "multiple") {
    auto value_view = pad.at("value");
    if (!value_view) return value_view.error();
    auto value = value_view->integer<std::int64_t>(1, most_multiple);
    if (!value) return value.error();
    rule.multiple = *value;
  }
  if (auto ok = read_member<std::int64_t>(pad, "multiple", rule.multiple, 1, most_multiple); !ok) {
    return ok.error();
  }
  if (auto ok = read_member<std::int32_t>(pad, "sequence_parallel", rule.sequence_parallel, 1,
                                          4096);
      !ok) {
    return ok.error();
  }
  if (auto ok = read_member<std::int64_t>(pad, "shard_multiple", rule.shard_multiple, 1,
                                          most_multiple);
      !ok) {
    return ok.error();
  }
  return rule;
}

[[nodiscard]] inline result<pack> read_pack(const json_view& group) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();
  pack out;
  auto start = group.at("start");
  if (!start) return start.error();
  auto begin = start->integer<std::int32_t>(0, most);
  if (!begin) return begin.error();
  auto size_view = group.at("size");
  if (!size_view) return size_view.error();
  auto size = size_view->integer<std::int32_t>(1, most);
  if (!size) return size.error();
  out.ranks = {*begin, *size};
  auto samples = group.array_at("samples");
  if (!samples) return samples.error();
  out.sequences.reserve(samples->size());
  for (std::size_t i = 0; i < samples->size(); ++i) {
    auto item = samples->item(i);
    if (!item) return item.error();
    auto index = item->integer<std::int32_t>(least, most);  // the validator names unknown ones
    if (!index) return index.error();
    out.sequences.push_back(*index);
  }
  return out;
}

[[nodiscard]] inline result<void> read_micro_batches(const json_view& root, plan& p) {
  auto micro_batches = root.array_at("micro_batches");
  if (!micro_batches) return micro_batches.error();
  p.micro_batches.resize(micro_batches->size());
  for (std::size_t j = 0; j < micro_batches->size(); ++j) {
    auto item = micro_batches->item(j);
    if (!item) return item.error();
    auto groups = item->array_at("groups");
    if (!groups) return groups.error();
    for (std::size_t g = 0; g < groups->size(); ++g) {
      auto group = groups->item(g);
      if (!group) return group.error();
      auto pk = read_pack(*group);
      if (!pk) return pk.error();
      p.micro_batches[j].packs.push_back(std::move(*pk));
    }
  }
  return {};
}

[[nodiscard]] inline result<parallel_spec> read_parallel(const json_view& view,
                                                         std::int32_t ranks) {
  if (!view.is_object()) {
    return view.fail(errc::parse_error, "is " + view.type() + ", not an object");
  }
  parallel_spec p;
  p.ranks = ranks;
  for (auto [key, member] : {std::pair{"pp", &p.pp}, {"vpp", &p.vpp}, {"tp", &p.tp},
                             {"static_cp", &p.static_cp}, {"min_cp", &p.min_cp},
                             {"max_cp", &p.max_cp}}) {
    if (auto ok = read_member<std::int32_t>(view, key, *member, 1, max_ranks); !ok) {
      return ok.error();
    }
  }
  if (auto sizes = view.find("cp_sizes")) {
    if (!sizes->is_array()) return sizes->fail(errc::parse_error, "is not an array");
    auto values = read_integers(*sizes, 1, max_ranks, errc::invalid_argument);
    if (!values) return values.error();
    for (const std::int64_t c : *values) p.cp_sizes.push_back(static_cast<std::int32_t>(c));
  }
  return p;
}

[[nodiscard]] inline result<plan_limits> read_limits(const json_view& view, std::int64_t limit) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
  if (!view.is_object()) {
    return view.fail(errc::parse_error, "is " + view.type() + ", not an object");
  }
  plan_limits l;
  l.max_tokens_per_rank = limit;
  if (auto ok = read_member<std::int64_t>(view, "max_inflight_tokens", l.max_inflight_tokens, 0,
                                          max_sequence_length);
      !ok) {
    return ok.error();
  }
  for (auto [key, member] : {std::pair{"max_sequences_per_pack", &l.max_sequences_per_pack},
                             {"micro_batches", &l.micro_batches}}) {
    if (auto ok = read_member<std::int32_t>(view, key, *member, 0, most); !ok) return ok.error();
  }
  if (auto ok = read_member<std::int32_t>(view, "micro_batch_multiple", l.micro_batch_multiple, 1,
                                          1 << 16);
      !ok) {
    return ok.error();
  }
  if (auto ok = read_member(view, "no_idle_ranks", l.no_idle_ranks); !ok) return ok.error();
  if (auto ok = read_member(view, "uniform_cp", l.uniform_cp); !ok) return ok.error();
  return l;
}

template <class Spec>
[[nodiscard]] result<Spec> read_spec(const json_view& root) {
  if (!root.is_object()) return root.fail(errc::parse_error, "is not an object");
  Spec spec;
  for (const std::string& key : root.keys()) {
    auto view = root.at(key.c_str());
    if (!view) return view.error();
    if (key == "name") {
      auto name = view->string();
      if (!name) return name.error();
      spec.name = *name;
      continue;
    }
    if (view->is_string() && key != "mask" && key != "recompute") {
      return view->fail(errc::parse_error, "is a string, not a number");
    }
    auto value = view->scalar();
    if (!value) return value.error();
    auto found = set_field(spec, key, *value);
    if (!found) {
      error e = std::move(found).error();
      e.what = view->fail(e.code, e.what.substr(key.size() + 1)).what;  // "mask is ..." by its path
      return e;
    }
    if (*found) continue;
    const std::string nearest = text::nearest_name(key, field_names<Spec>());
    return view->fail(errc::unknown_name, "is no field", 0, 0,
                      (nearest.empty() ? "" : "did you mean " + nearest + "? ") +
                          ("known: name, " + text::joined(field_names<Spec>())));
  }
  // Fields that must be given show themselves by defaults outside their bounds.
  result<void> complete;
  visit_fields(spec, [&](const field_info& field, const auto& member) {
    if constexpr (!std::is_enum_v<std::remove_cvref_t<decltype(member)>>) {
      if (complete && static_cast<double>(member) < field.least) {
        complete = root.fail(errc::parse_error, "lacks the key '" + std::string(field.name) + "'",
                             0, 0, std::string(field.what) + ": " + bounds(field));
      }
    }
  });
  if (!complete) return complete.error();
  if constexpr (std::same_as<Spec, model_spec>) {
    if (auto ok = check_fields(spec); !ok) {
      return root.fail(ok.error().code, "contradicts itself: " + ok.error().what, ok.error().value,
                       ok.error().limit, ok.error().hint);
    }
  }
  return spec;
}

[[nodiscard]] inline result<void> read_extras(const json_view& root, plan_document& d) {
  for (auto [key, member, least] :
       {std::tuple{"source_lines", &d.source_lines, std::int64_t{0}},
        std::tuple{"atoms", &d.atoms, std::int64_t{-1}}}) {
    const auto list = root.find(key);
    if (!list) continue;
    if (!list->is_array()) {
      return list->fail(errc::parse_error, "is " + list->type() + ", not an array");
    }
    auto values = read_integers(*list, least, std::numeric_limits<std::int64_t>::max(),
                                errc::invalid_argument);
    if (!values) return values.error();
    if (values->size() != d.seqlens.size()) {
      return list->fail(errc::parse_error, "has " + std::to_string(values->size()) +
                        " items for " + std::to_string(d.seqlens.size()) + " seqlens",
                        static_cast<std::int64_t>(values->size()),
                        static_cast<std::int64_t>(d.seqlens.size()));
    }
    *member = std::move(*values);
  }
  if (auto packer = root.find("packer")) {
    auto name = packer->string();
    if (!name) return name.error();
    d.packer = std::move(*name);
  }
  if (auto view = root.find("parallel")) {
    auto value = read_parallel(*view, d.plan.num_ranks);
    if (!value) return value.error();
    d.parallel = std::move(*value);
  }
  if (auto view = root.find("limits")) {
    auto value = read_limits(*view, d.plan.max_tokens_per_rank);
    if (!value) return value.error();
    d.limits = *value;
  }
  if (auto view = root.find("model")) {
    auto value = read_spec<model_spec>(*view);
    if (!value) return value.error();
    d.model = std::move(*value);
  }
  if (auto view = root.find("cluster")) {
    auto value = read_spec<cluster_spec>(*view);
    if (!value) return value.error();
    d.cluster = std::move(*value);
  }
  return {};
}

[[nodiscard]] inline result<plan_document> read_plan(std::string_view text,
                                                     const std::string& source) {
  auto document = parse_json(text, source);
  if (!document) return document.error();
  const json_view root(*document, source);
  plan_document out;
  if (!root.is_object()) {
    return root.fail(errc::parse_error, "is " + root.type() + ", not an object");
  }
  if (auto format = root.find("format")) {
    auto name = format->string();
    if (!name) return name.error();
    if (*name != plan_format) {
      return format->fail(errc::parse_error, "is " + text::quoted(*name), 0, 0,
                          "this version reads " + std::string(plan_format));
    }
  }
  auto ranks_view = root.at("num_ranks");
  if (!ranks_view) return ranks_view.error();
  auto ranks = ranks_view->integer<std::int32_t>(1, max_ranks);
  if (!ranks) return ranks.error();
  out.plan.num_ranks = *ranks;
  auto limit_view = root.at("max_tokens_per_rank");
  if (!limit_view) return limit_view.error();
  auto limit = limit_view->integer<std::int64_t>(1, max_sequence_length);
  if (!limit) return limit.error();
  out.plan.max_tokens_per_rank = *limit;
  if (auto pad = root.find("pad")) {
    auto rule = read_padding(*pad);
    if (!rule) return rule.error();
    out.plan.padding = *rule;
  }
  auto seqlens = root.array_at("seqlens");
  if (!seqlens) return seqlens.error();
  auto lengths = read_integers(*seqlens, 1, max_sequence_length, errc::invalid_length);
  if (!lengths) return lengths.error();
  out.seqlens = std::move(*lengths);
  if (auto ok = read_micro_batches(root, out.plan); !ok) return ok.error();
  if (auto ok = read_extras(root, out); !ok) return ok.error();
  return out;
}

[[nodiscard]] inline error with_hint(error e, const std::string& hint) {
  if (e.hint.empty()) e.hint = hint;
  return e;
}

struct json_line {
  std::int64_t length = 0;
  std::int64_t group = -1;
};

[[nodiscard]] inline result<json_line> read_json_line(std::string_view line,
                                                      const std::string& place) {
  const nlohmann::json document = nlohmann::json::parse(line, nullptr, false);
  if (document.is_discarded()) {
    return make_error(errc::parse_error, place + ": " + text::quoted(line) + " is not JSON",
                      "write one object a line");
  }
  const json_view root(document, place);
  json_line out;
  if (auto group = root.find("group")) {
    auto id = group->integer<std::int64_t>(0, std::numeric_limits<std::int64_t>::max());
    if (!id) return id.error();
    out.group = *id;
  }
  for (const char* key : {"length", "input_ids", "tokens"}) {
    const auto view = root.find(key);
    if (!view) continue;
    if (view->is_array() && std::string_view(key) != "length") {
      out.length = static_cast<std::int64_t>(view->size());
      return out;
    }
    if (std::string_view(key) == "input_ids") {
      return view->fail(errc::parse_error, "is " + view->type() + ", not an array", 0, 0,
                        "input_ids are the token ids of one sequence");
    }
    auto length = view->integer<std::int64_t>(0, max_sequence_length, errc::invalid_length);
    if (!length) return with_hint(std::move(length).error(), "lengths are 0 to 2^40 tokens");
    out.length = *length;
    return out;
  }
  return root.fail(errc::parse_error, "has none of the keys length, input_ids and tokens", 0, 0,
                   "write one of them a line");
}

}  // namespace detail

/// A plan file from its text. Needs num_ranks, max_tokens_per_rank, seqlens and micro_batches;
/// the rest is optional and unknown keys are ignored. Groups keep their order in the file.
///
/// The plan is well-formed, not yet valid: see `validate`. `source` names the text in errors:
/// parse_error (malformed, wrong type, missing key), invalid_argument (a number outside its
/// domain), invalid_length (a sequence below one or above 2^40 tokens), unknown_name. O(size).
[[nodiscard]] inline result<plan_document> parse_plan(std::string_view text,
                                                      const std::string& source) {
  auto plan = detail::read_plan(text, source);
  if (plan) return plan;
  return detail::with_hint(std::move(plan).error(), "docs/plan-format.md describes plan files");
}

/// Lengths from JSON lines, one object a line. The length is its key `length` (a whole number), or
/// the number of items of `input_ids`, or `tokens` (an array or a number), whichever comes first in
/// this order. `group` (a whole number of 0 or more) names the atomic group that the sequence
/// belongs to. Other keys are ignored, and so are empty lines.
///
/// Errors, each with file and line: empty_input, parse_error, invalid_length, invalid_argument.
[[nodiscard]] inline result<length_list> parse_json_lines(std::string_view text,
                                                          std::string source) {
  length_list out;
  out.source = std::move(source);
  bool grouped = false;
  auto ok = detail::for_each_line(text, [&](std::string_view line, std::int64_t number) {
    if (detail::trimmed(line).empty()) return result<void>{};
    auto item = detail::read_json_line(line, detail::at_line(out.source, number));
    if (!item) return result<void>{item.error()};
    out.lengths.push_back(item->length);
    out.lines.push_back(number);
    out.atoms.push_back(item->group);
    grouped = grouped || item->group >= 0;
    return result<void>{};
  });
  if (!ok) return ok.error();
  if (!grouped) out.atoms.clear();
  if (out.lengths.empty()) {
    return make_error(errc::empty_input, out.source + " holds no length",
                      "write one object with length, input_ids or tokens a line");
  }
  return out;
}

/// `parse_plan` of a file; "-" is the standard input. Errors: those and io_error.
[[nodiscard]] inline result<plan_document> read_plan_file(const std::string& path) {
  auto text = read_file(path);
  if (!text) return text.error();
  return parse_plan(*text, path);
}

/// A model or cluster from JSON: fields by the names of the struct, those with defaults optional,
/// unknown ones an error; also as the value of "model" or "cluster" of an object (a preset's or a
/// plan's JSON). Errors: parse_error, invalid_argument, unknown_name.
template <class Spec>
  requires std::same_as<Spec, model_spec> || std::same_as<Spec, cluster_spec>
[[nodiscard]] result<Spec> parse_spec(std::string_view json, const std::string& source) {
  auto document = detail::parse_json(json, source);
  if (!document) return document.error();
  // `presets NAME --json` and plan files hold the spec under a key of its own.
  constexpr const char* key = std::is_same_v<Spec, model_spec> ? "model" : "cluster";
  if (document->is_object() && document->contains(key) && (*document)[key].is_object()) {
    nlohmann::json inner = (*document)[key];
    *document = std::move(inner);
  }
  auto spec = detail::read_spec<Spec>(detail::json_view(*document, source));
  if (spec) return spec;
  return detail::with_hint(std::move(spec).error(),
                           "fields: name, " + text::joined(field_names<Spec>()));
}

/// `parse_spec` of a file. Errors: those and io_error.
template <class Spec>
  requires std::same_as<Spec, model_spec> || std::same_as<Spec, cluster_spec>
[[nodiscard]] result<Spec> read_spec_file(const std::string& path) {
  auto text = read_file(path);
  if (!text) return text.error();
  return parse_spec<Spec>(*text, path);
}

namespace detail {

[[nodiscard]] inline result<void> read_number(const json_view& object, const char* key,
                                              double& member) {
  auto view = object.at(key);
  if (!view) return view.error();
  auto value = view->number();
  if (!value) return value.error();
  member = *value;
  return {};
}

/// [nvlink, network].
[[nodiscard]] inline result<void> read_links(const json_view& object, const char* key,
                                             double (&member)[2]) {
  auto view = object.array_at(key);
  if (!view) return view.error();
  if (view->size() != 2) {
    return view->fail(errc::parse_error, "has " + std::to_string(view->size()) + " numbers",
                      static_cast<std::int64_t>(view->size()), 2, "give [nvlink, network]");
  }
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    auto item = view->item(i);
    if (!item) return item.error();
    auto value = item->number();
    if (!value) return value.error();
    member[i] = *value;
  }
  return {};
}

[[nodiscard]] inline result<void> read_coefficients(const json_view& object, const char* key,
                                                    cost_coefficients& k) {
  auto view = object.at(key);
  if (!view) return view.error();
  for (auto [name, member] : {std::pair{"fixed_s", &k.fixed_s},
                              {"per_token_s", &k.per_token_s},
                              {"per_square_s", &k.per_square_s},
                              {"per_mean_length_s", &k.per_mean_length_s},
                              {"overlap", &k.overlap}}) {
    if (auto ok = read_number(*view, name, *member); !ok) return ok;
  }
  if (auto ok = read_links(*view, "hop_s", k.hop_s); !ok) return ok;
  return read_links(*view, "hop_per_token_s", k.hop_per_token_s);
}

[[nodiscard]] inline result<void> check_format(const json_view& root, std::string_view expected) {
  auto format = root.at("format");
  if (!format) return format.error();
  auto name = format->string();
  if (!name) return name.error();
  if (*name == expected) return {};
  return format->fail(errc::parse_error, "is " + text::quoted(*name), 0, 0,
                      "this version reads " + std::string(expected));
}

[[nodiscard]] inline result<cost_record> read_cost_record(const json_view& item) {
  cost_record r;
  auto tokens = item.at("tokens");
  if (!tokens) return tokens.error();
  auto token_count = tokens->integer<std::int64_t>(1, max_pack_tokens);
  if (!token_count) return token_count.error();
  r.tokens = *token_count;
  auto squares = item.at("squares");
  if (!squares) return squares.error();
  auto square_sum = squares->integer<std::int64_t>(1, std::numeric_limits<std::int64_t>::max());
  if (!square_sum) return square_sum.error();
  r.squares = *square_sum;
  auto c = item.at("c");
  if (!c) return c.error();
  auto size = c->integer<std::int32_t>(1, max_ranks);
  if (!size) return size.error();
  r.c = *size;
  if (auto over = item.find("link")) {
    auto name = over->string();
    if (!name) return name.error();
    if (*name != to_string(link::nvlink) && *name != to_string(link::network)) {
      return over->fail(errc::unknown_name, "is " + text::quoted(*name), 0, 0,
                        "known: nvlink, network");
    }
    r.over = *name == to_string(link::nvlink) ? link::nvlink : link::network;
  }
  if (auto ok = read_number(item, "seconds", r.seconds); !ok) return ok.error();
  return r;
}

}  // namespace detail

/// A cost model from the text that `to_json(fitted_cost)` writes. `source` names the text in
/// errors: parse_error, invalid_argument for coefficients that no model can have.
[[nodiscard]] inline result<fitted_cost> parse_fitted_cost(std::string_view json,
                                                           const std::string& source) {
  auto document = detail::parse_json(json, source);
  if (!document) return document.error();
  const detail::json_view root(*document, source);
  if (auto ok = detail::check_format(root, cost_format); !ok) return ok.error();
  std::int32_t stages = 1;
  if (auto ok = detail::read_member<std::int32_t>(root, "virtual_stages", stages, 1, 1 << 24);
      !ok) {
    return ok.error();
  }
  double transfer_s = 0;
  double transfer_per_token_s = 0;
  if (auto ok = detail::read_number(root, "transfer_s", transfer_s); !ok) return ok.error();
  if (auto ok = detail::read_number(root, "transfer_per_token_s", transfer_per_token_s); !ok) {
    return ok.error();
  }
  auto list = root.array_at("classes");
  if (!list) return list.error();
  std::vector<pass_coefficients> classes(list->size());
  for (std::size_t i = 0; i < classes.size(); ++i) {
    auto item = list->item(i);
    if (!item) return item.error();
    if (auto ok = detail::read_coefficients(*item, "forward", classes[i].forward); !ok) {
      return ok.error();
    }
    if (auto ok = detail::read_coefficients(*item, "backward", classes[i].backward); !ok) {
      return ok.error();
    }
  }
  auto cost = fitted_cost::make(std::move(classes), stages, transfer_s, transfer_per_token_s);
  if (!cost) return root.fail(cost.error().code, "is no cost model: " + cost.error().what);
  return cost;
}

/// Records from the text that `to_json(std::vector<cost_record>)` writes: objects with tokens,
/// squares, c, link (default nvlink) and seconds. Errors: parse_error, invalid_argument,
/// unknown_name, each with its place.
[[nodiscard]] inline result<std::vector<cost_record>> parse_cost_records(
    std::string_view json, const std::string& source) {
  auto document = detail::parse_json(json, source);
  if (!document) return document.error();
  const detail::json_view root(*document, source);
  if (auto ok = detail::check_format(root, cost_records_format); !ok) return ok.error();
  auto list = root.array_at("records");
  if (!list) return list.error();
  std::vector<cost_record> records;
  for (std::size_t i = 0; i < list->size(); ++i) {
    auto item = list->item(i);
    if (!item) return item.error();
    auto record = detail::read_cost_record(*item);
    if (!record) return record.error();
    records.push_back(*record);
  }
  return records;
}

}  // namespace v0
}  // namespace dyncp
