// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace dyncp {
inline namespace v0 {

/// Rates and times of the hardware and its kernels, per GPU. Field names are the JSON keys.
struct cluster_spec {
  std::string name;
  std::int32_t gpus_per_node = 8;

  double linear_flops_per_s = 0;     ///< matrix products, n large
  double linear_half_tokens = 0;     ///< n0 of the efficiency n/(n+n0), n tokens on the rank
  double attention_flops_per_s = 0;  ///< forward attention kernel
  double attention_half_tokens = 0;  ///< n0 of the attention kernel

  double nvlink_bytes_per_s = 0;  ///< one direction, between two GPUs of a node
  double nvlink_latency_s = 0;    ///< alpha of one ring hop in a node
  double network_bytes_per_s = 0;
  double network_latency_s = 0;
  double ring_overlap = 1.0;      ///< rho, 0..1: share of a hop that hides under attention

  double fixed_s = 0;             ///< per operation (one stage, micro-batch, forward or backward)
  double launch_s = 0;            ///< per layer of an operation

  double backward_linear = 2.0;      ///< backward matrix time over forward
  double backward_attention = 2.0;   ///< backward attention time over forward, 2 to 2.5 and more
  double backward_ring_bytes = 2.0;  ///< backward ring bytes over forward, 2 to 3

  double stage_bytes_per_s = 0;  ///< activations between stages; 0: free
  double stage_latency_s = 0;

  double memory_gib = 80;        ///< of one GPU

  friend bool operator==(const cluster_spec&, const cluster_spec&) = default;
};

}  // namespace v0
}  // namespace dyncp
