// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/model_spec.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Models by name. `reference-13b` is the form by which plans are judged: Llama-13B without
/// embedding and head, full recomputation, bf16.
[[nodiscard]] inline std::vector<model_spec> model_presets() {
  std::vector<model_spec> presets;
  presets.push_back({.name = "reference-13b",
                     .layers = 40,
                     .hidden = 5120,
                     .ffn = 13824,
                     .query_hidden = 5120,
                     .kv_hidden = 5120});
  return presets;
}

/// Clusters by name. `reference-13b` belongs to the model of that name: 600 and 500 TFLOP/s,
/// NVLink 450 GB/s and 10 us, network 50 GB/s and 20 us, 1 ms fixed per stage and operation.
[[nodiscard]] inline std::vector<cluster_spec> cluster_presets() {
  std::vector<cluster_spec> presets;
  presets.push_back({.name = "reference-13b",
                     .gpus_per_node = 8,
                     .linear_flops_per_s = 600e12,
                     .attention_flops_per_s = 500e12,
                     .nvlink_bytes_per_s = 450e9,
                     .nvlink_latency_s = 10e-6,
                     .network_bytes_per_s = 50e9,
                     .network_latency_s = 20e-6,
                     .fixed_s = 1e-3});
  return presets;
}

namespace detail {

template <class Spec>
[[nodiscard]] result<Spec> find_preset(const std::vector<Spec>& presets, std::string_view name,
                                       const char* what) {
  std::string known;
  for (const Spec& preset : presets) {
    if (preset.name == name) return preset;
    known += (known.empty() ? "" : ", ") + preset.name;
  }
  return make_error(errc::unknown_name,
                    "no " + std::string(what) + " is named '" + std::string(name) + "'",
                    "known: " + known);
}

}  // namespace detail

/// Errors: unknown_name, with the names that exist.
[[nodiscard]] inline result<model_spec> find_model(std::string_view name) {
  return detail::find_preset(model_presets(), name, "model");
}

[[nodiscard]] inline result<cluster_spec> find_cluster(std::string_view name) {
  return detail::find_preset(cluster_presets(), name, "cluster");
}

}  // namespace v0
}  // namespace dyncp
