// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace dyncp {
inline namespace v0 {

/// Options that all ranks must have alike, besides the data, for their steps to be alike. Some of
/// them change no plan, so that digests of plans would not tell. Words that travel with a vote.
struct step_terms {
  std::int64_t batch_size = 0;
  std::int64_t probing = 0;      ///< 1: lengths are probed
  std::int64_t shape_words = 0;
  std::int64_t ahead = 0;        ///< of probed lengths: each iteration ahead is one more exchange
  std::int64_t layout = 0;
  std::int64_t drop_last = 0;
  std::int64_t drop_unfit = 0;
  std::int64_t warm_start = 0;

  friend bool operator==(const step_terms&, const step_terms&) = default;
};
static_assert(std::has_unique_object_representations_v<step_terms>);

/// What to say if rank `m` has other terms than rank 0: the first option that differs. Errors:
/// mismatch.
[[nodiscard]] inline std::optional<error> differing_terms(std::int32_t m, const step_terms& its,
                                                          const step_terms& first) {
  struct option {
    const char* name;
    std::int64_t step_terms::*value;
  };
  static constexpr std::array<option, 8> options = {{
      {"data_iterator_options::global_batch_size", &step_terms::batch_size},
      {"the kind of iterator (1: it probes lengths)", &step_terms::probing},
      {"probe_options::shape_words", &step_terms::shape_words},
      {"data_iterator_options::ahead", &step_terms::ahead},
      {"data_iterator_options::layout", &step_terms::layout},
      {"data_iterator_options::drop_last", &step_terms::drop_last},
      {"data_iterator_options::drop_unfit", &step_terms::drop_unfit},
      {"data_iterator_options::warm_start", &step_terms::warm_start},
  }};
  static_assert(sizeof(step_terms) == options.size() * sizeof(std::int64_t));
  for (const option& o : options) {
    const std::int64_t value = its.*o.value;
    const std::int64_t expected = first.*o.value;
    if (value == expected) continue;
    return error{errc::mismatch, std::string("options differ: ") + o.name + " is " +
                 std::to_string(value) + " on rank " + std::to_string(m) + " and " +
                 std::to_string(expected) + " on rank 0", value, expected,
                 std::string("give every rank the same ") + o.name};
  }
  return std::nullopt;
}

}  // namespace v0
}  // namespace dyncp
