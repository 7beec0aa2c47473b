// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/log_sink.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/trainer/step_metadata.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dyncp {
inline namespace v0 {

namespace detail {

/// "1 pack", "2 packs".
[[nodiscard]] inline std::string counted(std::int64_t count, const char* thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

}  // namespace detail

/// A line per micro-batch of a plan, all its groups together: CP sizes, sequences, real tokens.
/// Errors: callback_failed when the sink throws.
[[nodiscard]] inline result<void> log_micro_batches(const plan_layout& layout,
                                                    std::int64_t iteration, const log_sink& sink) {
  if (!sink) return {};
  std::vector<std::map<std::int32_t, std::int32_t>> groups(
      static_cast<std::size_t>(layout.num_micro_batches()));
  std::vector<std::int64_t> sequences(groups.size(), 0);
  std::vector<std::int64_t> tokens(groups.size(), 0);
  for (const placed_pack& p : layout.packs()) {
    const auto m = static_cast<std::size_t>(p.micro_batch);
    groups[m][p.ranks.size] += 1;
    sequences[m] += static_cast<std::int64_t>(p.sequences.size());
    tokens[m] += p.layout.cu().real.back();
  }
  for (std::size_t m = 0; m < groups.size(); ++m) {
    std::string sizes;
    for (const auto& [cp, count] : groups[m]) {
      sizes += (sizes.empty() ? "" : ", ") + ("cp " + std::to_string(cp)) + " x " +
               std::to_string(count);
    }
    DYNCP_TRY(log_to(sink, log_level::info, "dynamic_cp",
                     "iteration " + std::to_string(iteration) + " micro-batch " +
                         std::to_string(m) + ": " +
                         (sizes.empty() ? "idle"
                                        : sizes + ", " + detail::counted(sequences[m], "sequence") +
                                              ", " + detail::counted(tokens[m], "token"))));
  }
  return {};
}

/// A line for micro-batch `m` as one rank of it sees it. Errors: callback_failed.
[[nodiscard]] inline result<void> log_micro_batch(const step_metadata& step, std::int32_t m,
                                                  const log_sink& sink) {
  if (!sink) return {};
  const micro_batch_metadata& mb = step.micro_batches[static_cast<std::size_t>(m)];
  std::string text = "iteration " + std::to_string(step.iteration) + " micro-batch " +
                     std::to_string(m) + ": ";
  if (mb.idle()) {
    text += "idle";
  } else {
    text += "cp " + std::to_string(mb.ranks.size) + ", " +
            detail::counted(static_cast<std::int64_t>(mb.sequence_ids.size()), "sequence") + ", " +
            detail::counted(mb.layout.cu().real.back(), "token") + ", " +
            detail::counted(mb.layout.view().local_rows(), "row") + " a rank";
  }
  return log_to(sink, log_level::info, "data_iterator", text);
}

}  // namespace v0
}  // namespace dyncp
