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

/// Models by name.
///
/// | preset         | shape                                                                     |
/// | -------------- | ------------------------------------------------------------------------- |
/// | reference-13b  | the form by which plans are judged: Llama-13B without embedding and head  |
/// | llama-*        | Llama 2, published configurations                                         |
/// | qwen3-*        | Qwen3, published configurations; 30b-a3b and 235b-a22b are MoE            |
/// | video-dit-14b  | a text-to-video diffusion transformer: full mask, plain MLP; the shape of |
/// |                | Wan 2.1, without its cross-attention to the text                          |
///
/// All are in bf16 with full recomputation; --set or the struct changes that.
[[nodiscard]] inline std::vector<model_spec> model_presets() {
  std::vector<model_spec> presets;
  presets.push_back({.name = "reference-13b",
                     .layers = 40,
                     .hidden = 5120,
                     .ffn = 13824,
                     .query_hidden = 5120,
                     .kv_hidden = 5120});
  presets.push_back(presets.front());
  presets.back().name = "study-13b";
  const auto dense = [&](const char* name, std::int32_t layers, std::int64_t hidden,
                         std::int64_t ffn, std::int64_t query, std::int64_t kv,
                         std::int64_t vocabulary) {
    presets.push_back({.name = name,
                       .layers = layers,
                       .hidden = hidden,
                       .ffn = ffn,
                       .query_hidden = query,
                       .kv_hidden = kv,
                       .vocabulary = vocabulary});
  };
  constexpr std::int64_t llama = 32000;
  dense("llama-7b", 32, 4096, 11008, 4096, 4096, llama);
  dense("llama-13b", 40, 5120, 13824, 5120, 5120, llama);
  dense("llama-70b", 80, 8192, 28672, 8192, 1024, llama);
  constexpr std::int64_t qwen = 151936;
  dense("qwen3-0.6b", 28, 1024, 3072, 2048, 1024, qwen);
  dense("qwen3-1.7b", 28, 2048, 6144, 2048, 1024, qwen);
  dense("qwen3-4b", 36, 2560, 9728, 4096, 1024, qwen);
  dense("qwen3-8b", 36, 4096, 12288, 4096, 1024, qwen);
  dense("qwen3-14b", 40, 5120, 17408, 5120, 1024, qwen);
  dense("qwen3-32b", 64, 5120, 25600, 8192, 1024, qwen);
  dense("qwen3-30b-a3b", 48, 2048, 768, 4096, 512, qwen);
  presets.back().experts = 128;
  presets.back().experts_per_token = 8;
  dense("qwen3-235b-a22b", 94, 4096, 1536, 8192, 512, qwen);
  presets.back().experts = 128;
  presets.back().experts_per_token = 8;
  dense("video-dit-14b", 40, 5120, 13824, 5120, 5120, 0);
  presets.back().gated_mlp = false;
  presets.back().mask = attention_mask::full;
  return presets;
}

/// Clusters by name. `reference-13b` belongs to the model of that name: 600 and 500 TFLOP/s,
/// NVLink 450 GB/s and 10 us, network 50 GB/s and 20 us, 1 ms fixed per stage and operation.
///
/// `study-13b`: the rates under which the speedups of NVIDIA's Dynamic-CP article were studied:
/// matrix products 600 TFLOP/s, half of it at 400 tokens; attention 550 forward, and backward 2.5
/// times the work at 420; NVLink 300 GB/s (150 by --set nvlink_bytes_per_s=150e9).
///
/// The others: peaks and links are the data sheets' (dense bf16 312 TFLOP/s on A100, 989 on the
/// H series; NVLink 300, 450 and, on H800, 200 GB/s in one direction; network 200 Gb/s a GPU on
/// A100, 400 Gb/s else). What kernels reach of them is ASSUMED, to be replaced by
/// measurements: matrix products 64 % of the peak on A100 and 61 % on H, half of it at 200 and
/// 400 tokens; attention 190 and 550 TFLOP/s forward, 2.5 times the work at 150 and 420 backward;
/// hops 10 and 20 us; 0.2 ms an operation and 20 us a layer for launches.
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
  presets.push_back({.name = "study-13b",
                     .gpus_per_node = 8,
                     .linear_flops_per_s = 600e12,
                     .linear_half_tokens = 400,
                     .attention_flops_per_s = 550e12,
                     .nvlink_bytes_per_s = 300e9,
                     .nvlink_latency_s = 10e-6,
                     .network_bytes_per_s = 50e9,
                     .network_latency_s = 20e-6,
                     .backward_attention = 2.5 * 550.0 / 420.0});
  const auto assumed = [&](const char* name, double nvlink, double memory_gib) {
    presets.push_back({.name = name,
                       .gpus_per_node = 8,
                       .linear_flops_per_s = 600e12,
                       .linear_half_tokens = 400,
                       .attention_flops_per_s = 550e12,
                       .nvlink_bytes_per_s = nvlink,
                       .nvlink_latency_s = 10e-6,
                       .network_bytes_per_s = 50e9,
                       .network_latency_s = 20e-6,
                       .fixed_s = 0.2e-3,
                       .launch_s = 20e-6,
                       .backward_attention = 3.27,
                       .stage_bytes_per_s = 50e9,
                       .stage_latency_s = 20e-6,
                       .memory_gib = memory_gib});
  };
  assumed("a100", 300e9, 80);
  cluster_spec& a100 = presets.back();
  a100.linear_flops_per_s = 200e12;
  a100.linear_half_tokens = 200;
  a100.attention_flops_per_s = 190e12;
  a100.backward_attention = 3.17;
  a100.network_bytes_per_s = 25e9;
  a100.stage_bytes_per_s = 25e9;
  assumed("h100", 450e9, 80);
  assumed("h200", 450e9, 140);
  assumed("h800", 200e9, 80);
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
