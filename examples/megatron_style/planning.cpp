// SPDX-License-Identifier: Apache-2.0
#include "planning.hpp"

#include <dyncp/packers/dynamic_cp.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/problem/model_spec.hpp>

namespace megatron_style {

dyncp::result<dyncp::planned> batch_scheduler::plan(const dyncp::problem& problem,
                                                    const dyncp::plan_hint& hint) const {
  if (which_ == scheduler::packing_only) {
    return dyncp::planner{cost_, dyncp::packing_only{}}.plan(problem, hint);
  }
  const dyncp::planner search{cost_, dyncp::dynamic_cp{}};
  if (which_ == scheduler::dynamic_cp) return search.plan(problem, hint);
  dyncp::problem one_size = problem;
  one_size.parallel.cp_sizes = {problem.parallel.static_cp};
  return search.plan(one_size, hint);
}

dyncp::problem make_problem(const model_config& model, const world_shape& world,
                            std::int32_t static_cp, std::int64_t max_tokens_per_rank,
                            std::int32_t element_bytes, const dyncp::cluster_spec& cluster) {
  dyncp::problem p;
  p.model.name = "megatron_style";
  p.model.layers = model.layers;
  p.model.hidden = model.hidden;
  p.model.ffn = model.ffn;
  p.model.query_hidden = model.q_width();
  p.model.kv_hidden = model.kv_width();
  p.model.vocabulary = model.vocabulary;
  p.model.dtype_bytes = element_bytes;
  p.model.recompute = dyncp::recomputation::none;
  p.cluster = cluster;
  p.parallel.ranks = world.domain;
  p.parallel.pp = world.stages;
  p.parallel.vpp = world.chunks;
  p.parallel.tp = world.tp;
  p.parallel.static_cp = static_cp;
  p.limits.max_tokens_per_rank = max_tokens_per_rank;
  p.padding.zigzag = true;
  return p;
}

dyncp::cluster_spec one_core() {
  dyncp::cluster_spec c;
  c.name = "one-core";
  c.gpus_per_node = 1 << 16;  // all ranks in one process
  c.linear_flops_per_s = 9.4e9;
  c.attention_flops_per_s = 5e9;
  c.nvlink_bytes_per_s = c.network_bytes_per_s = 8e9;
  c.nvlink_latency_s = c.network_latency_s = 20e-6;  // two threads meet
  c.ring_overlap = 0.0;                              // a rank copies what it receives itself
  c.fixed_s = 1e-5;
  c.backward_linear = 1.8;
  c.backward_attention = 1.5;
  c.backward_ring_bytes = 2.0;
  return c;
}

}  // namespace megatron_style
