// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/problem/cluster_spec.hpp>
#include <dyncp/problem/model_spec.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace dyncp {
inline namespace v0 {
namespace detail {

/// The error for a field outside least .. most; NaN is outside every range. Values beyond int64
/// are reported as its ends.
[[nodiscard]] inline result<void> check_field(const char* owner, const char* name, double value,
                                              double least, double most) {
  if (value >= least && value <= most) return {};
  const auto whole = [](double x) {
    return x == x ? static_cast<std::int64_t>(std::clamp(x, -9e18, 9e18)) : std::int64_t{0};
  };
  return error{errc::invalid_argument,
               std::string(owner) + " field " + name + " is " + std::to_string(value),
               whole(value), whole(value < least ? least : most),
               "start from a preset (find_model, find_cluster), or set a value in range"};
}

}  // namespace detail

/// Fields that every cost needs, in ranges that keep costs finite.
/// Errors: invalid_argument with the field, its value and the bound.
[[nodiscard]] inline result<void> check(const model_spec& m) {
  struct field {
    const char* name;
    double value;
    double least;
    double most;
  };
  constexpr double width = 1 << 24;
  for (const field& f :
       {field{"layers", static_cast<double>(m.layers), 1, 1 << 20},
        {"hidden", static_cast<double>(m.hidden), 1, width},
        {"ffn", static_cast<double>(m.ffn), 0, width},
        {"query_hidden", static_cast<double>(m.query_hidden), 1, width},
        {"kv_hidden", static_cast<double>(m.kv_hidden), 1, width},
        {"experts", static_cast<double>(m.experts), 0, 1 << 16},
        {"experts_per_token", static_cast<double>(m.experts_per_token), 0,
         std::max(1.0, static_cast<double>(m.experts))},
        {"vocabulary", static_cast<double>(m.vocabulary), 0, 1 << 30},
        {"dtype_bytes", static_cast<double>(m.dtype_bytes), 1, 8}}) {
    if (auto ok = detail::check_field("model", f.name, f.value, f.least, f.most); !ok) return ok;
  }
  return {};
}

/// The same for the rates and times of a cluster.
[[nodiscard]] inline result<void> check(const cluster_spec& c) {
  struct field {
    const char* name;
    double value;
    double least;
    double most;
  };
  constexpr double least_rate = 1e6;
  constexpr double most_rate = 1e21;
  constexpr double most_s = 1e3;
  for (const field& f : {field{"gpus_per_node", static_cast<double>(c.gpus_per_node), 1, 1 << 20},
                         {"linear_flops_per_s", c.linear_flops_per_s, least_rate, most_rate},
                         {"linear_half_tokens", c.linear_half_tokens, 0, 1e9},
                         {"attention_flops_per_s", c.attention_flops_per_s, least_rate, most_rate},
                         {"attention_half_tokens", c.attention_half_tokens, 0, 1e9},
                         {"nvlink_bytes_per_s", c.nvlink_bytes_per_s, least_rate, most_rate},
                         {"nvlink_latency_s", c.nvlink_latency_s, 0, most_s},
                         {"network_bytes_per_s", c.network_bytes_per_s, least_rate, most_rate},
                         {"network_latency_s", c.network_latency_s, 0, most_s},
                         {"ring_overlap", c.ring_overlap, 0, 1},
                         {"fixed_s", c.fixed_s, 0, most_s},
                         {"launch_s", c.launch_s, 0, most_s},
                         {"backward_linear", c.backward_linear, 0, 100},
                         {"backward_attention", c.backward_attention, 0, 100},
                         {"backward_ring_bytes", c.backward_ring_bytes, 0, 100},
                         {"stage_bytes_per_s", c.stage_bytes_per_s, 0, most_rate},
                         {"stage_latency_s", c.stage_latency_s, 0, most_s}}) {
    if (auto ok = detail::check_field("cluster", f.name, f.value, f.least, f.most); !ok) return ok;
  }
  return {};
}

}  // namespace v0
}  // namespace dyncp
