// SPDX-License-Identifier: Apache-2.0
// What tests ask of the emulated NCCL; there, and empty, without the headers of NCCL, too.
#include "emulation/nccl_ledger.hpp"

#include "emulation/nccl.hpp"

#include <cstdint>
#include <string>

namespace dyncp_emulation {

nccl_ledger& ledger_of_nccl() {
  static nccl_ledger l;
  return l;
}

const std::string& nccl_misuse() { return ledger_of_nccl().misuse; }
std::int64_t nccl_live_communicators() { return ledger_of_nccl().live; }
void nccl_kill(std::int32_t rank) { ledger_of_nccl().dead.insert(rank); }
void nccl_reset() {
  const std::uint64_t era = ledger_of_nccl().era;
  ledger_of_nccl() = {};
  ledger_of_nccl().era = era + 1;
}

}  // namespace dyncp_emulation
