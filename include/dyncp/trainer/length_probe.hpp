// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/contain.hpp>
#include <dyncp/core/contain_memory.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/trainer/listed_source.hpp>
#include <dyncp/trainer/range_cursor.hpp>
#include <dyncp/trainer/sample_codec.hpp>
#include <dyncp/trainer/step_vote.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// What probing a sample finds: id, length and, where sequences stay together, their atom; and the
/// shape of what belongs to it besides tokens (image patches, frames), for the trainer.
struct probed_sample {
  sequence what;
  std::vector<std::int64_t> shape = {};  ///< at most `probe_options::shape_words`
};

struct probe_options {
  std::int32_t shape_words = 0;  ///< words of shape that travel with each length, 0 .. 1024
};
inline constexpr std::int64_t max_shape_words = 1024;

/// Samples whose lengths nobody knows before they are read: each rank has a range of its own, its
/// shard, and owns what it reads there. Probing is spread: of a batch of B samples rank r of R
/// reads and probes B/R of its shard, once. One small all-gather of ids, lengths, bytes and shapes
/// lets every rank plan; then whole samples go from their owners to the ranks that the plan names,
/// in one all-to-all, and none is read or probed a second time.
///
/// `Probe`: (const Sample&) -> probed_sample, or sequence. `Length`: the tokens of a sample, with
/// which its receivers check what its owner found. Samples are copyable: the owner keeps its own
/// until the step after the one that they are in.
///
/// The order over all batches is that of one list dealt out to the ranks in turn, so shards of
/// equal size end together; when some end earlier, batches become shorter. Bytes:
/// (6 + B/R * (4 + shape_words)) * 8 per rank for the all-gather, sample bytes once per other rank
/// that works on it.
template <std::ranges::input_range Range, class Probe, class Codec, class Length>
  requires sample_codec<Codec, std::ranges::range_value_t<Range>>
class probed_source {
 public:
  using sample_type = std::ranges::range_value_t<Range>;
  static constexpr bool loads = true;
  static constexpr bool collective = true;

  struct batch {
    std::vector<sequence> sequences;                // of all ranks
    std::vector<std::int32_t> owners;               // (sequences)
    std::vector<std::int64_t> bytes;                // (sequences)
    std::vector<std::vector<std::int64_t>> shapes;  // (sequences)
    std::vector<std::int32_t> slots;                // (sequences): place in `mine` at the owner
    std::vector<sample_type> mine;                  // read from this rank's shard
    std::vector<probed_sample> found;               // (mine)
    std::vector<std::int64_t> sizes;                // (mine), bytes
    std::vector<std::optional<sample_type>> here;   // (sequences), that this rank works on
    std::vector<std::vector<std::byte>> out;        // (ranks), samples packed for them
    std::vector<std::vector<std::byte>> in;         // (ranks), room for theirs
    std::int64_t taken = 0;                         // elements of this rank's shard
    std::int64_t rounds = 0;                        // in which the ranks asked had nothing left
    std::int64_t probe_bytes = 0;
    std::int64_t sent_bytes = 0;
    std::int64_t received_bytes = 0;
    bool last = false;                              // no shard has more
    bool stuck = false;                             // reading or probing failed, on this rank
  };

  probed_source(Range&& range, Probe probe, Codec codec, Length length,
                const probe_options& options)
      : cursor_(std::forward<Range>(range)), probe_(std::move(probe)), codec_(std::move(codec)),
        length_(std::move(length)), options_(options) {}

  [[nodiscard]] std::int64_t shape_words() const noexcept { return options_.shape_words; }

  /// Leaves out the first `count` elements of the shard.
  void skip(std::int64_t count) noexcept { cursor_.skip(count); }

  /// Reads and probes this rank's share of the batch, then gathers what all ranks found.
  /// Collective; every rank returns the same.
  template <host_channel C>
  [[nodiscard]] result<void> fill(C& channel, batch& b, std::int64_t iteration,
                                  std::int64_t want) {
    b.probe_bytes = 0;
    b.rounds = 0;  // ranks that come from different failures ask in the same order
    for (;;) {
      DYNCP_TRY(gather(channel, b, iteration, want));
      // With fewer samples a batch than ranks, those asked may have none left while others do.
      if (!b.sequences.empty() || b.last) return {};
      ++b.rounds;
    }
  }

  /// Gives up the element of this rank's shard that `fill` could not read or probe; its place in
  /// the shard, or nothing if this rank has no such element.
  [[nodiscard]] std::optional<std::int64_t> skip_stuck(batch& b) {
    if (!b.stuck) return std::nullopt;
    b.stuck = false;
    if (b.found.size() < b.mine.size()) {
      b.mine.pop_back();
    } else if (cursor_.pass()) {
      ++b.taken;
    } else {
      return std::nullopt;
    }
    return cursor_.taken() - 1;
  }

  /// Packs what other ranks work on, and makes room for what comes from them: before the plan is
  /// agreed on, since a rank that fails here must not be waited for in the exchange. Errors:
  /// out_of_memory; those of the codec; callback_failed.
  [[nodiscard]] result<void> load(batch& b, const plan_layout& layout, std::int32_t rank,
                                  length_correction&) {
    return contain_memory("the samples of rank " + std::to_string(rank),
                          [&] { return pack(b, layout, rank); });
  }

  /// Whole samples from their owners to the ranks that work on them. Requires `load`. Collective.
  /// On a sample whose length is not the one probed, `found` says what all ranks have to plan
  /// with; errors of unpacking are this rank's own.
  template <host_channel C>
  [[nodiscard]] result<void> deliver(C& channel, batch& b, const plan_layout& layout,
                                     std::int64_t iteration, length_correction& found) {
    if (channel.size() > 1) {
      const std::vector<std::span<const std::byte>> sends(b.out.begin(), b.out.end());
      const std::vector<std::span<std::byte>> receives(b.in.begin(), b.in.end());
      if (auto done = all_to_all(channel, sends, receives); !done) {
        return step_aborted(iteration, done.error());
      }
      b.out.clear();
      const auto unpacked = unpack(b, layout, channel.rank());
      b.in.clear();
      if (!unpacked) return unpacked;
    }
    return check_lengths(b, layout, channel.rank(), found);
  }

  [[nodiscard]] std::vector<sample_type> samples(batch& b, const plan_layout& layout,
                                                 std::int32_t rank) const {
    std::vector<sample_type> out;
    for (std::int32_t m = 0; m < layout.num_micro_batches(); ++m) {
      const placed_pack* const p = layout.pack_at(rank, m);
      if (p == nullptr) continue;
      for (const std::int32_t s : p->sequences) {
        out.push_back(std::move(*b.here[static_cast<std::size_t>(s)]));
      }
    }
    b.here.clear();
    return out;
  }

  /// The shapes of the sequences that `rank` works on, by micro-batch and in THD order.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> shapes(const batch& b,
                                                              const plan_layout& layout,
                                                              std::int32_t rank) const {
    std::vector<std::vector<std::int64_t>> out;
    for (std::int32_t m = 0; m < layout.num_micro_batches(); ++m) {
      const placed_pack* const p = layout.pack_at(rank, m);
      if (p == nullptr) continue;
      for (const std::int32_t s : p->sequences) {
        out.push_back(b.shapes[static_cast<std::size_t>(s)]);
      }
    }
    return out;
  }

  static void remove(batch& b, const std::vector<bool>& gone) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < b.sequences.size(); ++i) {
      if (gone[i]) continue;
      if (kept != i) {
        b.sequences[kept] = b.sequences[i];
        b.owners[kept] = b.owners[i];
        b.bytes[kept] = b.bytes[i];
        b.shapes[kept] = std::move(b.shapes[i]);
        b.slots[kept] = b.slots[i];
      }
      ++kept;
    }
    b.sequences.resize(kept);
    b.owners.resize(kept);
    b.bytes.resize(kept);
    b.shapes.resize(kept);
    b.slots.resize(kept);
  }

 private:
  [[nodiscard]] std::int64_t record_words() const noexcept {
    return 4 + std::int64_t{options_.shape_words};
  }

  [[nodiscard]] result<void> probe_share(batch& b, std::int64_t share, bool& ended) {
    while (static_cast<std::int64_t>(b.mine.size()) < share ||
           b.found.size() < b.mine.size()) {
      if (b.found.size() == b.mine.size()) {
        auto item = cursor_.read("element " + std::to_string(cursor_.place()) + " of the shard");
        if (!item) return std::move(item).error();
        if (!*item) break;
        b.mine.push_back(std::move(**item));
        ++b.taken;
      }
      // A sample that was read and whose probe threw waits here for the next call.
      const sample_type& sample = b.mine.back();
      auto found = contain("the probe of element " + std::to_string(cursor_.taken() - 1) +
                               " of the shard",
                           [&] { return as_probed(probe_(sample)); });
      if (!found) return std::move(found).error();
      auto bytes = contain("the size of sample " + std::to_string(found->what.id), [&] {
        return static_cast<std::int64_t>(codec_.bytes(sample));
      });
      if (!bytes) return std::move(bytes).error();
      if (*bytes < 0 || *bytes > max_sample_bytes ||
          found->shape.size() > static_cast<std::size_t>(options_.shape_words)) {
        return error{errc::invalid_argument, "sample " + std::to_string(found->what.id) + " has " +
                     std::to_string(*bytes) + " bytes and a shape of " +
                     std::to_string(found->shape.size()) + " words",
                     static_cast<std::int64_t>(found->shape.size()), options_.shape_words,
                     "raise probe_options::shape_words; a sample has at most 2^40 bytes"};
      }
      found->shape.resize(static_cast<std::size_t>(options_.shape_words), 0);
      b.found.push_back(std::move(*found));
      b.sizes.push_back(*bytes);
    }
    auto at_end = cursor_.at_end("the shard");
    if (!at_end) return std::move(at_end).error();
    ended = *at_end;
    return {};
  }

  [[nodiscard]] static probed_sample as_probed(probed_sample p) { return p; }
  [[nodiscard]] static probed_sample as_probed(const sequence& s) { return {s, {}}; }

  // The block of a rank: its head, then records.
  enum head_word : std::int64_t {
    head_tag, head_iteration, head_failed, head_records, head_ended, head_first, head_words
  };

  template <host_channel C>
  [[nodiscard]] result<void> gather(C& channel, batch& b, std::int64_t iteration,
                                    std::int64_t want) {
    const std::int64_t ranks = channel.size();
    const std::int64_t first = (iteration + b.rounds) % ranks * (want % ranks) % ranks;
    const std::int64_t place = (channel.rank() - first + ranks) % ranks;
    const std::int64_t share = want / ranks + (place < want % ranks ? 1 : 0);
    bool ended = false;
    const auto probed = probe_share(b, share, ended);
    b.stuck = !probed;
    const std::int64_t words = head_words + ceil_div(want, ranks) * record_words();
    std::vector<std::int64_t> block(static_cast<std::size_t>(words), 0);
    block[head_tag] = lengths_tag;
    block[head_iteration] = iteration;
    block[head_failed] = probed ? 0 : 1;
    block[head_records] = probed ? static_cast<std::int64_t>(b.mine.size()) : 0;
    block[head_ended] = ended ? 1 : 0;
    block[head_first] = first;
    for (std::size_t i = 0; i < b.found.size() && probed; ++i) write_record(b, i, block);
    std::vector<std::int64_t> all(block.size() * static_cast<std::size_t>(ranks));
    b.probe_bytes += (ranks - 1) * words * 8;
    if (auto done = all_gather(channel, std::as_bytes(std::span<const std::int64_t>(block)),
                               std::as_writable_bytes(std::span<std::int64_t>(all)));
        !done) {
      return step_aborted(iteration, done.error());
    }
    const auto head = [&](std::int64_t rank, head_word word) {
      return all[static_cast<std::size_t>(rank * words + word)];
    };
    for (std::int64_t r = 0; r < ranks; ++r) {
      if (head(r, head_tag) == lengths_tag) continue;
      return error{errc::mismatch, "rank " + std::to_string(r) + " sent something else than "
                   "lengths", r, 0,
                   "call `next` equally often on all ranks, of one version of this library"};
    }
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t its = head(r, head_iteration);
      const std::int64_t expected = head(0, head_iteration);
      if (its == expected) continue;
      return error{errc::mismatch, "rank " + std::to_string(r) + " probes for iteration " +
                   std::to_string(its) + ", rank 0 for " + std::to_string(expected), its, expected,
                   "call `next` equally often on all ranks; the next call brings them together"};
    }
    for (std::int64_t r = 0; r < ranks; ++r) {
      if (head(r, head_failed) == 0) continue;
      return first_failure(channel, iteration, static_cast<std::int32_t>(r),
                           probed ? nullptr : &probed.error());
    }
    read_records(b, all, words, ranks);
    return {};
  }

  void write_record(const batch& b, std::size_t i, std::vector<std::int64_t>& block) const {
    auto at = block.begin() + static_cast<std::ptrdiff_t>(
                                  head_words + static_cast<std::int64_t>(i) * record_words());
    const sequence& s = b.found[i].what;
    for (const std::int64_t word : {s.id, s.length, s.atom, b.sizes[i]}) *at++ = word;
    std::copy(b.found[i].shape.begin(), b.found[i].shape.end(), at);
  }

  void read_records(batch& b, const std::vector<std::int64_t>& all, std::int64_t words,
                    std::int64_t ranks) const {
    b.sequences.clear();
    b.owners.clear();
    b.bytes.clear();
    b.shapes.clear();
    b.slots.clear();
    b.last = true;
    std::int64_t most = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      most = std::max(most, all[static_cast<std::size_t>(r * words + head_records)]);
      b.last = b.last && all[static_cast<std::size_t>(r * words + head_ended)] != 0;
    }
    for (std::int64_t j = 0; j < most; ++j) {
      for (std::int64_t x = 0; x < ranks; ++x) {
        const std::int64_t r = (all[head_first] + x) % ranks;
        const std::int64_t block = r * words;
        if (j >= all[static_cast<std::size_t>(block + head_records)]) continue;
        const auto at =
            all.begin() + static_cast<std::ptrdiff_t>(block + head_words + j * record_words());
        b.sequences.push_back({at[0], at[1], at[2]});
        b.bytes.push_back(at[3]);
        b.owners.push_back(static_cast<std::int32_t>(r));
        b.slots.push_back(static_cast<std::int32_t>(j));
        b.shapes.emplace_back(at + 4, at + 4 + options_.shape_words);
      }
    }
  }

  static void keep_own(batch& b, const plan_layout& layout, std::int32_t rank) {
    b.here.clear();
    b.here.resize(b.sequences.size());
    b.sent_bytes = 0;
    b.received_bytes = 0;
    for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (b.owners[i] != rank || !layout.pack_of(s).ranks.contains(rank)) continue;
      b.here[i] = b.mine[static_cast<std::size_t>(b.slots[i])];
    }
  }

  /// `here` for the own samples, `out`, and `in` by size.
  [[nodiscard]] result<void> pack(batch& b, const plan_layout& layout, std::int32_t rank) const {
    const auto ranks = static_cast<std::size_t>(layout.num_ranks());
    keep_own(b, layout, rank);
    b.out.assign(ranks, {});
    b.in.assign(ranks, {});
    std::vector<std::int64_t> arriving(ranks, 0);
    for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
      const auto i = static_cast<std::size_t>(s);
      const rank_range workers = layout.pack_of(s).ranks;
      const std::int32_t owner = b.owners[i];
      if (owner != rank) {
        if (workers.contains(rank)) arriving[static_cast<std::size_t>(owner)] += b.bytes[i];
        continue;
      }
      const sample_type& sample = b.mine[static_cast<std::size_t>(b.slots[i])];
      for (std::int32_t to = workers.begin; to < workers.end(); ++to) {
        if (to == rank) continue;
        std::vector<std::byte>& message = b.out[static_cast<std::size_t>(to)];
        const std::size_t begin = message.size();
        message.resize(begin + static_cast<std::size_t>(b.bytes[i]));
        b.sent_bytes += b.bytes[i];
        if (b.bytes[i] == 0) continue;
        DYNCP_TRY(contain_memory("packing sample " + std::to_string(b.sequences[i].id),
                                 [&] { codec_.pack(sample, message.data() + begin); }));
      }
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      b.in[r].resize(static_cast<std::size_t>(arriving[r]));
      b.received_bytes += arriving[r];
    }
    return {};
  }

  /// Unpacks what arrived, in the order in which every owner packed it.
  [[nodiscard]] result<void> unpack(batch& b, const plan_layout& layout, std::int32_t rank) const {
    std::vector<std::size_t> read(b.in.size(), 0);
    for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (b.owners[i] == rank || !layout.pack_of(s).ranks.contains(rank)) continue;
      const auto owner = static_cast<std::size_t>(b.owners[i]);
      const auto bytes = static_cast<std::size_t>(b.bytes[i]);
      const std::span<const std::byte> part(b.in[owner].data() + read[owner], bytes);
      read[owner] += bytes;
      auto sample = contain_memory("unpacking sample " + std::to_string(b.sequences[i].id),
                                   [&]() -> result<sample_type> { return codec_.unpack(part); });
      if (!sample) return std::move(sample).error();
      b.here[i] = std::move(*sample);
    }
    return {};
  }

  [[nodiscard]] result<void> check_lengths(const batch& b, const plan_layout& layout,
                                           std::int32_t rank, length_correction& found) {
    for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (!layout.pack_of(s).ranks.contains(rank)) continue;
      const auto length = contain("the length of sample " + std::to_string(b.sequences[i].id), [&] {
        return static_cast<std::int64_t>(length_(*b.here[i]));
      });
      if (!length) return length.error();
      if (*length != b.sequences[i].length) {
        found = {s, 0, *length};
        return detail::lying_length(b.sequences[i], *length);
      }
    }
    return {};
  }

  range_cursor<Range> cursor_;
  Probe probe_;
  Codec codec_;
  Length length_;
  probe_options options_;
};

}  // namespace v0
}  // namespace dyncp
