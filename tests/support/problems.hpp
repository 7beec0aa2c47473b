// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/random.hpp"

#include <dyncp/problem/presets.hpp>
#include <dyncp/problem/problem.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dyncp_test {

/// A problem of the judge's form over the given lengths.
inline dyncp::problem reference_problem(const std::vector<std::int64_t>& lengths,
                                        std::int32_t ranks, std::int32_t pp, std::int64_t limit) {
  dyncp::problem p;
  p.model = *dyncp::find_model("reference-13b");
  p.cluster = *dyncp::find_cluster("reference-13b");
  p.parallel.ranks = ranks;
  p.parallel.pp = pp;
  p.limits.max_tokens_per_rank = limit;
  p.sequences = *dyncp::make_batch(lengths);
  return p;
}

/// A small problem with any mixture of options: odd rank counts and nodes, explicit CP sets,
/// alignments, caps, interleaving, atomic groups, fixed M, tokens in flight, no idle ranks.
inline dyncp::problem random_problem(random& rng) {
  const auto pick32 = [&](std::int64_t low, std::int64_t high) {
    return static_cast<std::int32_t>(rng.between(low, high));
  };
  const std::int32_t ranks = pick32(1, rng.one_in(3) ? 24 : 8);
  std::vector<std::int64_t> lengths;
  const std::int64_t longest = rng.one_in(2) ? 60 : 400;
  for (std::int64_t n = rng.between(1, rng.one_in(4) ? 60 : 10); n > 0; --n) {
    lengths.push_back(rng.one_in(4) ? rng.between(1, longest) : rng.between(1, longest / 8 + 1));
  }
  dyncp::problem p = reference_problem(lengths, ranks, pick32(1, 4), rng.between(4, 120));
  p.cluster.gpus_per_node = pick32(1, 8);
  p.parallel.tp = rng.one_in(4) ? 2 : 1;
  if (rng.one_in(3)) {
    for (std::int32_t n = pick32(1, 3); n > 0; --n) {
      p.parallel.cp_sizes.push_back(pick32(1, ranks));
    }
    if (rng.one_in(2)) p.parallel.cp_sizes.push_back(1);
  } else if (rng.one_in(3)) {
    p.parallel.min_cp = 1 << pick32(0, 2);
    if (p.parallel.min_cp > ranks) p.parallel.min_cp = 1;
  }
  p.padding.zigzag = rng.one_in(2);
  if (rng.one_in(4)) p.padding.multiple = rng.between(1, 8);
  if (rng.one_in(6)) p.padding.sequence_parallel = p.parallel.tp;
  if (rng.one_in(6)) p.padding.shard_multiple = rng.between(1, 4);
  if (rng.one_in(4)) p.parallel.vpp = pick32(2, 3);
  if (rng.one_in(4)) p.limits.max_sequences_per_pack = pick32(1, 4);
  if (rng.one_in(4)) p.limits.micro_batch_multiple = pick32(1, 4);
  if (rng.one_in(6)) {
    p.limits.micro_batches = pick32(1, 6) * dyncp::micro_batch_multiple(p);
  }
  if (rng.one_in(6)) p.limits.no_idle_ranks = true;
  if (rng.one_in(6)) p.limits.uniform_cp = true;
  if (rng.one_in(5)) p.limits.max_inflight_tokens = rng.between(4, 300);
  if (rng.one_in(4)) {
    for (dyncp::sequence& s : p.sequences) {
      if (rng.one_in(2)) s.atom = rng.between(0, 3);
    }
  }
  return p;
}

/// A line from which a failing problem can be typed in again.
inline std::string describe(const dyncp::problem& p) {
  std::string text = "R " + std::to_string(p.parallel.ranks) + " pp " +
                     std::to_string(p.parallel.pp) + " vpp " + std::to_string(p.parallel.vpp) +
                     " tp " + std::to_string(p.parallel.tp) + " node " +
                     std::to_string(p.cluster.gpus_per_node) + " min-cp " +
                     std::to_string(p.parallel.min_cp) + " limit " +
                     std::to_string(p.limits.max_tokens_per_rank) + " inflight " +
                     std::to_string(p.limits.max_inflight_tokens) + " cap " +
                     std::to_string(p.limits.max_sequences_per_pack) + " M " +
                     std::to_string(p.limits.micro_batches) + " multiple " +
                     std::to_string(p.limits.micro_batch_multiple) + " no-idle " +
                     std::to_string(p.limits.no_idle_ranks) + " uniform " +
                     std::to_string(p.limits.uniform_cp) + " pad " +
                     std::to_string(p.padding.zigzag) + "/" + std::to_string(p.padding.multiple) +
                     "/" + std::to_string(p.padding.sequence_parallel) + "/" +
                     std::to_string(p.padding.shard_multiple) + " sizes";
  for (const std::int32_t c : p.parallel.cp_sizes) text += " " + std::to_string(c);
  text += " lengths";
  for (const dyncp::sequence& s : p.sequences) {
    text += " " + std::to_string(s.length);
    if (s.atom >= 0) text += "@" + std::to_string(s.atom);
  }
  return text;
}

}  // namespace dyncp_test
