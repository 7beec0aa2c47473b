// SPDX-License-Identifier: Apache-2.0
#include "samples.hpp"

#include <algorithm>
#include <cmath>

namespace megatron_style {

std::vector<sample> make_samples(std::int32_t count, std::int32_t shortest, std::int32_t longest,
                                 std::uint64_t seed) {
  std::vector<sample> out;
  for (std::int32_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    // Uniform in (0, 1], to a power: the logarithm of the length leans far towards the short end.
    const double u = 0.5 * (1.0 - hashed({seed, number, 1}));
    const double v = 0.5 * (1.0 + hashed({seed, number, 2}));
    const double log_length =
        std::log(static_cast<double>(shortest)) +
        u * u * u * u * u * std::log(static_cast<double>(longest) / static_cast<double>(shortest));
    sample s;
    s.id = i;
    s.length = std::clamp(static_cast<std::int32_t>(std::exp(log_length)), shortest, longest);
    s.prompt = static_cast<std::int32_t>(0.4 * v * static_cast<double>(s.length));
    out.push_back(s);
  }
  return out;
}

}  // namespace megatron_style
