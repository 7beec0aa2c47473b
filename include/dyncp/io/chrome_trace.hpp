// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/int_math.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/ticks.hpp>
#include <dyncp/io/json_writer.hpp>
#include <dyncp/io/text.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/sim/event_simulator.hpp>
#include <dyncp/sim/priced_plan.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Most slices of a trace file; the viewers give up near there.
inline constexpr std::int64_t max_trace_slices = 4'000'000;

namespace detail {

/// Microseconds of a time in ticks, rounded to a picosecond: rounding keeps the order of times, so
/// slices that follow each other never overlap.
class picoseconds {
 public:
  explicit picoseconds(ticks t)
      : value_(
            static_cast<std::int64_t>((int128{t} * 1'000'000'000'000 + (int128{1} << 39)) >> 40)) {}
  [[nodiscard]] std::int64_t value() const noexcept { return value_; }
  [[nodiscard]] static std::string as_us(std::int64_t ps) {
    std::string rest = std::to_string(ps % 1'000'000);
    rest.insert(0, 6 - rest.size(), '0');
    return std::to_string(ps / 1'000'000) + '.' + rest;
  }

 private:
  std::int64_t value_;
};

/// Writes the events of one plan, track by track.
class trace_writer {
 public:
  trace_writer(const plan& p, const problem& prob, const priced_plan& priced, const timeline& time)
      : prob_(prob), priced_(priced), time_(time), packs_(packs_in_order(p)), padding_(p.padding) {}

  [[nodiscard]] std::string write() {
    w_.begin_object().member("displayTimeUnit", "ms").begin_array("traceEvents");
    const auto stages = static_cast<std::size_t>(prob_.parallel.pp);
    const auto ranks = static_cast<std::size_t>(priced_.num_ranks);
    std::vector<std::vector<std::size_t>> of_track(stages * ranks);
    for (std::size_t i = 0; i < time_.slices.size(); ++i) {
      const timeline_slice& slice = time_.slices[i];
      const rank_range r = priced_.ranks[static_cast<std::size_t>(slice.group)];
      for (std::int32_t k = r.begin; k < r.end(); ++k) {
        of_track[static_cast<std::size_t>(slice.stage) * ranks + static_cast<std::size_t>(k)]
            .push_back(i);
      }
    }
    for (std::size_t s = 0; s < stages; ++s) {
      name("process_name", s, 0, "stage " + std::to_string(s));
      order("process_sort_index", s, 0);
      for (std::size_t r = 0; r < ranks; ++r) {
        name("thread_name", s, r, "rank " + std::to_string(r));
        order("thread_sort_index", s, r);
        for (const std::size_t i : of_track[s * ranks + r]) slice_event(time_.slices[i], s, r);
        counters(of_track[s * ranks + r], s, r);
      }
    }
    return w_.end().end().take();
  }

 private:
  // The packs that price_plan priced, in its order.
  static std::vector<const pack*> packs_in_order(const plan& p) {
    std::vector<const pack*> all;
    for (const micro_batch& mb : p.micro_batches) {
      const std::size_t first = all.size();
      for (const pack& pk : mb.packs) {
        if (!pk.sequences.empty()) all.push_back(&pk);
      }
      std::stable_sort(all.begin() + static_cast<std::ptrdiff_t>(first), all.end(),
                       [](const pack* a, const pack* b) {
                         return a->ranks.begin < b->ranks.begin;
                       });
    }
    return all;
  }

  json_writer& event(const char* phase, const std::string& name, std::size_t stage,
                     std::size_t rank) {
    return w_.begin_object(json_layout::row)
        .member("ph", phase)
        .member("name", name)
        .member("pid", stage)
        .member("tid", rank);
  }

  void name(const char* what, std::size_t stage, std::size_t rank, const std::string& text) {
    event("M", what, stage, rank).begin_object("args").member("name", text).end().end();
  }

  void order(const char* what, std::size_t stage, std::size_t rank) {
    const std::size_t place = what[0] == 'p' ? stage : rank;
    event("M", what, stage, rank).begin_object("args").member("sort_index", place).end().end();
  }

  void slice_event(const timeline_slice& slice, std::size_t stage, std::size_t rank) {
    const pack& pk = *packs_[static_cast<std::size_t>(slice.group)];
    const std::int64_t start = picoseconds(slice.start).value();
    const std::int64_t end = picoseconds(slice.end).value();
    event("X", (slice.backward ? "B" : "F") + std::to_string(slice.micro_batch), stage, rank)
        .member("cat", slice.backward ? "backward" : "forward");
    w_.key("ts").number(picoseconds::as_us(start)).key("dur").number(
        picoseconds::as_us(end - start));
    w_.begin_object("args").member("micro_batch", slice.micro_batch);
    if (prob_.parallel.vpp > 1) w_.member("chunk", slice.chunk);
    w_.member("cp", pk.ranks.size).member("sequences", pk.sequences.size());
    w_.member("tokens", pack_load(pk, prob_.sequences, padding_).tokens).end().end();
  }

  // A forward holds its pack's tokens from its start, its backward frees them at its end.
  void counters(const std::vector<std::size_t>& slices, std::size_t stage, std::size_t rank) {
    double held = 0;
    for (const std::size_t i : slices) {
      const timeline_slice& slice = time_.slices[i];
      const pack& pk = *packs_[static_cast<std::size_t>(slice.group)];
      const double shard =
          static_cast<double>(pack_load(pk, prob_.sequences, padding_).tokens) /
          (static_cast<double>(pk.ranks.size) * prob_.parallel.vpp);
      held += slice.backward ? -shard : shard;
      const ticks when = slice.backward ? slice.end : slice.start;
      event("C", "tokens in flight, rank " + std::to_string(rank), stage, rank)
          .key("ts")
          .number(picoseconds::as_us(picoseconds(when).value()));
      w_.begin_object("args").member("tokens", std::max(0.0, std::floor(held + 0.5))).end().end();
    }
  }

  const problem& prob_;
  const priced_plan& priced_;
  const timeline& time_;
  std::vector<const pack*> packs_;  // (groups)
  padding_rule padding_;
  json_writer w_;
};

}  // namespace detail

/// A simulated plan as a Chrome trace, for ui.perfetto.dev or chrome://tracing.
///
/// A process is a stage, a thread a rank of it; a slice "F12" or "B12" is the forward or backward
/// of micro-batch 12 with the size, sequences and tokens of its pack, and a counter for each rank
/// shows the padded tokens in flight. Slices of a track follow each other, times are microseconds
/// to a picosecond. `priced` and `time` are those of `p`. Size and time: O(pp * vpp * M * ranks).
/// Errors: overflow for more than 4 million slices. Safe to call concurrently.
[[nodiscard]] inline result<std::string> chrome_trace(const plan& p, const problem& prob,
                                                      const priced_plan& priced,
                                                      const timeline& time) {
  std::int64_t slices = 0;
  for (const timeline_slice& slice : time.slices) {
    slices += priced.ranks[static_cast<std::size_t>(slice.group)].size;
  }
  if (slices > max_trace_slices) {
    return error{errc::overflow, "the trace has " + std::to_string(slices) + " slices", slices,
                 max_trace_slices, "trace a smaller batch, fewer ranks or fewer stages"};
  }
  return detail::trace_writer(p, prob, priced, time).write();
}

}  // namespace v0
}  // namespace dyncp
