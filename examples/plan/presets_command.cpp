// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "packers.hpp"
#include "report.hpp"

#include <dyncp/io/corpora.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/spec_fields.hpp>
#include <dyncp/io/table.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/problem/presets.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace tool {
namespace {

namespace text = dyncp::text;

template <class T>
std::string shown(const T& member) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(to_string(member));
  } else if constexpr (std::is_same_v<T, bool>) {
    return member ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(member);
  } else {
    return text::shortest(member);
  }
}

template <class Spec>
std::string fields_table(const Spec& spec) {
  dyncp::text_table table({spec.name, "value"});
  std::vector<std::string> meaning;
  std::string out;
  dyncp::visit_fields(spec, [&](const dyncp::field_info& field, const auto& member) {
    table.add({field.name, shown(member)});
    meaning.emplace_back(field.what);
  });
  // The meaning stands last and to the left.
  std::string lines = table.render();
  std::size_t line = 0;
  for (std::size_t begin = 0; begin < lines.size(); ++line) {
    const std::size_t end = lines.find('\n', begin);
    out += lines.substr(begin, end - begin);
    if (line > 0) out += "  " + meaning[line - 1];
    out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string all_as_json() {
  dyncp::json_writer w;
  w.begin_object();
  w.begin_array("models");
  for (const auto& m : dyncp::model_presets()) w.value(m.name);
  w.end();
  w.begin_array("clusters");
  for (const auto& c : dyncp::cluster_presets()) w.value(c.name);
  w.end();
  w.begin_array("packers");
  for (const packer_info& p : packers()) w.value(p.name);
  w.end();
  w.begin_array("corpora");
  for (const auto& c : dyncp::corpora()) w.value(c.name);
  w.end();
  return w.end().take();
}

void print_all() {
  dyncp::text_table models({"model", "layers", "hidden", "ffn", "kv", "experts", "mask"});
  for (const auto& m : dyncp::model_presets()) {
    models.add({m.name, std::to_string(m.layers), std::to_string(m.hidden), std::to_string(m.ffn),
                std::to_string(m.kv_hidden), std::to_string(m.experts),
                std::string(to_string(m.mask))});
  }
  dyncp::text_table clusters({"cluster", "GPUs a node", "linear TFLOP/s", "attention TFLOP/s",
                              "NVLink GB/s", "network GB/s"});
  for (const auto& c : dyncp::cluster_presets()) {
    clusters.add({c.name, std::to_string(c.gpus_per_node),
                  text::fixed(c.linear_flops_per_s * 1e-12, 0),
                  text::fixed(c.attention_flops_per_s * 1e-12, 0),
                  text::fixed(c.nvlink_bytes_per_s * 1e-9, 0),
                  text::fixed(c.network_bytes_per_s * 1e-9, 0)});
  }
  fmt::print("{}\n{}\n", models.render(), clusters.render());
  std::size_t widest = 0;
  for (const packer_info& p : packers()) widest = std::max(widest, p.name.size());
  for (const packer_info& p : packers()) {
    fmt::print("packer {:<{}}  {}\n", p.name, widest, p.what);
  }
  fmt::print("\n");
  for (const auto& c : dyncp::corpora()) fmt::print("corpus {:<14} {}\n", c.name, c.source);
}

}  // namespace

int run_presets(const options& o) {
  if (o.preset.empty()) {
    if (o.json) {
      fmt::print("{}", all_as_json());
    } else {
      print_all();
    }
    return 0;
  }
  const auto model = dyncp::find_model(o.preset);
  const auto cluster = dyncp::find_cluster(o.preset);
  if (!model && !cluster) {
    dyncp::error e = model.error();
    e.what = "no model or cluster is named " + text::quoted(o.preset);
    e.hint = "dyncp-plan presets lists all";
    return report_error(e, o.json);
  }
  // A name may stand for a model and a cluster: they are printed one after the other.
  if (o.json) {
    dyncp::json_writer w;
    w.begin_object();
    if (model) dyncp::write_spec(w, "model", *model);
    if (cluster) dyncp::write_spec(w, "cluster", *cluster);
    fmt::print("{}", w.end().str());
    return 0;
  }
  if (model) fmt::print("{}", fields_table(*model));
  if (model && cluster) fmt::print("\n");
  if (cluster) fmt::print("{}", fields_table(*cluster));
  return 0;
}

}  // namespace tool
