// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/plan/inflight.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// The promises of a plan, each by the name under which its breach is reported.
enum class violation_kind : std::int8_t {
  missing_sample,      ///< a sequence in no pack
  duplicate_sample,    ///< a sequence in more than one place
  unknown_sample,      ///< an index outside the batch
  rank_out_of_range,   ///< a group outside 0 .. R-1, or of size below one
  rank_overlap,        ///< a rank in two groups of one micro-batch
  not_power_of_two,    ///< a group size that is no power of two, without an explicit set
  size_not_allowed,    ///< a group size outside the allowed set
  unaligned,           ///< a power-of-two group that does not start at a multiple of its size
  empty_pack,          ///< a group without sequences
  over_limit,          ///< padded tokens per rank over max_tokens_per_rank
  over_pack_tokens,    ///< padded tokens of a pack over 2^31-1
  over_sequence_cap,   ///< sequences of a pack over max_sequences_per_pack
  over_inflight,       ///< tokens in flight over max_inflight_tokens
  split_atom,          ///< an atomic group in two packs
  wrong_job,           ///< other ranks than the job's, or a limit above the job's
  wrong_micro_batches, ///< M is not the fixed number or not a multiple
  idle_rank,           ///< a rank without a pack, although none may be idle
  mixed_cp,            ///< two group sizes in a micro-batch, although one was asked for
  wrong_padding,       ///< a padding rule outside its domain; what is padded is not looked at
};

[[nodiscard]] constexpr std::string_view to_string(violation_kind kind) noexcept {
  switch (kind) {
    case violation_kind::missing_sample: return "missing_sample";
    case violation_kind::duplicate_sample: return "duplicate_sample";
    case violation_kind::unknown_sample: return "unknown_sample";
    case violation_kind::rank_out_of_range: return "rank_out_of_range";
    case violation_kind::rank_overlap: return "rank_overlap";
    case violation_kind::not_power_of_two: return "not_power_of_two";
    case violation_kind::size_not_allowed: return "size_not_allowed";
    case violation_kind::unaligned: return "unaligned";
    case violation_kind::empty_pack: return "empty_pack";
    case violation_kind::over_limit: return "over_limit";
    case violation_kind::over_pack_tokens: return "over_pack_tokens";
    case violation_kind::over_sequence_cap: return "over_sequence_cap";
    case violation_kind::over_inflight: return "over_inflight";
    case violation_kind::split_atom: return "split_atom";
    case violation_kind::wrong_job: return "wrong_job";
    case violation_kind::wrong_micro_batches: return "wrong_micro_batches";
    case violation_kind::idle_rank: return "idle_rank";
    case violation_kind::mixed_cp: return "mixed_cp";
    case violation_kind::wrong_padding: return "wrong_padding";
  }
  return "unknown";
}

/// One breach: where it is, the value, the limit that it breaks, and a sentence for people.
struct violation {
  violation_kind kind = violation_kind::missing_sample;
  std::int32_t micro_batch = -1;  ///< -1 where it does not apply
  std::int32_t group = -1;        ///< position in the micro-batch
  std::int64_t sequence = -1;     ///< index into the batch
  std::int64_t value = 0;
  std::int64_t limit = 0;
  std::string message;
};

namespace detail {

/// Collects violations group by group; one object checks one plan.
class plan_checker {
 public:
  plan_checker(const plan& p, const problem& prob)
      : plan_(p), problem_(prob), sizes_(allowed_cp_sizes(prob.parallel)) {
    place_.assign(prob.sequences.size(), -1);
    owner_.assign(static_cast<std::size_t>(std::max(0, p.num_ranks)), -1);
  }

  [[nodiscard]] std::vector<violation> run() {
    check_counts();
    if (auto ok = check(plan_.padding); !ok) {
      const error& e = ok.error();
      add({violation_kind::wrong_padding, -1, -1, -1, e.value, e.limit, "the " + e.message()});
      return std::move(found_);
    }
    for (std::size_t j = 0; j < plan_.micro_batches.size(); ++j) {
      check_micro_batch(static_cast<std::int32_t>(j));
    }
    for (std::size_t i = 0; i < place_.size(); ++i) {
      if (place_[i] >= 0) continue;
      add({violation_kind::missing_sample, -1, -1, static_cast<std::int64_t>(i), 0, 1,
           "sequence " + std::to_string(i) + " (length " +
               std::to_string(problem_.sequences[i].length) + ") is in no pack"});
    }
    check_atoms();
    if (found_.empty() && problem_.limits.max_inflight_tokens > 0) check_inflight();
    return std::move(found_);
  }

 private:
  void add(violation v) { found_.push_back(std::move(v)); }

  static std::string where(std::int32_t j, std::int32_t g) {
    return "micro-batch " + std::to_string(j) + " group " + std::to_string(g);
  }

  void check_counts() {
    if (plan_.num_ranks != problem_.parallel.ranks) {
      add({violation_kind::wrong_job, -1, -1, -1, plan_.num_ranks, problem_.parallel.ranks,
           "the plan is for " + std::to_string(plan_.num_ranks) + " ranks, the job has " +
               std::to_string(problem_.parallel.ranks)});
    }
    if (plan_.max_tokens_per_rank > problem_.limits.max_tokens_per_rank) {
      add({violation_kind::wrong_job, -1, -1, -1, plan_.max_tokens_per_rank,
           problem_.limits.max_tokens_per_rank,
           "the plan's limit of " + std::to_string(plan_.max_tokens_per_rank) +
               " tokens a rank is above the job's " +
               std::to_string(problem_.limits.max_tokens_per_rank)});
    }
    const std::int32_t m = plan_.num_micro_batches();
    const plan_limits& limits = problem_.limits;
    if (limits.micro_batches > 0 && m != limits.micro_batches) {
      add({violation_kind::wrong_micro_batches, -1, -1, -1, m, limits.micro_batches,
           "the plan has " + std::to_string(m) + " micro-batches instead of " +
               std::to_string(limits.micro_batches)});
    }
    const std::int32_t multiple = micro_batch_multiple(problem_);
    if (m % multiple != 0) {
      add({violation_kind::wrong_micro_batches, -1, -1, -1, m, multiple,
           std::to_string(m) + " micro-batches are not a multiple of " +
               std::to_string(multiple)});
    }
  }

  void check_micro_batch(std::int32_t j) {
    const micro_batch& mb = plan_.micro_batches[static_cast<std::size_t>(j)];
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < mb.packs.size(); ++i) {
      const auto g = static_cast<std::int32_t>(i);
      const pack& pk = mb.packs[i];
      if (check_range(j, g, pk.ranks)) covered += occupy(j, g, pk.ranks);
      check_sequences(j, g, pk);
      if (problem_.limits.uniform_cp && pk.ranks.size != mb.packs.front().ranks.size) {
        add({violation_kind::mixed_cp, j, g, -1, pk.ranks.size, mb.packs.front().ranks.size,
             where(j, g) + " has another size than the first of its micro-batch"});
      }
    }
    if (problem_.limits.no_idle_ranks && covered < plan_.num_ranks) {
      add({violation_kind::idle_rank, j, -1, -1, covered, plan_.num_ranks,
           "micro-batch " + std::to_string(j) + " leaves " +
               std::to_string(plan_.num_ranks - covered) + " ranks idle"});
    }
  }

  // Marks the ranks of a group; the number of ranks that were free before.
  std::int64_t occupy(std::int32_t j, std::int32_t g, rank_range r) {
    const std::int64_t stamp = (std::int64_t{j} << 32) | static_cast<std::uint32_t>(g);
    std::int64_t fresh = 0;
    std::int32_t shared = -1;
    for (std::int32_t i = r.begin; i < r.end(); ++i) {
      std::int64_t& owner = owner_[static_cast<std::size_t>(i)];
      if (owner >= 0 && owner >> 32 == j) {
        shared = i;  // one shared rank says enough, and keeps the walk linear in R
        break;
      }
      ++fresh;
      owner = stamp;
    }
    if (shared >= 0) {
      add({violation_kind::rank_overlap, j, g, -1, shared, 1,
           where(j, g) + " shares rank " + std::to_string(shared) + " with another group"});
    }
    return fresh;
  }

  // False when the ranks do not exist.
  bool check_range(std::int32_t j, std::int32_t g, rank_range r) {
    if (r.size < 1 || r.begin < 0 || std::int64_t{r.begin} + r.size > plan_.num_ranks) {
      add({violation_kind::rank_out_of_range, j, g, -1, std::int64_t{r.begin} + r.size,
           plan_.num_ranks,
           where(j, g) + " covers ranks " + std::to_string(r.begin) + " .. " +
               std::to_string(std::int64_t{r.begin} + r.size - 1) + " of " +
               std::to_string(plan_.num_ranks)});
      return false;
    }
    const bool listed = std::binary_search(sizes_.begin(), sizes_.end(), r.size);
    if (!is_power_of_two(r.size) && !listed && problem_.parallel.cp_sizes.empty()) {
      add({violation_kind::not_power_of_two, j, g, -1, r.size, 0,
           where(j, g) + " has " + std::to_string(r.size) + " ranks, not a power of two"});
    } else if (!listed) {
      add({violation_kind::size_not_allowed, j, g, -1, r.size, 0,
           where(j, g) + " has " + std::to_string(r.size) + " ranks, a size that is not allowed"});
    } else if (is_power_of_two(r.size) && r.begin % r.size != 0) {
      add({violation_kind::unaligned, j, g, -1, r.begin, r.size,
           where(j, g) + " of size " + std::to_string(r.size) + " starts at rank " +
               std::to_string(r.begin)});
    }
    return true;
  }

  void check_sequences(std::int32_t j, std::int32_t g, const pack& pk) {
    if (pk.sequences.empty()) {
      add({violation_kind::empty_pack, j, g, -1, 0, 1, where(j, g) + " holds no sequence"});
      return;
    }
    const std::int32_t c = std::max(1, pk.ranks.size);
    const std::int64_t align = alignment(plan_.padding, c);
    int128 tokens = 0;
    for (std::int32_t i : pk.sequences) {
      if (i < 0 || static_cast<std::size_t>(i) >= place_.size()) {
        add({violation_kind::unknown_sample, j, g, i, i,
             static_cast<std::int64_t>(place_.size()) - 1,
             where(j, g) + " names sequence " + std::to_string(i) + " of a batch of " +
                 std::to_string(place_.size())});
        continue;
      }
      std::int64_t& place = place_[static_cast<std::size_t>(i)];
      if (place >= 0) {
        add({violation_kind::duplicate_sample, j, g, i, i, 1,
             where(j, g) + " holds sequence " + std::to_string(i) + " a second time"});
      }
      place = (std::int64_t{j} << 32) | static_cast<std::uint32_t>(g);
      tokens += padded_length(problem_.sequences[static_cast<std::size_t>(i)].length, align);
    }
    const std::int32_t cap = problem_.limits.max_sequences_per_pack;
    if (cap > 0 && pk.sequences.size() > static_cast<std::size_t>(cap)) {
      add({violation_kind::over_sequence_cap, j, g, -1,
           static_cast<std::int64_t>(pk.sequences.size()), cap,
           where(j, g) + " packs " + std::to_string(pk.sequences.size()) + " sequences, over " +
               std::to_string(cap)});
    }
    if (tokens > max_pack_tokens) {
      add({violation_kind::over_pack_tokens, j, g, -1, 0, max_pack_tokens,
           where(j, g) + " has more than 2^31-1 padded tokens, which cu_seqlens cannot hold"});
      return;
    }
    const std::int64_t padded =
        padded_pack_tokens(plan_.padding, c, static_cast<std::int64_t>(tokens));
    if (int128{padded} > int128{plan_.max_tokens_per_rank} * c) {
      add({violation_kind::over_limit, j, g, -1, ceil_div(padded, c), plan_.max_tokens_per_rank,
           where(j, g) + " has " + std::to_string(ceil_div(padded, c)) +
               " padded tokens a rank, over the limit of " +
               std::to_string(plan_.max_tokens_per_rank)});
    }
  }

  void check_atoms() {
    std::unordered_map<std::int64_t, std::int64_t> pack_of_atom;
    for (std::size_t i = 0; i < place_.size(); ++i) {
      const std::int64_t atom = problem_.sequences[i].atom;
      if (atom < 0 || place_[i] < 0) continue;
      const auto [it, inserted] = pack_of_atom.emplace(atom, place_[i]);
      if (inserted || it->second == place_[i]) continue;
      add({violation_kind::split_atom, static_cast<std::int32_t>(place_[i] >> 32), -1,
           static_cast<std::int64_t>(i), atom, 0,
           "sequence " + std::to_string(i) + " is apart from the rest of atomic group " +
               std::to_string(atom)});
    }
  }

  void check_inflight() {
    const pipeline pipe{problem_.parallel.pp, problem_.parallel.vpp};
    const std::int64_t peak = peak_inflight_tokens(plan_, problem_.sequences, pipe);
    if (peak <= problem_.limits.max_inflight_tokens) return;
    add({violation_kind::over_inflight, -1, -1, -1, peak, problem_.limits.max_inflight_tokens,
         std::to_string(peak) + " padded tokens a rank are in flight on stage 0, over " +
             std::to_string(problem_.limits.max_inflight_tokens)});
  }

  const plan& plan_;
  const problem& problem_;
  std::vector<std::int32_t> sizes_;
  std::vector<std::int64_t> owner_;  // (ranks): micro-batch and group that took the rank last
  std::vector<std::int64_t> place_;  // (sequences): micro-batch and group, -1: none yet
  std::vector<violation> found_;
};

}  // namespace detail

/// Every breach of a promise, in the order of the plan; empty for a valid plan. Never crashes on
/// a plan from outside, whatever its numbers.
///
/// Requires `check(prob.parallel)`. The token limit and the padding are the plan's own.
/// Complexity: O(sequences + M * R).
[[nodiscard]] inline std::vector<violation> validate(const plan& p, const problem& prob) {
  return detail::plan_checker(p, prob).run();
}

/// `validate` as a result: the first breach as an `invalid_plan` error.
[[nodiscard]] inline result<void> check(const plan& p, const problem& prob) {
  const std::vector<violation> found = validate(p, prob);
  if (found.empty()) return {};
  const violation& first = found.front();
  return error{errc::invalid_plan, std::string(to_string(first.kind)) + ": " + first.message,
               first.value, first.limit,
               std::to_string(found.size()) + " violation(s) in all"};
}

}  // namespace v0
}  // namespace dyncp
