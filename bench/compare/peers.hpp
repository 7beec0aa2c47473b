// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace compare {

/// A row of tests/golden/peers.json, of its field pp8_fix.
struct peer_row {
  std::string trace;
  std::string packer;  ///< by this library's name
  std::int32_t ranks = 0;
  std::int64_t limit = 0;
  std::int32_t micro_batches = 0;
  double iteration_s = 0;
  bool valid = false;
};

/// Errors: io_error, parse_error.
[[nodiscard]] dyncp::result<std::vector<peer_row>> read_peers(const std::string& path);

}  // namespace compare
