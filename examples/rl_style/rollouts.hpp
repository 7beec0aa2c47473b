// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace rl_style {

/// One answer to a prompt. Prompts that show an image begin with its patches, which stand for one
/// token each.
struct rollout {
  std::int64_t id = 0;
  std::int32_t prompt = 0;    ///< answers to the same prompt are scored against each other
  std::int32_t length = 0;    ///< tokens of prompt and response
  std::int32_t response = 0;  ///< tokens of the response, the last ones
  std::int32_t patches = 0;   ///< tokens from the first on that stand for a patch
};

inline constexpr std::int32_t patch_width = 3;  ///< numbers of a patch

struct rollout_batch {
  std::int32_t prompts = 6;
  std::int32_t answers = 4;    ///< to each prompt
  std::int32_t longest = 300;  ///< response; most are far shorter
  std::uint64_t seed = 1;
};

/// The rollouts of iteration `iteration`: lengths with a long tail, every third prompt an image.
[[nodiscard]] std::vector<rollout> make_rollouts(const rollout_batch& batch,
                                                 std::int64_t iteration);

/// Tokens of a rollout, (length).
[[nodiscard]] std::vector<std::int32_t> tokens_of(const rollout& r, std::int32_t vocabulary);
/// Labels, (length): the next token where it belongs to the response, else -1.
[[nodiscard]] std::vector<std::int32_t> labels_of(const rollout& r,
                                                  const std::vector<std::int32_t>& tokens);
/// Patches of the image, (length, patch_width); zeros for text.
[[nodiscard]] std::vector<double> pixels_of(const rollout& r);
/// What a judge says of the response.
[[nodiscard]] double score_of(const rollout& r, const std::vector<std::int32_t>& tokens);

}  // namespace rl_style
