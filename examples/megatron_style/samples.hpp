// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/parameters.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megatron_style {

/// A training sample: a prompt, whose tokens are no labels, and what follows. Its tokens are a
/// function of its id, so that any rank can load it.
struct sample {
  std::int64_t id = 0;
  std::int32_t length = 0;
  std::int32_t prompt = 0;
};

/// A sample as the loader gives it: the label of a token is the next one; -1 for the last and
/// inside the prompt. Shifted here, on the whole sequence, never on a rank's share.
struct token_sample {
  std::vector<std::int32_t> tokens;  // (length)
  std::vector<std::int32_t> labels;  // (length)

  [[nodiscard]] std::int64_t length() const noexcept {
    return static_cast<std::int64_t>(tokens.size());
  }
};

/// The tokens of a sample, (length).
[[nodiscard]] inline std::vector<std::int32_t> load_tokens(const sample& s,
                                                           std::int32_t vocabulary) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(s.length));
  for (std::int32_t p = 0; p < s.length; ++p) {
    // A skewed vocabulary, and now and then a repeated token: something to learn.
    const double u =
        0.5 * (1.0 + hashed({static_cast<std::uint64_t>(s.id), static_cast<std::uint64_t>(p)}));
    const bool repeat = p > 0 && u > 0.7;
    tokens.push_back(repeat ? tokens.back()
                            : static_cast<std::int32_t>(u * u * static_cast<double>(vocabulary)));
  }
  return tokens;
}

[[nodiscard]] inline token_sample load(const sample& s, std::int32_t vocabulary) {
  token_sample out{load_tokens(s, vocabulary), {}};
  out.labels.assign(out.tokens.size(), -1);
  for (std::size_t p = 0; p + 1 < out.tokens.size(); ++p) {
    if (static_cast<std::int32_t>(p) + 1 >= s.prompt) out.labels[p] = out.tokens[p + 1];
  }
  return out;
}

/// `count` samples with ids from 0 and a long tail: most are short, a few hold much of the tokens.
[[nodiscard]] std::vector<sample> make_samples(std::int32_t count, std::int32_t shortest,
                                               std::int32_t longest, std::uint64_t seed);

}  // namespace megatron_style
