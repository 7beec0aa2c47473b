// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/model_spec.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// One field of a spec: its name in C++, in JSON and after --set, what it may be, what it means.
struct field_info {
  const char* name;
  double least;     ///< numbers only
  double most;
  const char* what;  ///< unit and meaning, for people
};

/// Calls `visit(field_info, member)` for every field but `name`, in the order of the struct.
/// `Spec` is model_spec or cluster_spec, const or not. The bounds keep costs finite.
template <class Spec, class Visit>
  requires std::same_as<std::remove_const_t<Spec>, model_spec>
constexpr void visit_fields(Spec& m, Visit&& visit) {
  constexpr double width = 1 << 24;
  const auto field = [&](const char* name, double least, double most, const char* what,
                         auto& member) { visit(field_info{name, least, most, what}, member); };
  field("layers", 1, 1 << 20, "layers of the model", m.layers);
  field("hidden", 1, width, "hidden size", m.hidden);
  field("ffn", 0, width, "inner width of the MLP, of one expert in an MoE", m.ffn);
  field("query_hidden", 1, width, "query heads * head size", m.query_hidden);
  field("kv_hidden", 1, width, "key/value heads * head size", m.kv_hidden);
  field("gated_mlp", 0, 1, "three MLP matrices instead of two", m.gated_mlp);
  field("experts", 0, 1 << 16, "experts of a layer, 0: dense", m.experts);
  field("experts_per_token", 0, 1 << 16, "experts that a token visits", m.experts_per_token);
  field("vocabulary", 0, 1 << 30, "0: no embedding and output head", m.vocabulary);
  field("dtype_bytes", 1, 8, "bytes of an activation", m.dtype_bytes);
  field("mask", 0, 0, "causal or full", m.mask);
  field("recompute", 0, 0, "none, selective or full", m.recompute);
}

template <class Spec, class Visit>
  requires std::same_as<std::remove_const_t<Spec>, cluster_spec>
constexpr void visit_fields(Spec& c, Visit&& visit) {
  constexpr double least_rate = 1e6;
  constexpr double most_rate = 1e21;
  constexpr double most_s = 1e3;
  const auto field = [&](const char* name, double least, double most, const char* what,
                         auto& member) { visit(field_info{name, least, most, what}, member); };
  field("gpus_per_node", 1, 1 << 20, "GPUs that share NVLink", c.gpus_per_node);
  field("linear_flops_per_s", least_rate, most_rate, "matrix products, one GPU",
        c.linear_flops_per_s);
  field("linear_half_tokens", 0, 1e9, "tokens at half of that rate", c.linear_half_tokens);
  field("attention_flops_per_s", least_rate, most_rate, "forward attention, one GPU",
        c.attention_flops_per_s);
  field("attention_half_tokens", 0, 1e9, "tokens at half of that rate", c.attention_half_tokens);
  field("nvlink_bytes_per_s", least_rate, most_rate, "one direction, inside a node",
        c.nvlink_bytes_per_s);
  field("nvlink_latency_s", 0, most_s, "one ring hop inside a node", c.nvlink_latency_s);
  field("network_bytes_per_s", least_rate, most_rate, "one direction, between nodes, a GPU",
        c.network_bytes_per_s);
  field("network_latency_s", 0, most_s, "one ring hop between nodes", c.network_latency_s);
  field("ring_overlap", 0, 1, "share of a hop that attention hides", c.ring_overlap);
  field("fixed_s", 0, most_s, "per stage, micro-batch and direction", c.fixed_s);
  field("launch_s", 0, most_s, "per layer of an operation", c.launch_s);
  field("backward_linear", 0, 100, "backward over forward time", c.backward_linear);
  field("backward_attention", 0, 100, "backward over forward time", c.backward_attention);
  field("backward_ring_bytes", 0, 100, "backward over forward bytes", c.backward_ring_bytes);
  field("stage_bytes_per_s", 0, most_rate, "activations between stages, 0: free",
        c.stage_bytes_per_s);
  field("stage_latency_s", 0, most_s, "one transfer between stages", c.stage_latency_s);
  field("memory_gib", 0.001, 1e6, "of one GPU", c.memory_gib);
}

/// Names of enumerators as they stand in JSON and after --set.
[[nodiscard]] constexpr std::string_view to_string(attention_mask mask) noexcept {
  return mask == attention_mask::causal ? "causal" : "full";
}
[[nodiscard]] constexpr std::string_view to_string(recomputation what) noexcept {
  switch (what) {
    case recomputation::none: return "none";
    case recomputation::selective: return "selective";
    case recomputation::full: return "full";
  }
  return "unknown";
}

/// The fields' names, in order.
template <class Spec>
[[nodiscard]] std::vector<std::string> field_names() {
  std::vector<std::string> names;
  const Spec spec{};
  visit_fields(spec, [&](const field_info& field, const auto&) { names.emplace_back(field.name); });
  return names;
}

namespace detail {

[[nodiscard]] inline error field_error(const field_info& field, const std::string& what,
                                       const std::string& allowed) {
  return make_error(errc::invalid_argument, std::string(field.name) + " is " + what,
                    "use " + allowed + " (" + field.what + ")");
}

[[nodiscard]] inline std::string bounds(const field_info& field) {
  return text::shortest(field.least) + " .. " + text::shortest(field.most);
}

template <class Enum>
[[nodiscard]] result<void> set_enum(const field_info& field, Enum& member, std::string_view word,
                                    std::initializer_list<Enum> values) {
  std::string known;
  for (const Enum value : values) {
    if (word == to_string(value)) {
      member = value;
      return {};
    }
    known += (known.empty() ? "" : ", ") + std::string(to_string(value));
  }
  return field_error(field, text::quoted(word), known);
}

[[nodiscard]] inline result<void> set_field(const field_info& field, attention_mask& member,
                                            std::string_view word) {
  return set_enum(field, member, word, {attention_mask::causal, attention_mask::full});
}
[[nodiscard]] inline result<void> set_field(const field_info& field, recomputation& member,
                                            std::string_view word) {
  return set_enum(field, member, word,
                  {recomputation::none, recomputation::selective, recomputation::full});
}
[[nodiscard]] inline result<void> set_field(const field_info& field, bool& member,
                                            std::string_view word) {
  if (word != "true" && word != "false" && word != "1" && word != "0") {
    return field_error(field, text::quoted(word), "true or false");
  }
  member = word == "true" || word == "1";
  return {};
}
[[nodiscard]] inline result<void> set_field(const field_info& field, double& member,
                                            std::string_view word) {
  const text::parsed_number number = text::parse_number(word);
  if (!number.ok) return field_error(field, text::quoted(word), "a number");
  if (number.value < field.least || number.value > field.most) {
    return field_error(field, text::shortest(number.value), bounds(field));
  }
  member = number.value;
  return {};
}
template <std::integral T>
[[nodiscard]] result<void> set_field(const field_info& field, T& member, std::string_view word) {
  const text::parsed_integer number = text::parse_integer(word);
  if (number.status == text::parse_status::malformed) {
    return field_error(field, text::quoted(word), "a whole number");
  }
  if (number.status == text::parse_status::overflow ||
      static_cast<double>(number.value) < field.least ||
      static_cast<double>(number.value) > field.most) {
    return field_error(field, std::string(word), bounds(field));
  }
  member = static_cast<T>(number.value);
  return {};
}

}  // namespace detail

/// Sets the field `key` from text; false if this spec has no such field.
/// Errors: invalid_argument for a value outside its domain.
template <class Spec>
[[nodiscard]] result<bool> set_field(Spec& spec, std::string_view key, std::string_view value) {
  bool found = false;
  result<void> outcome;
  visit_fields(spec, [&](const field_info& field, auto& member) {
    if (key != field.name) return;
    found = true;
    outcome = detail::set_field(field, member, value);
  });
  if (!outcome) return outcome.error();
  return found;
}

/// Applies "KEY=VALUE" to whichever of the two specs has the field.
///
/// Errors: invalid_argument (no "=", a value outside its domain), unknown_name with the nearest
/// name and all that exist.
[[nodiscard]] inline result<void> set_field(model_spec& model, cluster_spec& cluster,
                                            std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    return make_error(errc::invalid_argument,
                      "--set " + text::quoted(assignment) + " has no value",
                      "write --set KEY=VALUE");
  }
  const std::string_view key = assignment.substr(0, equals);
  const std::string_view value = assignment.substr(equals + 1);
  auto in_model = set_field(model, key, value);
  if (!in_model) return in_model.error();
  if (*in_model) return {};
  auto in_cluster = set_field(cluster, key, value);
  if (!in_cluster) return in_cluster.error();
  if (*in_cluster) return {};
  std::vector<std::string> names = field_names<model_spec>();
  for (std::string& name : field_names<cluster_spec>()) names.push_back(std::move(name));
  const std::string nearest = text::nearest_name(key, names);
  return make_error(errc::unknown_name, "no model or cluster has a field " + text::quoted(key),
                    (nearest.empty() ? "" : "did you mean " + nearest + "? ") +
                        ("known: " + text::joined(names)));
}

/// What the single fields' bounds cannot say. Errors: invalid_argument.
[[nodiscard]] inline result<void> check_fields(const model_spec& m) {
  if (m.experts_per_token > m.experts || (m.experts > 0 && m.experts_per_token < 1)) {
    return error{errc::invalid_argument,
                 "experts_per_token is " + std::to_string(m.experts_per_token) + " of " +
                     std::to_string(m.experts) + " experts",
                 m.experts_per_token, m.experts,
                 "use 1 .. experts, or 0 of 0 experts for a dense model"};
  }
  return {};
}

namespace detail {

template <class T>
void write_field(json_writer& w, const char* name, const T& member) {
  if constexpr (std::is_enum_v<T>) {
    w.member(name, to_string(member));
  } else {
    w.member(name, member);
  }
}

}  // namespace detail

/// Writes a spec as the value of `key`: its fields by their names.
template <class Spec>
void write_spec(json_writer& w, std::string_view key, const Spec& spec) {
  w.begin_object(key).member("name", spec.name);
  visit_fields(spec, [&](const field_info& field, const auto& member) {
    detail::write_field(w, field.name, member);
  });
  w.end();
}

/// A spec as a JSON file. Byte for byte the same for equal specs.
template <class Spec>
[[nodiscard]] std::string to_json(const Spec& spec)
  requires std::same_as<Spec, model_spec> || std::same_as<Spec, cluster_spec>
{
  json_writer w;
  w.begin_object().member("name", spec.name);
  visit_fields(spec, [&](const field_info& field, const auto& member) {
    detail::write_field(w, field.name, member);
  });
  return w.end().take();
}

}  // namespace v0
}  // namespace dyncp
