// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/thd/cu_seqlens.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/trainer/message_words.hpp>
#include <dyncp/trainer/step_metadata.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

// The metadata of a step as one message of int64 words: for the stages and tensor ranks that hold
// no data. Integers stay integers (Megatron-LM sent cu_seqlens as float32, exact below 2^24 only).
//
// | words      | what                                                                           |
// | ---------- | ------------------------------------------------------------------------------ |
// | 0          | words of the message, this one included                                        |
// | 1          | `step_message_tag`                                                             |
// | 2          | kind: 0 a step, 1 the end of the data, 2 an error                              |
// | 3          | iteration                                                                      |
// | a step:    |                                                                                |
// | 4..6       | digest, rank, ranks                                                            |
// | 7..12      | real sums: tokens (low, high), squares (low, high), count, longest             |
// | 13         | M, the number of micro-batches; then for each one                              |
// |            |   words of its entry, this one included                                        |
// |            |   begin and size of its CP group (size 0: idle, the entry ends here)           |
// |            |   layout, rows with the tail, longest real, longest padded, n sequences        |
// |            |   n ids, n + 1 real and n + 1 padded prefix sums                               |
// | an error:  |                                                                                |
// | 4..6       | code, value, limit                                                             |
// | 7..        | bytes of `what` and of `hint`, then each in words of 8 bytes, the last filled   |
// |            | with zeros                                                                     |

inline constexpr std::int64_t step_message_tag = 0x64796E6370730001;  // "dyncps", version 1

namespace detail {

enum class message_kind : std::int64_t { step = 0, end = 1, failure = 2 };

[[nodiscard]] inline std::vector<std::int64_t> message_head(message_kind kind,
                                                            std::int64_t iteration) {
  return {0, step_message_tag, static_cast<std::int64_t>(kind), iteration};
}

[[nodiscard]] inline std::vector<std::int64_t> finished(std::vector<std::int64_t> words) {
  words[0] = static_cast<std::int64_t>(words.size());
  return words;
}

[[nodiscard]] inline result<std::vector<std::int32_t>> read_sums(message_reader& in,
                                                                 const char* what,
                                                                 std::int64_t count) {
  auto words = in.words(what, count);
  if (!words) return std::move(words).error();
  std::vector<std::int32_t> sums;
  sums.reserve(words->size());
  for (const std::int64_t w : *words) {
    if (w < 0 || w > std::numeric_limits<std::int32_t>::max()) {
      return in.fail(what, w, std::numeric_limits<std::int32_t>::max());
    }
    sums.push_back(static_cast<std::int32_t>(w));
  }
  return sums;
}

[[nodiscard]] inline result<micro_batch_metadata> read_micro_batch(message_reader& in,
                                                                   const step_metadata& step) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const std::size_t begin = in.at();
  auto length = in.word("the words of a micro-batch", 3, in.left());
  if (!length) return std::move(length).error();
  auto first = in.word("the first rank of a group", 0, step.num_ranks - 1);
  if (!first) return std::move(first).error();
  auto size = in.word("the size of a group", 0, step.num_ranks - *first);
  if (!size) return std::move(size).error();
  micro_batch_metadata mb;
  mb.ranks = {static_cast<std::int32_t>(*first), static_cast<std::int32_t>(*size)};
  const auto whole = [&]() -> result<void> {
    if (static_cast<std::int64_t>(in.at() - begin) == *length) return {};
    return in.fail("the words of a micro-batch", *length,
                   static_cast<std::int64_t>(in.at() - begin));
  };
  if (mb.idle()) {
    DYNCP_TRY(whole());
    return mb;
  }
  if (!mb.ranks.contains(step.rank)) return in.fail("the rank that its group lacks", step.rank, 0);
  auto layout = in.word("the layout", 0, static_cast<std::int64_t>(layout_kind::row_split));
  if (!layout) return std::move(layout).error();
  auto rows = in.word("the rows of a pack", 0, most);
  if (!rows) return std::move(rows).error();
  auto longest = in.word("the longest length", 0, most);
  if (!longest) return std::move(longest).error();
  auto longest_padded = in.word("the longest padded length", 0, most);
  if (!longest_padded) return std::move(longest_padded).error();
  // Checked against what is left before anything is allocated for it.
  auto sequences = in.word("the number of sequences", 0, in.left() / 3);
  if (!sequences) return std::move(sequences).error();
  auto ids = in.words("the ids", *sequences);
  if (!ids) return std::move(ids).error();
  mb.sequence_ids.assign(ids->begin(), ids->end());
  cu_seqlens cu;
  auto real = read_sums(in, "a real prefix sum", *sequences + 1);
  if (!real) return std::move(real).error();
  auto padded = read_sums(in, "a padded prefix sum", *sequences + 1);
  if (!padded) return std::move(padded).error();
  cu.real = std::move(*real);
  cu.padded = std::move(*padded);
  DYNCP_TRY(whole());
  auto pack = pack_layout::adopt(std::move(cu), static_cast<std::int32_t>(*rows),
                                 static_cast<layout_kind>(*layout), mb.ranks.size);
  if (!pack) {
    error e = std::move(pack).error();
    e.code = errc::parse_error;
    e.what = "step message: " + e.what;
    return e;
  }
  mb.layout = std::move(*pack);
  if (mb.layout.max_length() != *longest) {
    return in.fail("the longest length", *longest, mb.layout.max_length());
  }
  if (mb.layout.max_padded_length() != *longest_padded) {
    return in.fail("the longest padded length", *longest_padded, mb.layout.max_padded_length());
  }
  return mb;
}

[[nodiscard]] inline result<step_metadata> read_step(message_reader& in, std::int64_t iteration) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  step_metadata step;
  step.iteration = iteration;
  auto digest = in.any("the digest");
  if (!digest) return std::move(digest).error();
  step.digest = std::bit_cast<std::uint64_t>(*digest);
  auto rank = in.word("the rank", 0, most);
  if (!rank) return std::move(rank).error();
  auto ranks = in.word("the number of ranks", *rank + 1, most);
  if (!ranks) return std::move(ranks).error();
  step.rank = static_cast<std::int32_t>(*rank);
  step.num_ranks = static_cast<std::int32_t>(*ranks);
  auto sums = in.words("the sums of the batch", 6);
  if (!sums) return std::move(sums).error();
  for (const std::size_t high : {std::size_t{1}, std::size_t{3}}) {
    if ((*sums)[high] < 0) return in.fail("a sum of the batch", (*sums)[high], 0);
  }
  for (const std::size_t plain : {std::size_t{4}, std::size_t{5}}) {
    if ((*sums)[plain] < 0) return in.fail("a count of the batch", (*sums)[plain], 0);
  }
  step.sums = {get_int128((*sums)[0], (*sums)[1]), get_int128((*sums)[2], (*sums)[3]), (*sums)[4],
               (*sums)[5]};
  auto count = in.word("the number of micro-batches", 0, in.left() / 3);
  if (!count) return std::move(count).error();
  step.micro_batches.reserve(static_cast<std::size_t>(*count));
  for (std::int64_t m = 0; m < *count; ++m) {
    auto mb = read_micro_batch(in, step);
    if (!mb) return std::move(mb).error();
    step.micro_batches.push_back(std::move(*mb));
  }
  return step;
}

/// An error inside a message, apart from errors in reading it.
struct carried_failure {
  error why;
};

[[nodiscard]] inline result<carried_failure> read_failure(message_reader& in) {
  auto code = in.word("the code of an error", 0, static_cast<std::int64_t>(errc::backend_failure));
  if (!code) return std::move(code).error();
  auto numbers = in.words("the numbers of an error", 4);
  if (!numbers) return std::move(numbers).error();
  error out{static_cast<errc>(*code), {}, (*numbers)[0], (*numbers)[1], {}};
  for (const std::size_t i : {std::size_t{2}, std::size_t{3}}) {
    const std::int64_t bytes = (*numbers)[i];
    if (bytes < 0 || bytes > 8 * in.left()) return in.fail("the bytes of a text", bytes, 0);
    auto text = in.words("the text of an error", ceil_div(bytes, 8));
    if (!text) return std::move(text).error();
    (i == 2 ? out.what : out.hint) = get_text(*text, static_cast<std::size_t>(bytes));
  }
  return carried_failure{std::move(out)};
}

}  // namespace detail

/// The message of a step.
[[nodiscard]] inline std::vector<std::int64_t> encode(const step_metadata& step) {
  std::vector<std::int64_t> words =
      detail::message_head(detail::message_kind::step, step.iteration);
  words.push_back(std::bit_cast<std::int64_t>(step.digest));
  words.push_back(step.rank);
  words.push_back(step.num_ranks);
  detail::put_int128(words, step.sums.tokens);
  detail::put_int128(words, step.sums.squares);
  words.push_back(step.sums.count);
  words.push_back(step.sums.longest);
  words.push_back(step.num_micro_batches());
  for (const micro_batch_metadata& mb : step.micro_batches) {
    const std::size_t begin = words.size();
    words.push_back(0);
    words.push_back(mb.ranks.begin);
    words.push_back(mb.ranks.size);
    if (!mb.idle()) {
      words.push_back(static_cast<std::int64_t>(mb.layout.layout()));
      words.push_back(mb.layout.tokens());
      words.push_back(mb.layout.max_length());
      words.push_back(mb.layout.max_padded_length());
      words.push_back(mb.layout.sequences());
      words.insert(words.end(), mb.sequence_ids.begin(), mb.sequence_ids.end());
      words.insert(words.end(), mb.layout.cu().real.begin(), mb.layout.cu().real.end());
      words.insert(words.end(), mb.layout.cu().padded.begin(), mb.layout.cu().padded.end());
    }
    words[begin] = static_cast<std::int64_t>(words.size() - begin);
  }
  return detail::finished(std::move(words));
}

/// The message that the data ended before `iteration`.
[[nodiscard]] inline std::vector<std::int64_t> encode_end(std::int64_t iteration) {
  return detail::finished(detail::message_head(detail::message_kind::end, iteration));
}

/// The message that `iteration` failed, and why: so that ranks without data fail alike.
[[nodiscard]] inline std::vector<std::int64_t> encode_failure(std::int64_t iteration,
                                                              const error& why) {
  std::vector<std::int64_t> words =
      detail::message_head(detail::message_kind::failure, iteration);
  words.push_back(static_cast<std::int64_t>(why.code));
  words.push_back(why.value);
  words.push_back(why.limit);
  words.push_back(static_cast<std::int64_t>(why.what.size()));
  words.push_back(static_cast<std::int64_t>(why.hint.size()));
  detail::put_text(words, why.what);
  detail::put_text(words, why.hint);
  return detail::finished(std::move(words));
}

/// A message back into its step, or nothing at the end of the data. Total on any words: whatever
/// they are, the answer is a step that `encode` gives the same words for, or an error.
///
/// Errors: the error that the message carries; parse_error that names the word for anything that
/// `encode` did not write. Complexity: linear; allocates no more than the message is long.
[[nodiscard]] inline result<std::optional<step_metadata>> decode(
    std::span<const std::int64_t> words) {
  using optional_step = std::optional<step_metadata>;
  detail::message_reader in(words);
  const auto all = static_cast<std::int64_t>(words.size());
  auto length = in.word("the number of words", all, all);
  if (!length) return std::move(length).error();
  auto tag = in.word("the tag", step_message_tag, step_message_tag);
  if (!tag) return std::move(tag).error();
  auto kind = in.word("the kind", 0, 2);
  if (!kind) return std::move(kind).error();
  auto iteration = in.word("the iteration", 0, std::numeric_limits<std::int64_t>::max());
  if (!iteration) return std::move(iteration).error();
  optional_step step;
  std::optional<error> failure;
  if (*kind == static_cast<std::int64_t>(detail::message_kind::step)) {
    auto read = detail::read_step(in, *iteration);
    if (!read) return std::move(read).error();
    step = std::move(*read);
  } else if (*kind == static_cast<std::int64_t>(detail::message_kind::failure)) {
    auto carried = detail::read_failure(in);
    if (!carried) return std::move(carried).error();
    failure = std::move(carried->why);
  }
  if (in.left() != 0) return in.fail("the number of words too many", in.left(), 0);
  if (failure) return std::move(*failure);
  return step;
}

}  // namespace v0
}  // namespace dyncp
