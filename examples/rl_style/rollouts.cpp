// SPDX-License-Identifier: Apache-2.0
#include "rollouts.hpp"

#include "megatron_style/model/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace rl_style {
namespace {

using megatron_style::hashed;

/// Uniform in [0, 1).
double unit(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return 0.5 * (1.0 + hashed({a, b, c}));
}

}  // namespace

std::vector<rollout> make_rollouts(const rollout_batch& batch, std::int64_t iteration) {
  std::vector<rollout> out;
  const std::uint64_t seed = batch.seed * 1000003 + static_cast<std::uint64_t>(iteration);
  for (std::int32_t p = 0; p < batch.prompts; ++p) {
    const auto number = static_cast<std::uint64_t>(p);
    const auto text = static_cast<std::int32_t>(4 + 12 * unit(seed, number, 1));
    const auto patches = p % 3 == 2 ? static_cast<std::int32_t>(8 + 24 * unit(seed, number, 2)) : 0;
    for (std::int32_t a = 0; a < batch.answers; ++a) {
      const double u = unit(seed, number, 10 + static_cast<std::uint64_t>(a));
      rollout r;
      r.id = p * batch.answers + a + iteration * 100000;
      r.prompt = p;
      r.patches = patches;
      r.response = static_cast<std::int32_t>(
          4.0 * std::pow(static_cast<double>(batch.longest) / 4.0, u * u * u));
      r.length = patches + text + r.response;
      out.push_back(r);
    }
  }
  return out;
}

std::vector<std::int32_t> tokens_of(const rollout& r, std::int32_t vocabulary) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t at = 0; at < r.length; ++at) {
    const bool response = at >= r.length - r.response;
    const auto whose = static_cast<std::uint64_t>(response ? r.id + 1 : -r.prompt - 1);
    const double u = unit(whose, static_cast<std::uint64_t>(at), 3);
    const auto token = static_cast<std::int32_t>(u * u * static_cast<double>(vocabulary));
    tokens.push_back(at < r.patches ? 0 : token);
  }
  return tokens;
}

std::vector<std::int32_t> labels_of(const rollout& r, const std::vector<std::int32_t>& tokens) {
  std::vector<std::int32_t> labels(tokens.size(), -1);
  for (std::int32_t at = r.length - r.response - 1; at < r.length - 1; ++at) {
    labels[static_cast<std::size_t>(at)] = tokens[static_cast<std::size_t>(at) + 1];
  }
  return labels;
}

std::vector<double> pixels_of(const rollout& r) {
  std::vector<double> pixels(static_cast<std::size_t>(r.length * patch_width), 0.0);
  for (std::int32_t i = 0; i < r.patches * patch_width; ++i) {
    pixels[static_cast<std::size_t>(i)] =
        1.0 + hashed({static_cast<std::uint64_t>(r.prompt), static_cast<std::uint64_t>(i), 7});
  }
  return pixels;
}

double score_of(const rollout& r, const std::vector<std::int32_t>& tokens) {
  const auto even = std::count_if(tokens.end() - r.response, tokens.end(),
                                  [](std::int32_t t) { return t % 2 == 0; });
  return static_cast<double>(even) / static_cast<double>(r.response);
}

}  // namespace rl_style
