// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "record.hpp"

#include <string>
#include <vector>

namespace compare {

/// Every record as a row of a table.
[[nodiscard]] std::string rows_table(const std::vector<record>& records);

/// A table for each set: dynamic_cp beside the best valid plan of anybody else.
[[nodiscard]] std::string summary(const std::vector<record>& records);

struct goals {
  std::string table;
  bool all_hold = true;
};

/// What was aimed at, what was measured, over how many cells, and whether it holds. A goal without
/// a cell is left out.
[[nodiscard]] goals check_goals(const std::vector<record>& records);

}  // namespace compare
