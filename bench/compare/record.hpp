// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace compare {

/// What was measured of one packer, or one bound, in one cell of the grid. The tables and goals are
/// made of records alone, so a run that stopped goes on from its file.
struct record {
  std::string set;     ///< "recorded", "next", "corpora", "shapes", "article", "full"
  std::string cell;    ///< what the packers were given, unique in the set
  std::string who;     ///< packer, or the name of a bound
  std::string state;   ///< "valid", the first breach ("over_limit"), "refused", "bound", "peer"
  std::int32_t micro_batches = 0;
  double makespan_s = 0;
  double iteration_s = 0;  ///< makespan and all-reduce
  double cpu_ms = 0;       ///< best plan of the repeats
  std::int64_t slots = 0;   ///< of dynamic_cp, and those more than 2 % over their bound
  std::int64_t uneven = 0;
};

/// A line of JSON for each record. Errors: io_error; parse_error that names the line. A last line
/// without its end, as a stopped run leaves it, is passed over.
[[nodiscard]] dyncp::result<std::vector<record>> read_records(const std::string& path);
[[nodiscard]] dyncp::result<void> append_records(const std::string& path,
                                                 const std::vector<record>& records);

}  // namespace compare
