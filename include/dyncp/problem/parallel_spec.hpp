// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// How the job is laid out. A rank is one coordinate of the DPxCP domain and stands for tp GPUs
/// on each of pp stages.
struct parallel_spec {
  std::int32_t ranks = 1;      ///< R = dp * cp
  std::int32_t pp = 1;         ///< pipeline stages
  std::int32_t vpp = 1;        ///< virtual stages a rank (interleaved 1F1B)
  std::int32_t tp = 1;
  std::int32_t static_cp = 1;  ///< CP size of the static packers
  std::int32_t min_cp = 1;
  std::int32_t max_cp = 0;     ///< 0: ranks
  std::vector<std::int32_t> cp_sizes{};  ///< the allowed set; empty: powers of two in [min, max]

  friend bool operator==(const parallel_spec&, const parallel_spec&) = default;
};

[[nodiscard]] constexpr std::int32_t effective_max_cp(const parallel_spec& p) noexcept {
  return p.max_cp == 0 ? p.ranks : p.max_cp;
}

/// The allowed CP sizes, ascending, from a checked `parallel_spec`.
[[nodiscard]] inline std::vector<std::int32_t> allowed_cp_sizes(const parallel_spec& p) {
  std::vector<std::int32_t> sizes;
  if (!p.cp_sizes.empty()) {
    sizes = p.cp_sizes;
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    std::erase_if(sizes, [&](std::int32_t c) {
      return c < p.min_cp || c > effective_max_cp(p);
    });
    return sizes;
  }
  for (std::int64_t c = p.min_cp; c <= effective_max_cp(p); c *= 2) {
    sizes.push_back(static_cast<std::int32_t>(c));
  }
  return sizes;
}

/// Ranks of the DPxCP domain that share a node (its NVLink), at least one.
[[nodiscard]] constexpr std::int32_t ranks_per_node(std::int32_t gpus_per_node,
                                                    const parallel_spec& p) noexcept {
  return std::max(1, gpus_per_node / p.tp);
}

/// Largest domain that is planned; an R of 2^20 is eight million GPUs at tp 8.
inline constexpr std::int32_t max_ranks = 1 << 20;

/// Errors: invalid_argument that names the field, its value and its limit.
[[nodiscard]] inline result<void> check(const parallel_spec& p) {
  const auto at_least_one = [](const char* name, std::int32_t value) -> result<void> {
    if (value >= 1) return {};
    return error{errc::invalid_argument, std::string(name) + " is " + std::to_string(value), value,
                 1, std::string(name) + " must be 1 or more"};
  };
  for (auto [name, value] : {std::pair{"ranks", p.ranks}, {"pp", p.pp}, {"vpp", p.vpp},
                             {"tp", p.tp}, {"static cp", p.static_cp}, {"min-cp", p.min_cp}}) {
    if (auto ok = at_least_one(name, value); !ok) return ok;
  }
  if (p.ranks > max_ranks) {
    return error{errc::invalid_argument, "ranks is " + std::to_string(p.ranks), p.ranks, max_ranks,
                 "at most 2^20 ranks are planned"};
  }
  if (p.pp > 4096 || p.vpp > 4096) {
    return error{errc::invalid_argument, "pp or vpp is over 4096", std::max(p.pp, p.vpp), 4096,
                 "use fewer stages"};
  }
  if (p.max_cp < 0 || effective_max_cp(p) > p.ranks) {
    return error{errc::invalid_argument, "max-cp is " + std::to_string(p.max_cp), p.max_cp,
                 p.ranks, "max-cp must lie in 1 .. ranks (" + std::to_string(p.ranks) + ")"};
  }
  if (p.min_cp > effective_max_cp(p)) {
    return error{errc::invalid_argument,
                 "min-cp " + std::to_string(p.min_cp) + " is over max-cp " +
                     std::to_string(effective_max_cp(p)),
                 p.min_cp, effective_max_cp(p), "lower min-cp or raise max-cp or ranks"};
  }
  if (p.ranks % p.static_cp != 0) {
    return error{errc::invalid_argument,
                 "ranks " + std::to_string(p.ranks) + " is not a multiple of static cp " +
                     std::to_string(p.static_cp),
                 p.ranks, p.static_cp, "choose --cp so that it divides --ranks"};
  }
  if (p.cp_sizes.empty()) {
    for (auto [name, value] : {std::pair{"min-cp", p.min_cp}, {"max-cp", p.max_cp}}) {
      if (value != 0 && value != p.ranks && !is_power_of_two(value)) {
        return error{errc::invalid_argument, std::string(name) + " is " + std::to_string(value),
                     value, 0,
                     "CP sizes are powers of two unless an explicit set is given: use " +
                         std::to_string(next_power_of_two(value) / 2) + " or " +
                         std::to_string(next_power_of_two(value))};
      }
    }
    if (!is_power_of_two(p.min_cp)) {
      return error{errc::invalid_argument, "min-cp is " + std::to_string(p.min_cp), p.min_cp, 0,
                   "CP sizes are powers of two unless an explicit set is given (--cp-sizes)"};
    }
  }
  for (std::int32_t c : p.cp_sizes) {
    if (c < 1 || c > p.ranks) {
      return error{errc::invalid_argument, "allowed CP size " + std::to_string(c), c, p.ranks,
                   "every CP size must lie in 1 .. ranks (" + std::to_string(p.ranks) + ")"};
    }
  }
  if (allowed_cp_sizes(p).empty()) {
    return error{errc::invalid_argument, "no CP size is allowed", 0, 0,
                 "the set, min-cp and max-cp exclude each other"};
  }
  return {};
}

}  // namespace v0
}  // namespace dyncp
