// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/rounded.hpp>
#include <dyncp/cost/memory.hpp>
#include <dyncp/plan/inflight.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/plan/schedule.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// What the ranks of one physical stage hold after each of its operations.
///
/// Counted in chunk tokens: a forward of one of V chunks adds the tokens of the rank's shard,
/// ceil(padded tokens of the pack / c), its backward frees them; divided by V they are tokens with
/// the activations of the whole stage.
struct stage_inflight {
  std::vector<operation> order;            ///< (2*M*V): as the stage runs them
  std::vector<std::int64_t> chunk_tokens;  ///< (2*M*V, ranks): in flight after the operation
  std::vector<std::int64_t> peak;          ///< (ranks): largest of its column, chunk tokens

  /// Row of an operation, (ranks). Requires i < order.size().
  [[nodiscard]] std::span<const std::int64_t> after(std::size_t i) const noexcept {
    return std::span(chunk_tokens).subspan(i * peak.size(), peak.size());
  }
};

/// Tokens in flight on every stage: the sliding window of micro-batches between their forward and
/// their backward. Unequal micro-batches make it less than stages * the largest.
struct memory_timeline {
  std::int32_t num_ranks = 0;
  std::int32_t chunks = 1;
  std::vector<std::int64_t> shard_tokens;  ///< (M, ranks): of a rank's pack, 0 where it is idle
  std::vector<stage_inflight> stages;      ///< (pp)

  /// Most tokens that a rank of `stage` holds at once, rounded up.
  [[nodiscard]] std::int64_t peak_tokens(std::int32_t stage) const {
    const std::vector<std::int64_t>& peak = stages[static_cast<std::size_t>(stage)].peak;
    return ceil_div(*std::max_element(peak.begin(), peak.end()), chunks);
  }
};

/// The timeline of a plan whose rank ranges and sequence indices are valid.
///
/// Exact integers. Complexity and memory: O(pp * M * V * ranks); for the peaks of a large plan
/// alone, `peak_inflight` needs O(ranks). Safe to call concurrently.
[[nodiscard]] inline memory_timeline trace_memory(const plan& p, const std::vector<sequence>& batch,
                                                  pipeline pipe) {
  const auto ranks = static_cast<std::size_t>(p.num_ranks);
  memory_timeline out;
  out.num_ranks = p.num_ranks;
  out.chunks = pipe.chunks;
  out.shard_tokens = tokens_by_rank<std::int64_t>(
      p, batch, [](std::int64_t tokens, std::int32_t c) { return ceil_div(tokens, c); });
  for (std::int32_t s = 0; s < pipe.stages; ++s) {
    stage_inflight stage;
    stage.order = stage_order(pipe, s, p.num_micro_batches());
    stage.chunk_tokens.reserve(stage.order.size() * ranks);
    stage.peak.assign(ranks, 0);
    std::vector<std::int64_t> now(ranks, 0);
    for (const operation op : stage.order) {
      const std::int64_t* shard =
          out.shard_tokens.data() + static_cast<std::size_t>(op.micro_batch) * ranks;
      for (std::size_t r = 0; r < ranks; ++r) {
        now[r] += op.backward ? -shard[r] : shard[r];
        stage.peak[r] = std::max(stage.peak[r], now[r]);
      }
      stage.chunk_tokens.insert(stage.chunk_tokens.end(), now.begin(), now.end());
    }
    out.stages.push_back(std::move(stage));
  }
  return out;
}

/// Most bytes of a GPU of each rank on `stage`, shape (ranks): states, activations in flight, the
/// layer that a backward computes again, and the logits of the micro-batch that runs. During a
/// backward its own chunk is still held. Complexity: O(M * V * ranks).
[[nodiscard]] inline std::vector<double> peak_bytes(const memory_timeline& timeline,
                                                    std::int32_t stage,
                                                    const stage_memory_spec& memory) {
  const stage_inflight& at = timeline.stages[static_cast<std::size_t>(stage)];
  const auto ranks = static_cast<std::size_t>(timeline.num_ranks);
  const double per_chunk_token = memory.kept_bytes_per_token / timeline.chunks;
  std::vector<double> peak(ranks, memory.state_bytes);
  for (std::size_t i = 0; i < at.order.size(); ++i) {
    const operation op = at.order[i];
    const std::int64_t* shard =
        timeline.shard_tokens.data() + static_cast<std::size_t>(op.micro_batch) * ranks;
    const bool head = op.chunk + 1 == timeline.chunks;
    double running = head ? memory.logits_bytes_per_token : 0.0;
    if (op.backward) running += memory.working_bytes_per_token;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::int64_t held = at.after(i)[r] + (op.backward ? shard[r] : 0);
      const double bytes = memory.state_bytes +
                           rounded_product(per_chunk_token, static_cast<double>(held)) +
                           rounded_product(running, static_cast<double>(shard[r]));
      peak[r] = std::max(peak[r], bytes);
    }
  }
  return peak;
}

}  // namespace v0
}  // namespace dyncp
