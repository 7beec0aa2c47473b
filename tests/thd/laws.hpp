// SPDX-License-Identifier: Apache-2.0
#pragma once

// What must hold for every pack and layout, against the layouts of reference.hpp. A law returns
// the first violation as text, so that millions of cases cost one check each.

#include "thd/reference.hpp"

#include <dyncp/core/attention_mask.hpp>
#include <dyncp/thd/convert.hpp>
#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/labels.hpp>
#include <dyncp/thd/owner.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/thd/positions.hpp>
#include <dyncp/thd/response.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/slot.hpp>
#include <dyncp/thd/valid_counts.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dyncp_test {

inline constexpr std::int32_t group_sizes[] = {1, 2, 3, 4, 8, 16};

inline shares reference_shares(const dyncp::pack_view& pack,
                               const std::vector<std::int64_t>& lengths, std::int64_t multiple) {
  const auto cp = static_cast<std::size_t>(pack.cp);
  const auto rows = pack_rows(lengths, multiple, pack.tokens - pack.sequence_rows());
  switch (pack.layout) {
    case dyncp::layout_kind::zigzag: return zigzag_shares(rows, lengths.size(), cp);
    case dyncp::layout_kind::contiguous: return contiguous_shares(rows, lengths.size(), cp);
    case dyncp::layout_kind::row_split: break;
  }
  return row_split_shares(rows, cp);
}

/// Index maps are inverse, every row is owned once, counts and positions are those of the rows.
inline std::string index_law(const dyncp::pack_view& pack, const shares& expected) {
  using std::to_string;
  std::vector<std::int32_t> owned(static_cast<std::size_t>(pack.tokens), 0);
  std::int64_t valid_sum = 0;
  for (std::int32_t rank = 0; rank < pack.cp; ++rank) {
    const auto& rows = expected[static_cast<std::size_t>(rank)];
    const std::string at = "rank " + to_string(rank);
    if (rows.size() != static_cast<std::size_t>(pack.local_rows())) return at + ": local_rows";
    const auto packed = dyncp::packed_rows(pack, rank);
    const auto rope = dyncp::positions(pack, rank);
    const auto cu = dyncp::local_cu_padded(pack, rank);
    if (packed.size() != rows.size() || rope.size() != rows.size()) return at + ": sizes";
    std::vector<dyncp::half_counts> counts(static_cast<std::size_t>(pack.sequences));
    std::vector<std::int32_t> slot_rows(static_cast<std::size_t>(pack.sequences), 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const row& r = rows[i];
      const auto local = static_cast<std::int32_t>(i);
      const auto token = dyncp::token_at(pack, rank, local);
      if (packed[i] != r.packed) return at + ": packed_rows " + to_string(i);
      if (rope[i] != r.position) return at + ": positions " + to_string(i);
      if (dyncp::packed_row(pack, rank, local) != r.packed) return at + ": packed_row";
      if (token != dyncp::token_ref{r.sequence, r.position, r.valid}) return at + ": token_at";
      if (dyncp::sequence_of_row(pack, rank, local) != r.sequence) return at + ": sequence_of_row";
      const dyncp::rank_row here{rank, local};
      if (dyncp::local_row(pack, r.packed) != here) return at + ": local_row is no inverse";
      ++owned[static_cast<std::size_t>(r.packed)];
      if (r.sequence == pack.sequences) continue;
      if (dyncp::locate(pack, r.sequence, r.position) != here) return at + ": locate";
      if (dyncp::owner_of_token(pack, r.sequence, r.position) != here) return at + ": owner";
      if (r.position + 1 < pack.length(r.sequence) &&
          dyncp::owner_of_label(pack, r.sequence, r.position + 1) != here) {
        return at + ": owner_of_label";
      }
      const auto s = static_cast<std::size_t>(r.sequence);
      ++slot_rows[s];
      if (r.valid) ++(r.back ? counts[s].back : counts[s].front);
    }
    if (dyncp::valid_counts(pack, rank) != counts) return at + ": valid_counts";
    std::int32_t sum = 0;
    for (std::int32_t s = 0; s < pack.sequences; ++s) {
      const auto i = static_cast<std::size_t>(s);
      const auto slot = dyncp::slot_of(pack, s, rank);
      if (slot.rows() != slot_rows[i] || slot.valid() != counts[i].total()) return at + ": slot";
      if (slot.back.row != slot.front.row + slot.front.rows) return at + ": gap in a slot";
      if (slot.back.valid > 0 && slot.front.valid != slot.front.rows)
        return at + ": hole in a slot";
      if (slot.rows() > 0 && slot.row() != cu[i]) return at + ": local_cu_padded";
      if (cu[i + 1] - cu[i] != slot_rows[i]) return at + ": local_cu_padded";
      sum += counts[i].total();
    }
    if (dyncp::valid_tokens(pack, rank) != sum) return at + ": valid_tokens";
    valid_sum += sum;
  }
  for (const std::int32_t times : owned) {
    if (times != 1) return "a row is owned " + to_string(times) + " times";
  }
  if (valid_sum != pack.real_tokens()) return "tokens of the ranks do not add up to the pack's";
  return {};
}

/// Over the steps of a ring each visible pair of query and key is met once, and no other.
inline std::string ring_law(const dyncp::pack_view& pack, dyncp::attention_mask mask) {
  const bool causal = mask == dyncp::attention_mask::causal;
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const std::int32_t length = pack.length(s);
    std::vector<std::uint8_t> met(
        static_cast<std::size_t>(length) * static_cast<std::size_t>(length), 0);
    for (std::int32_t rank = 0; rank < pack.cp; ++rank) {
      for (std::int32_t step = 0; step < pack.cp; ++step) {
        const std::int32_t owner = dyncp::ring_owner(rank, step, pack.cp);
        const auto shape = dyncp::ring_step_of(pack.layout, mask, rank, owner);
        const auto segment = dyncp::segment_of(pack, pack, shape, s, rank, owner);
        const bool diagonal = shape.mask == dyncp::attention_mask::causal;
        if (diagonal && segment.q_rows != segment.kv_rows) return "uneven diagonal";
        if (causal && pack.layout != dyncp::layout_kind::row_split && segment.q_rows > 0 &&
            segment.kv_rows == 0) {
          return "a causal step meets no key";
        }
        if (causal && !diagonal && pack.layout == dyncp::layout_kind::zigzag &&
            segment.q_rows > 0) {
          // Padding meets the queries on the diagonal alone.
          const auto keys = dyncp::slot_of(pack, s, owner);
          const bool whole = segment.kv_rows == (owner < rank ? keys.front.rows : keys.rows());
          if (!whole) return "padding in a step off the diagonal";
        }
        std::int64_t pairs = 0;
        for (std::int32_t i = 0; i < segment.q_rows; ++i) {
          const auto q = dyncp::token_at(pack, rank, segment.q_row + i);
          if (!q.valid || q.sequence != s) return "a query that is no token";
          const std::int32_t keys = diagonal ? i + 1 : segment.kv_rows;
          for (std::int32_t j = 0; j < keys; ++j) {
            const auto k = dyncp::token_at(pack, owner, segment.kv_row + j);
            if (!k.valid || k.sequence != s) return "a key that is no token";
            ++met[static_cast<std::size_t>(q.position * length + k.position)];
            ++pairs;
          }
        }
        if (dyncp::attended_pairs(segment, shape.mask) != pairs) return "attended_pairs";
      }
    }
    for (std::int32_t q = 0; q < length; ++q) {
      for (std::int32_t k = 0; k < length; ++k) {
        const int wanted = !causal || k <= q ? 1 : 0;
        if (met[static_cast<std::size_t>(q * length + k)] != wanted) {
          return "query " + std::to_string(q) + " meets key " + std::to_string(k) + " " +
                 std::to_string(met[static_cast<std::size_t>(q * length + k)]) + " times";
        }
      }
    }
  }
  return {};
}

/// Labels cut over the ranks are the next token of the same sequence, wherever it lies; response
/// rows are those whose next token is in the response.
inline std::string label_law(const dyncp::pack_view& pack, const shares& expected) {
  constexpr std::int32_t ignore = -100;
  const auto n = static_cast<std::size_t>(pack.tokens);
  // Token ids that name their place: 1000 * sequence + position.
  std::vector<std::int32_t> tokens(n, 999999);
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    for (std::int32_t p = 0; p < pack.length(s); ++p) {
      tokens[static_cast<std::size_t>(pack.cu_padded[s] + p)] = 1000 * s + p;
    }
  }
  std::vector<std::int32_t> labels(n);
  for (const std::int32_t depth : {1, 2}) {
    dyncp::shift_labels<std::int32_t>(pack, tokens, ignore, labels, depth);
    std::vector<std::int32_t> found(static_cast<std::size_t>(pack.sequences), 0);
    for (std::int32_t rank = 0; rank < pack.cp; ++rank) {
      const auto index = dyncp::packed_rows(pack, rank);
      for (std::size_t i = 0; i < index.size(); ++i) {
        const row& r = expected[static_cast<std::size_t>(rank)][i];
        const bool has_label =
            r.sequence < pack.sequences && r.position + depth < pack.length(r.sequence);
        const std::int32_t wanted = has_label ? 1000 * r.sequence + r.position + depth : ignore;
        if (labels[static_cast<std::size_t>(index[i])] != wanted) return "label";
        if (has_label) ++found[static_cast<std::size_t>(r.sequence)];
      }
    }
    for (std::int32_t s = 0; s < pack.sequences; ++s) {
      if (dyncp::label_count(pack, s, depth) != found[static_cast<std::size_t>(s)]) {
        return "label_count";
      }
    }
  }
  return {};
}

inline std::string response_law(const dyncp::pack_view& pack, const shares& expected) {
  for (std::int32_t s = 0; s < pack.sequences; ++s) {
    const std::int32_t length = pack.length(s);
    for (std::int32_t response = 0; response < (length > 0 ? length : 1); ++response) {
      for (std::int32_t rank = 0; rank < pack.cp; ++rank) {
        const auto got = dyncp::response_of(pack, s, rank, response);
        std::vector<std::int32_t> listed;
        for (const auto& run : {got.front, got.back}) {
          for (std::int32_t i = 0; i < run.rows; ++i) {
            const auto token = dyncp::token_at(pack, rank, run.row + i);
            if (token.sequence != s || token.position != run.position + i) return "response run";
            listed.push_back(run.row + i);
          }
        }
        std::vector<std::int32_t> wanted;
        const auto& rows = expected[static_cast<std::size_t>(rank)];
        for (std::size_t i = 0; i < rows.size(); ++i) {
          const std::int32_t next = rows[i].position + 1;
          if (rows[i].sequence == s && next < length && next >= length - response) {
            wanted.push_back(static_cast<std::int32_t>(i));
          }
        }
        if (listed != wanted) return "response rows on rank " + std::to_string(rank);
      }
    }
    if (length >= 2) {
      const auto last = dyncp::owner_of_last_response_token(pack, s);
      if (dyncp::token_at(pack, last.rank, last.row) != dyncp::token_ref{s, length - 2, true}) {
        return "owner_of_last_response_token";
      }
    }
    if (length >= 1) {
      const auto last = dyncp::owner_of_last_token(pack, s);
      if (dyncp::token_at(pack, last.rank, last.row) != dyncp::token_ref{s, length - 1, true}) {
        return "owner_of_last_token";
      }
    }
  }
  return {};
}

/// A conversion takes each row from where one layout has it to where the other has it, once.
inline std::string conversion_law(const dyncp::pack_view& from, const dyncp::pack_view& to) {
  const auto size = static_cast<std::size_t>(from.tokens);
  std::vector<std::int32_t> left(size, 0);
  std::vector<std::int32_t> arrived(size, 0);
  const auto flat = [&](std::int32_t rank, std::int32_t row) {
    return static_cast<std::size_t>(rank * from.local_rows() + row);
  };
  for (const auto& move : dyncp::conversion(from, to)) {
    if (move.rows < 1) return "an empty move";
    for (std::int32_t i = 0; i < move.rows; ++i) {
      if (dyncp::packed_row(from, move.from_rank, move.from_row + i) !=
          dyncp::packed_row(to, move.to_rank, move.to_row + i)) {
        return "a row arrives as another";
      }
      ++left[flat(move.from_rank, move.from_row + i)];
      ++arrived[flat(move.to_rank, move.to_row + i)];
    }
  }
  for (std::size_t i = 0; i < size; ++i) {
    if (left[i] != 1 || arrived[i] != 1) return "a row moves " + std::to_string(left[i]) + " times";
  }
  return {};
}

}  // namespace dyncp_test
