// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/plan/schedule.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace dyncp_test {

/// Pipeline training written down from its rules, as plainly as possible: every worker (a rank on a
/// stage) has its list of operations; again and again, one that can start is started.
///
/// It shares no code with the simulators, neither the orders nor the state.
class brute_scheduler {
 public:
  struct step {
    int micro_batch;
    int chunk;
    bool backward;
  };
  /// (stage, rank, micro-batch, chunk, backward)
  using key = std::tuple<int, int, int, int, bool>;
  struct span {
    std::int64_t start;
    std::int64_t end;
  };

  brute_scheduler(const dyncp::priced_plan& plan, dyncp::pipeline pipe)
      : plan_(plan), p_(pipe.stages), v_(pipe.chunks), m_(plan.num_micro_batches()) {}

  /// Time of the last operation's end. `spans` then holds every operation of every worker.
  std::int64_t run() {
    std::vector<std::vector<step>> lists;
    for (int s = 0; s < p_; ++s) lists.push_back(list_of(s));
    std::map<std::pair<int, int>, std::size_t> next;  // (stage, rank) -> operations begun
    std::int64_t last = 0;
    for (bool progress = true; progress;) {
      progress = false;
      for (int s = 0; s < p_; ++s) {
        for (int r = 0; r < plan_.num_ranks; ++r) {
          if (next[{s, r}] == lists[static_cast<std::size_t>(s)].size()) continue;
          const step op = lists[static_cast<std::size_t>(s)][next[{s, r}]];
          // All members of the group must have come to this operation, with their inputs.
          std::optional<std::int64_t> start = 0;
          const std::vector<int> members = members_of(op.micro_batch, r);
          for (const int i : members) {
            const std::size_t done = next[{s, i}];
            const auto input = done == next[{s, r}] ? arrival(s, i, op) : std::nullopt;
            if (!input || !start) {
              start = std::nullopt;
              break;
            }
            start = std::max({*start, *input, free_[{s, i}]});
          }
          if (!start) continue;
          const std::int64_t end = *start + duration(s, op, r);
          for (const int i : members) {
            spans[{s, i, op.micro_batch, op.chunk, op.backward}] = {*start, end};
            free_[{s, i}] = end;
            ++next[{s, i}];
          }
          last = std::max(last, end);
          progress = true;
        }
      }
    }
    for (int s = 0; s < p_; ++s) {
      for (int r = 0; r < plan_.num_ranks; ++r) {
        if (next[{s, r}] != lists[static_cast<std::size_t>(s)].size()) return -1;  // deadlock
      }
    }
    return last;
  }

  std::map<key, span> spans;

 private:
  // Micro-batches go through the chunks in groups of p: chunk 0 of all p, chunk 1 of all p, ...
  [[nodiscard]] std::vector<step> passes(bool backward) const {
    std::vector<step> out;
    const int group = v_ == 1 ? m_ : p_;
    for (int first = 0; first < m_; first += group) {
      for (int c = 0; c < v_; ++c) {
        for (int j = first; j < first + group; ++j) {
          out.push_back({j, backward ? v_ - 1 - c : c, backward});
        }
      }
    }
    return out;
  }

  [[nodiscard]] std::vector<step> list_of(int s) const {
    const std::vector<step> forwards = passes(false);
    const std::vector<step> backwards = passes(true);
    std::size_t warmup = static_cast<std::size_t>(p_ - s - 1);
    if (v_ > 1) warmup = static_cast<std::size_t>(2 * (p_ - s - 1) + (v_ - 1) * p_);
    if (v_ > 1 && m_ == p_) warmup = forwards.size();
    warmup = std::min(warmup, forwards.size());
    std::vector<step> out(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warmup));
    std::size_t b = 0;
    for (std::size_t f = warmup; f < forwards.size(); ++f) {
      out.push_back(forwards[f]);
      out.push_back(backwards[b++]);
    }
    while (b < backwards.size()) out.push_back(backwards[b++]);
    return out;
  }

  [[nodiscard]] int group_of(int micro_batch, int rank) const {
    const auto j = static_cast<std::size_t>(micro_batch);
    for (int g = plan_.first_group[j]; g < plan_.first_group[j + 1]; ++g) {
      if (plan_.ranks[static_cast<std::size_t>(g)].contains(rank)) return g;
    }
    return -1;
  }
  [[nodiscard]] std::vector<int> members_of(int micro_batch, int rank) const {
    const int g = group_of(micro_batch, rank);
    if (g < 0) return {rank};
    std::vector<int> out;
    const dyncp::rank_range r = plan_.ranks[static_cast<std::size_t>(g)];
    for (int i = r.begin; i < r.end(); ++i) out.push_back(i);
    return out;
  }
  [[nodiscard]] dyncp::op_cost cost(int virtual_stage, int micro_batch, int rank) const {
    const int g = group_of(micro_batch, rank);
    if (g < 0) return {};  // a rank without a pack costs nothing
    const int stage_class = plan_.class_of_stage[static_cast<std::size_t>(virtual_stage)];
    return plan_.costs[static_cast<std::size_t>(stage_class) * plan_.num_groups() +
                       static_cast<std::size_t>(g)];
  }
  [[nodiscard]] std::int64_t duration(int s, step op, int rank) const {
    const dyncp::op_cost c = cost(op.chunk * p_ + s, op.micro_batch, rank);
    return op.backward ? c.backward : c.forward;
  }

  // When the input of an operation has come to the rank; nothing while its maker has not run.
  [[nodiscard]] std::optional<std::int64_t> arrival(int s, int rank, step op) const {
    const int here = op.chunk * p_ + s;
    const int from = op.backward ? here + 1 : here - 1;
    if (from < 0) return 0;
    if (from == p_ * v_) return end_of(s, rank, {op.micro_batch, op.chunk, false});
    const auto end = end_of(from % p_, rank, {op.micro_batch, from / p_, op.backward});
    if (!end) return std::nullopt;
    return *end + cost(from, op.micro_batch, rank).transfer;
  }
  [[nodiscard]] std::optional<std::int64_t> end_of(int s, int rank, step op) const {
    const auto it = spans.find({s, rank, op.micro_batch, op.chunk, op.backward});
    if (it == spans.end()) return std::nullopt;
    return it->second.end;
  }

  const dyncp::priced_plan& plan_;
  int p_;
  int v_;
  int m_;
  std::map<std::pair<int, int>, std::int64_t> free_;
};

}  // namespace dyncp_test
