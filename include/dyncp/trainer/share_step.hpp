// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/trainer/step_message.hpp>
#include <dyncp/trainer/step_metadata.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Sends the words of member `root` to all members of `channel`: their number, then the words.
/// `words` is read on the root alone; everyone gets them back. Collective.
template <host_channel C>
[[nodiscard]] result<std::vector<std::int64_t>> broadcast_words(C& channel,
                                                                std::vector<std::int64_t> words,
                                                                std::int32_t root) {
  std::int64_t count = static_cast<std::int64_t>(words.size());
  DYNCP_TRY(broadcast(channel, std::as_writable_bytes(std::span<std::int64_t>(&count, 1)), root));
  words.resize(static_cast<std::size_t>(count));
  DYNCP_TRY(broadcast(channel, std::as_writable_bytes(std::span<std::int64_t>(words)), root));
  return words;
}

/// Tells the other stages and tensor ranks of a rank what its data-holding process knows: a step,
/// the end, or the error that all of them return then. `channel` connects the pp * tp processes of
/// one rank of the DPxCP domain; `mine` is read on `root` alone. Collective.
///
/// Every member returns the same. Errors: the root's; parse_error; those of the fabric.
///
///   // tensor rank 0 of the first stage:
///   auto step = batches.next(pool);
///   auto known = dyncp::share_step(model_parallel, dyncp::metadata_of(step), 0);
///   // everyone else:
///   auto known = dyncp::share_step(model_parallel, {}, 0);
template <host_channel C>
[[nodiscard]] result<std::optional<step_metadata>> share_step(
    C& channel, const result<std::optional<step_metadata>>& mine, std::int32_t root) {
  std::vector<std::int64_t> words;
  if (channel.rank() == root) {
    if (!mine) {
      words = encode_failure(0, mine.error());
    } else {
      words = *mine ? encode(**mine) : encode_end(0);
    }
  }
  auto all = broadcast_words(channel, std::move(words), root);
  if (!all) return std::move(all).error();
  return decode(*all);
}

}  // namespace v0
}  // namespace dyncp
