// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests of failing steps share: a book of what ranks saw, ranges that throw, and iterators
// driven over world after world until the data is drained.
#include "trainer/batches.hpp"

#include <dyncp/runtime/collectives.hpp>
#include <dyncp/trainer/data_iterator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace dyncp_test {

inline constexpr std::int32_t ranks = 4;

/// An exchange by which every rank has made its pool.
inline constexpr std::int64_t first_step = 6;

/// What the ranks saw: which iteration each sequence was yielded in, by rank, and every error.
struct ledger {
  std::mutex mutex;
  // id -> iteration -> ranks that were yielded it
  std::map<std::int64_t, std::map<std::int64_t, std::vector<std::int32_t>>> yielded;
  std::map<std::int32_t, std::vector<dyncp::error>> errors;

  template <class Step>
  void add(std::int32_t rank, const Step& step) {
    const std::lock_guard lock(mutex);
    for (std::int32_t m = 0; m < step.num_micro_batches(); ++m) {
      const auto mb = step.micro_batch(m);
      if (mb.idle()) continue;
      for (std::size_t i = 0; i < mb.samples.size(); ++i) {
        const std::int64_t id = mb.params->sequence_ids[i];
        // Samples are those that they claim to be, after every detour.
        const bool whole = std::all_of(mb.samples[i].begin(), mb.samples[i].end(),
                                       [&](std::int32_t t) { return t == id; });
        CHECK(whole);
        CHECK(static_cast<std::int32_t>(mb.samples[i].size()) == mb.params->layout.view().length(
                                                                     static_cast<std::int32_t>(i)));
        auto& who = yielded[id][step.iteration()];
        // A rank that went back is yielded a step again.
        if (std::find(who.begin(), who.end(), rank) == who.end()) who.push_back(rank);
      }
    }
  }
  void add(std::int32_t rank, const dyncp::error& e) {
    const std::lock_guard lock(mutex);
    errors[rank].push_back(e);
  }

  /// Each id in one iteration, on the ranks of a group.
  void check_all_once(std::int64_t count) {
    CHECK(yielded.size() == static_cast<std::size_t>(count));
    for (const auto& entry : yielded) {
      INFO("id " << entry.first);
      CHECK(entry.second.size() == 1);
    }
  }
  /// Every rank has `n` errors, the k-th with the same code, sentence and numbers.
  void check_errors(std::size_t n, dyncp::errc code) {
    CHECK(errors.size() == (n == 0 ? 0u : static_cast<std::size_t>(ranks)));
    for (const auto& entry : errors) {
      const std::vector<dyncp::error>& list = entry.second;
      INFO("rank " << entry.first);
      REQUIRE(list.size() == n);
      for (std::size_t k = 0; k < n; ++k) {
        CHECK(list[k].code == code);
        if (code != dyncp::errc::parse_error) CHECK(!list[k].hint.empty());
        const dyncp::error& first = errors.begin()->second[k];
        CHECK(list[k].what == first.what);
        CHECK(list[k].value == first.value);
        CHECK(list[k].limit == first.limit);
      }
    }
  }
};

/// Drives an iterator to its end; errors are noted and the call repeated, at most `patience` times.
template <class Iterator, class OnStep>
dyncp::result<void> drain(Iterator& batches, thread_pool& pool, ledger& book,
                          std::int32_t patience, OnStep on_step) {
  for (;;) {
    auto step = batches.next(pool);
    if (step && !*step) return {};
    if (step) {
      book.add(pool.rank(), **step);
      if (auto trained = on_step(); !trained) return trained;
      continue;
    }
    book.add(pool.rank(), step.error());
    if (--patience < 0) return std::move(step).error();
    if (!pool.health()) return std::move(step).error();  // this pool is of no use any more
  }
}

template <class Iterator>
dyncp::result<void> drain(Iterator& batches, thread_pool& pool, ledger& book) {
  return drain(batches, pool, book, 8, [] { return dyncp::result<void>{}; });
}

/// A range of lengths that throws when element `at` is read for the first time.
struct thrower {
  std::int64_t at = 0;
  bool on_increment = false;
  std::shared_ptr<int> left = std::make_shared<int>(1);
};

class throwing_range {
 public:
  throwing_range(std::vector<std::int64_t> lengths, thrower how)
      : lengths_(std::move(lengths)), how_(std::move(how)) {}
  class iterator {
   public:
    using value_type = std::int64_t;
    using difference_type = std::ptrdiff_t;
    iterator() = default;
    iterator(const throwing_range* range, std::size_t at) : range_(range), at_(at) {}
    std::int64_t operator*() const {
      if (!range_->how_.on_increment) range_->trip(at_);
      return range_->lengths_[at_];
    }
    iterator& operator++() {
      if (range_->how_.on_increment) range_->trip(at_ + 1);
      ++at_;
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return at_ == range_->lengths_.size(); }

   private:
    const throwing_range* range_ = nullptr;
    std::size_t at_ = 0;
  };
  iterator begin() const { return {this, 0}; }
  std::default_sentinel_t end() const { return {}; }

 private:
  void trip(std::size_t at) const {
    if (static_cast<std::int64_t>(at) != how_.at || *how_.left == 0) return;
    *how_.left -= 1;
    throw std::runtime_error("the disk is away");
  }
  std::vector<std::int64_t> lengths_;
  thrower how_;
};

/// A list of which one element can never be read.
template <class T>
class throwing {
 public:
  throwing(std::vector<T> all, std::int64_t bad) : all_(std::move(all)), bad_(bad) {}
  class iterator {
   public:
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    iterator() = default;
    explicit iterator(const throwing* range) : range_(range) {}
    const T& operator*() const {
      if (at_ == range_->bad_) throw std::runtime_error("bad sector");
      return range_->all_[static_cast<std::size_t>(at_)];
    }
    iterator& operator++() {
      ++at_;
      return *this;
    }
    void operator++(int) { ++at_; }
    bool operator==(std::default_sentinel_t) const {
      return at_ == static_cast<std::int64_t>(range_->all_.size());
    }

   private:
    const throwing* range_ = nullptr;
    std::int64_t at_ = 0;
  };
  iterator begin() const { return iterator(this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  std::vector<T> all_;
  std::int64_t bad_;
};

inline const std::vector<std::int64_t> lengths = some_lengths(42, 380, 11);

/// As many that need several micro-batches a step, whose order tells who has learned.
inline std::vector<std::int64_t> long_lengths() {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < 42; ++i) out.push_back(90 + i * 37 % 250);
  return out;
}

/// The probed iterator of a rank; what it probes is counted.
inline auto probed(std::int32_t rank, dyncp::data_position start,
                   std::map<std::int64_t, int>& probes, const std::vector<std::int64_t>& truth,
                   std::int32_t ahead = 1, std::int64_t batch = 8) {
  const dyncp::problem job = small_job(ranks);
  return dyncp::make_probed_iterator(
      shard_of(truth, rank, ranks), planner_of(job), job,
      {.global_batch_size = batch, .ahead = ahead, .start = start},
      [&probes](const token_sample& s) {
        probes[s.front()] += 1;
        return probe_sample(s);
      });
}

/// Runs iterators over world after world until all data is drained: the first world has `faults`,
/// the next none. `make(rank, position)` makes the iterator of a rank. With `restart` all ranks
/// begin anew as processes do that read a common checkpoint: at the latest iteration that all of
/// them had reached. With `train` they exchange something after each step, and ask for the step
/// again if that fails.
template <class Make>
void run_worlds(const rank_world& first, Make make, ledger& book, bool restart = false,
                bool train = false) {
  using iterator = decltype(make(0, dyncp::data_position{}));
  std::vector<std::optional<iterator>> iterators(ranks);
  std::vector<std::map<std::int64_t, dyncp::data_position>> saved(ranks, {{0, {}}});
  for (int world = 0; world < 3; ++world) {
    rank_world w = first;
    if (world > 0) w.faults.clear();
    std::int64_t ended_us = 0;
    w.ended_us = &ended_us;
    std::int64_t common = 0;
    if (restart && world > 0) {
      common = 1000;
      for (const auto& positions : saved) common = std::min(common, positions.rbegin()->first);
      iterators = std::vector<std::optional<iterator>>(ranks);
    }
    std::atomic<int> finished = 0;
    const auto results = run_pool(w, [&](thread_pool& pool) -> dyncp::result<void> {
      const auto r = static_cast<std::size_t>(pool.rank());
      if (!iterators[r]) iterators[r].emplace(make(pool.rank(), saved[r][common]));
      auto done = drain(*iterators[r], pool, book, 8, [&] {
        const dyncp::data_position position = iterators[r]->position();
        saved[r][position.iteration] = position;
        if (!train) return dyncp::result<void>{};
        auto everyone = pool.channel(pool.everyone());
        auto trained = dyncp::barrier(everyone);
        if (!trained) {
          CHECK(iterators[r]->again());
          book.add(pool.rank(), trained.error());
        }
        return trained;
      });
      if (done) ++finished;
      return done;
    });
    // One exchange runs into the deadline; who waits for those that gave up is told at once.
    CHECK(ended_us <= w.deadline_us);
    if (finished == ranks) return;
    CHECK(finished == 0);
  }
  FAIL("the ranks did not finish");
}

}  // namespace dyncp_test
