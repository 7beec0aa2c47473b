// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/problem/sequence.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace tool {

enum class command { none, plan, check, compare, presets, generate, describe };

/// The command line as it was written; what it means is found by `input.hpp`.
///
/// Numbers are 64-bit so that one too large for its place can be named as it was written; whether
/// an option was given at all is told by `is_given`.
struct options {
  tool::command command = command::none;
  std::vector<std::string> given;  ///< names of the options that were given, without dashes

  // Which sequences
  std::string lengths;
  std::string format = "auto";
  std::int64_t shuffle = 0;
  std::int64_t atomic = 0;
  std::int64_t min_length = 0;
  std::int64_t max_length = dyncp::max_sequence_length;
  std::int64_t skip = 0;
  std::int64_t batch = -1;
  bool drop_too_long = false;
  bool drop_empty = false;

  // The job
  std::int64_t ranks = 0;
  std::int64_t pp = 0;
  std::int64_t vpp = 0;
  std::int64_t tp = 0;
  std::int64_t cp = 0;
  std::int64_t min_cp = 0;
  std::int64_t max_cp = 0;
  std::vector<std::string> cp_sizes;
  std::string model;
  std::string cluster;
  std::vector<std::string> sets;

  // What a plan must keep to
  std::int64_t max_tokens_per_rank = 0;
  std::int64_t max_inflight_tokens = 0;
  std::string memory_gib;
  std::int64_t max_sequences_per_pack = 0;
  std::int64_t micro_batches = 0;
  std::int64_t micro_batch_multiple = 1;
  bool no_idle_ranks = false;
  bool uniform_cp = false;
  std::string pad = "none";
  std::int64_t pad_multiple = 1;
  std::int64_t shard_multiple = 1;
  bool sequence_parallel = false;

  // The commands
  std::string packer = "dynamic_cp";
  std::int64_t pack_tokens = 0;
  std::int64_t micro_batch_size = 0;
  std::string batches;    ///< of `plan`: "all" or a count
  bool curve = false;
  std::string plan_file;  ///< of `check`
  std::vector<std::string> packers;  ///< of `compare`
  std::string preset;     ///< of `presets`
  std::string corpus;     ///< of `generate` and `describe`
  std::int64_t count = 0;
  std::int64_t seed = 1;

  // Where it goes
  std::string out;
  std::string trace;
  std::string svg;
  std::string html;
  bool json = false;
  bool verbose = false;

  [[nodiscard]] bool is_given(const std::string& name) const {
    return std::find(given.begin(), given.end(), name) != given.end();
  }
};

}  // namespace tool
