// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace dyncp_emulation {

/// What NCCL would answer with undefined behaviour: the first misuse in this world, by name; empty
/// if there was none.
[[nodiscard]] const std::string& nccl_misuse();

/// Communicators that nobody has destroyed or aborted.
[[nodiscard]] std::int64_t nccl_live_communicators();

/// Forgets misuse and counts. Called between worlds.
void nccl_reset();

/// From now on communicators of `rank` do nothing any more, as if its process had died.
void nccl_kill(std::int32_t rank);

}  // namespace dyncp_emulation
