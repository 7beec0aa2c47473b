// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/problem/sequence.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tool {

enum class command { none, plan, check, presets };

/// The command line as it was written; what it means is found by `make_problem`.
struct options {
  tool::command command = command::none;

  // Which sequences
  std::string lengths;
  std::int64_t min_length = 0;
  std::int64_t max_length = dyncp::max_sequence_length;
  std::int64_t skip = 0;
  std::int64_t batch = -1;
  bool drop_too_long = false;
  bool drop_empty = false;

  // The job. 0: not given
  std::int64_t ranks = 0;
  std::int64_t pp = 0;
  std::int64_t vpp = 0;
  std::int64_t tp = 0;
  std::int64_t cp = 0;
  std::int64_t min_cp = 0;
  std::int64_t max_cp = 0;
  std::int64_t max_tokens_per_rank = 0;
  std::vector<std::string> given;  ///< names of the options above that were given, without dashes
  std::string model;               ///< preset or file; empty: not given
  std::string cluster;
  std::vector<std::string> sets;

  // The plan
  std::string packer = "dynamic_cp";
  std::int64_t micro_batches = 0;
  std::string plan_file;  ///< of `check`
  std::string out;
  std::string presets_name;
  bool json = false;
  bool verbose = false;

  [[nodiscard]] bool is_given(const std::string& name) const {
    for (const std::string& g : given) {
      if (g == name) return true;
    }
    return false;
  }
};

}  // namespace tool
