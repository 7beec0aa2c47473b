// SPDX-License-Identifier: Apache-2.0
#pragma once

// The layouts written a second time, by moving tokens about one by one: nothing here is computed
// from a formula, and nothing includes the library.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace dyncp_test {

/// One row of a pack.
struct row {
  std::int32_t sequence = 0;
  std::int32_t position = 0;
  bool valid = false;
  std::int32_t packed = 0;
  bool back = false;  // of the second chunk of a zigzag slot
};

/// What each rank holds, row by row.
using shares = std::vector<std::vector<row>>;  // (cp, local rows)

/// All rows of a pack in order: each sequence, padded until the multiple divides it, then the tail.
inline std::vector<row> pack_rows(const std::vector<std::int64_t>& lengths, std::int64_t multiple,
                                  std::int64_t tail = 0) {
  std::vector<row> rows;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    std::int64_t p = 0;
    while (p < lengths[s] || p % multiple != 0) {
      rows.push_back({static_cast<std::int32_t>(s), static_cast<std::int32_t>(p), p < lengths[s],
                      static_cast<std::int32_t>(rows.size()), false});
      ++p;
    }
  }
  for (std::int64_t i = 0; i < tail; ++i) {
    rows.push_back({static_cast<std::int32_t>(lengths.size()), 0, false,
                    static_cast<std::int32_t>(rows.size()), false});
  }
  return rows;
}

namespace detail {

/// The rows of each sequence, and as the last entry the tail.
inline std::vector<std::vector<row>> by_sequence(const std::vector<row>& rows, std::size_t n) {
  std::vector<std::vector<row>> out(n + 1);
  for (const row& r : rows) out[static_cast<std::size_t>(r.sequence)].push_back(r);
  return out;
}

inline std::vector<std::vector<row>> cut(const std::vector<row>& rows, std::size_t parts) {
  std::vector<std::vector<row>> out(parts);
  const std::size_t each = rows.size() / parts;
  for (std::size_t i = 0; i < rows.size(); ++i) out[i / each].push_back(rows[i]);
  return out;
}

inline void append(std::vector<row>& to, const std::vector<row>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace detail

/// Each sequence in 2 * cp chunks; rank r takes the r-th from the front and the r-th from the end.
inline shares zigzag_shares(const std::vector<row>& rows, std::size_t sequences, std::size_t cp) {
  shares out(cp);
  auto parts = detail::by_sequence(rows, sequences);
  for (std::size_t s = 0; s < sequences; ++s) {
    if (cp == 1) {
      detail::append(out[0], parts[s]);
      continue;
    }
    auto chunks = detail::cut(parts[s], 2 * cp);
    for (std::size_t r = 0; r < cp; ++r) {
      for (row& x : chunks[chunks.size() - 1 - r]) x.back = true;
      detail::append(out[r], chunks[r]);
      detail::append(out[r], chunks[chunks.size() - 1 - r]);
    }
  }
  const auto tail = detail::cut(parts[sequences], cp);
  for (std::size_t r = 0; r < cp; ++r) detail::append(out[r], tail[r]);
  return out;
}

/// Each sequence in cp runs, and the tail.
inline shares contiguous_shares(const std::vector<row>& rows, std::size_t sequences,
                                std::size_t cp) {
  shares out(cp);
  for (const auto& part : detail::by_sequence(rows, sequences)) {
    const auto runs = detail::cut(part, cp);
    for (std::size_t r = 0; r < cp; ++r) detail::append(out[r], runs[r]);
  }
  return out;
}

/// The whole pack in cp runs.
inline shares row_split_shares(const std::vector<row>& rows, std::size_t cp) {
  return detail::cut(rows, cp);
}

inline std::string describe(const std::vector<std::int64_t>& lengths, std::int32_t cp) {
  std::string text = "lengths";
  for (const std::int64_t length : lengths) text += " " + std::to_string(length);
  return text + " on " + std::to_string(cp) + " ranks";
}

}  // namespace dyncp_test
