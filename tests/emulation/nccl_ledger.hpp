// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace dyncp_emulation {

/// Between the emulated NCCL and its tests.
struct nccl_ledger {
  std::uint64_t era = 1;  ///< raised by nccl_reset
  std::set<int> dead;     ///< ranks of the world that nccl_kill named
  std::string misuse;
  std::int64_t live = 0;
};
[[nodiscard]] nccl_ledger& ledger_of_nccl();

}  // namespace dyncp_emulation
