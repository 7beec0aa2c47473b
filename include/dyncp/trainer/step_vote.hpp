// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/trainer/share_step.hpp>
#include <dyncp/trainer/step_message.hpp>
#include <dyncp/trainer/step_terms.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// A length that a sample turned out not to have: what a rank found, for all ranks to plan with.
struct length_correction {
  std::int32_t sequence = -1;  ///< index into the batch; -1: none
  std::int32_t reserved = 0;   ///< bytes that travel have no holes
  std::int64_t length = 0;     ///< tokens that the sample has

  friend bool operator==(const length_correction&, const length_correction&) = default;
};

/// First words of what ranks exchange, so that none takes the one for the other.
inline constexpr std::int64_t vote_tag = 0x766f'7465;
inline constexpr std::int64_t lengths_tag = 0x6c65'6e73;

/// What one rank says before a step: how far it is, what it is about to do, or that it cannot.
struct step_vote {
  std::int64_t tag = vote_tag;
  std::int64_t iteration = 0;
  std::uint64_t digest = 0;
  std::int64_t failed = 0;      ///< 1: see the error that this member sends next
  std::int64_t meets = 0;       ///< 1: it has no digest yet, it asks where the others are
  std::int64_t ended = 0;       ///< 1: it finds no more data, and has no digest
  std::int64_t fresh = 0;       ///< 1: it plans without what earlier plans have taught the others
  std::int64_t lowest = 0;      ///< the iteration that it can go back to
  std::int64_t unread = 0;      ///< the first iteration whose lengths it lacks
  step_terms terms = {};
  length_correction correction = {};
};
static_assert(std::has_unique_object_representations_v<step_vote>);

/// The error of every rank for an exchange that could not be finished: a rank died, was late, or
/// left. The same on all but for the hint, which says how it looked from this rank: its fabric's
/// words, and its iteration, since who heard the others in time is one ahead.
[[nodiscard]] inline error step_aborted(std::int64_t iteration, const error& why) {
  return error{errc::aborted, "the step was given up: a rank died, was late, or left", 0, 0,
               "open a new pool on all ranks and call `next` again: no sample is lost; here, at "
               "iteration " + std::to_string(iteration) + ": " + why.what + " (" +
               std::string(to_string(why.code)) + ")"};
}

/// Tells all members the error of the first one that failed; each returns that. Collective.
template <host_channel C>
[[nodiscard]] error share_failure(C& channel, std::int64_t iteration, std::int32_t first,
                                  const error* mine) {
  std::vector<std::int64_t> words;
  if (channel.rank() == first && mine != nullptr) words = encode_failure(iteration, *mine);
  auto all = broadcast_words(channel, std::move(words), first);
  if (!all) return step_aborted(iteration, all.error());
  auto carried = decode(*all);
  if (carried) return make_error(errc::mismatch, "a member failed without an error");
  return std::move(carried).error();
}

/// `share_failure` with the number of the failing member in front. Collective.
template <host_channel C>
[[nodiscard]] error first_failure(C& channel, std::int64_t iteration, std::int32_t member,
                                  const error* mine) {
  error why = share_failure(channel, iteration, member, mine);
  if (why.code != errc::aborted) why.what = "rank " + std::to_string(member) + ": " + why.what;
  return why;
}

/// All members' votes, (size()). Collective; one small all-gather. Errors: aborted; mismatch for a
/// member that sent something else.
template <host_channel C>
[[nodiscard]] result<std::vector<step_vote>> gather_votes(C& channel, const step_vote& mine) {
  auto all = all_gather_value(channel, mine);
  if (!all) return step_aborted(mine.iteration, all.error());
  for (std::size_t m = 0; m < all->size(); ++m) {
    if ((*all)[m].tag == vote_tag) continue;
    return error{errc::mismatch, "rank " + std::to_string(m) + " sent something else than a vote",
                 static_cast<std::int64_t>(m), 0,
                 "call `next` equally often on all ranks, of one version of this library"};
  }
  return all;
}

/// Where members meet that failed at different places: `iteration`, the earliest that one of them
/// still needs, and `unread`, the earliest whose lengths one of them lacks. The same on every
/// member. Requires one vote or more. Errors: mismatch for options that differ, and for a member
/// that cannot go back that far.
[[nodiscard]] inline result<step_vote> meeting_place(std::span<const step_vote> votes) {
  step_vote place = votes[0];
  for (std::size_t m = 0; m < votes.size(); ++m) {
    const step_vote& v = votes[m];
    auto differs = differing_terms(static_cast<std::int32_t>(m), v.terms, votes[0].terms);
    if (differs) return std::move(*differs);
    place.iteration = std::min(place.iteration, v.iteration);
    place.lowest = std::max(place.lowest, v.lowest);
    place.unread = std::min(place.unread, v.unread);
  }
  if (place.lowest > place.iteration) {
    return error{errc::mismatch, "one rank needs iteration " + std::to_string(place.iteration) +
                 ", another one cannot go back before " + std::to_string(place.lowest),
                 place.iteration, place.lowest,
                 "restart all ranks from positions of the same iteration"};
  }
  return place;
}

/// What the votes come to, the same on every member: success if all are about to do the same.
/// `failure` is this member's error, or nullptr. Collective only if a member failed.
///
/// Errors: that of the first member that failed, with its number in front; mismatch if options,
/// iterations or digests differ, or the data has ended for some; aborted if the error of a member
/// could not be heard.
template <host_channel C>
[[nodiscard]] result<void> judge_votes(C& channel, std::span<const step_vote> votes,
                                       const error* failure) {
  for (std::size_t m = 0; m < votes.size(); ++m) {
    if (votes[m].failed == 0) continue;
    return first_failure(channel, votes[m].iteration, static_cast<std::int32_t>(m), failure);
  }
  for (std::size_t m = 1; m < votes.size(); ++m) {
    auto differs =
        differing_terms(static_cast<std::int32_t>(m), votes[m].terms, votes[0].terms);
    if (differs) return std::move(*differs);
    if (votes[m].iteration != votes[0].iteration) {
      return error{errc::mismatch, "rank " + std::to_string(m) + " is at iteration " +
                   std::to_string(votes[m].iteration) + ", rank 0 at " +
                   std::to_string(votes[0].iteration), votes[m].iteration, votes[0].iteration,
                   "call `next` equally often on all ranks; the next call brings them together"};
    }
    if (votes[m].ended != votes[0].ended) {
      const std::size_t over = votes[m].ended != 0 ? m : 0;
      return error{errc::mismatch, "the data ended on rank " + std::to_string(over) +
                   " before iteration " + std::to_string(votes[0].iteration) +
                   ", and goes on on rank " + std::to_string(m - over),
                   static_cast<std::int64_t>(over), static_cast<std::int64_t>(m - over),
                   "give every rank the same range of lengths"};
    }
    if (votes[m].digest != votes[0].digest) {
      return error{errc::mismatch, "the plans of iteration " + std::to_string(votes[0].iteration) +
                   " differ: rank " + std::to_string(m) + " has digest " +
                   std::to_string(votes[m].digest) + ", rank 0 has " +
                   std::to_string(votes[0].digest), static_cast<std::int64_t>(m), 0,
                   "give every rank the same sequences, model, cluster, limits and planner"};
    }
  }
  return {};
}

/// Compares, before the first collective of a step, what all members are about to do: iteration and
/// digest, or the error `failure` of a member that cannot. For trainers with iterators of their
/// own; `data_iterator` does it in `next`. Collective; errors as `judge_votes`, the same on all.
template <host_channel C>
[[nodiscard]] result<void> agree_on_step(C& channel, std::int64_t iteration, std::uint64_t digest,
                                         const error* failure = nullptr) {
  const step_vote mine{.iteration = iteration, .digest = digest,
                       .failed = failure == nullptr ? 0 : 1};
  auto votes = gather_votes(channel, mine);
  if (!votes) return std::move(votes).error();
  return judge_votes(channel, *votes, failure);
}

}  // namespace v0
}  // namespace dyncp
