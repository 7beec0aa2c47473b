// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/plan/validate.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace dyncp_test {

/// Whether any plan with at most `most` micro-batches keeps every promise, by trying them all:
/// each atomic group goes into every pack there is and into every group that could be opened.
/// Knows nothing of the packers. For a handful of sequences and ranks only.
class brute_feasible {
 public:
  brute_feasible(const dyncp::problem& p, std::int32_t most) : problem_(p), most_(most) {
    std::map<std::int64_t, std::vector<std::int32_t>> atoms;
    for (std::size_t i = 0; i < p.sequences.size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      if (p.sequences[i].atom < 0) {
        parts_.push_back({index});
      } else {
        atoms[p.sequences[i].atom].push_back(index);
      }
    }
    for (const auto& [atom, members] : atoms) parts_.push_back(members);
  }

  [[nodiscard]] bool exists() {
    for (std::int32_t m = 1; m <= most_; ++m) {
      if (m % dyncp::micro_batch_multiple(problem_) != 0) continue;
      if (problem_.limits.micro_batches > 0 && m != problem_.limits.micro_batches) continue;
      dyncp::plan p{problem_.parallel.ranks, problem_.limits.max_tokens_per_rank,
                    problem_.padding, std::vector<dyncp::micro_batch>(static_cast<std::size_t>(m))};
      if (place(p, 0)) return true;
    }
    return false;
  }

 private:
  bool place(dyncp::plan& p, std::size_t part) {
    if (part == parts_.size()) return dyncp::validate(p, problem_).empty();
    for (dyncp::micro_batch& mb : p.micro_batches) {
      for (std::size_t g = 0; g < mb.packs.size(); ++g) {
        // Indexed anew each time: the call below may move the packs.
        const std::size_t before = mb.packs[g].sequences.size();
        mb.packs[g].sequences.insert(mb.packs[g].sequences.end(), parts_[part].begin(),
                                     parts_[part].end());
        if (place(p, part + 1)) return true;
        mb.packs[g].sequences.resize(before);
      }
      for (const std::int32_t c : dyncp::allowed_cp_sizes(problem_.parallel)) {
        const std::int32_t step = dyncp::is_power_of_two(c) ? c : 1;
        for (std::int32_t begin = 0; begin + c <= p.num_ranks; begin += step) {
          const dyncp::rank_range range{begin, c};
          const bool taken = std::any_of(mb.packs.begin(), mb.packs.end(), [&](const auto& o) {
            return o.ranks.overlaps(range);
          });
          if (taken) continue;
          mb.packs.push_back({range, parts_[part]});
          if (place(p, part + 1)) return true;
          mb.packs.pop_back();
        }
      }
    }
    return false;
  }

  const dyncp::problem& problem_;
  std::int32_t most_;
  std::vector<std::vector<std::int32_t>> parts_;
};

}  // namespace dyncp_test
