// SPDX-License-Identifier: Apache-2.0
// What ends a step: plans that differ, ranks that die or are late, ranges and loaders that throw,
// lengths that lie. Each ends with the same typed error on all ranks, and the iterators go on with
// every sample once.
#include "trainer/batches.hpp"

#include <dyncp/runtime/collectives.hpp>
#include <dyncp/trainer/data_iterator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp_test;
using dyncp::errc;
using dyncp::sequence;

namespace {

constexpr std::int32_t ranks = 4;

/// An exchange by which every rank has made its pool.
constexpr std::int64_t first_step = 6;

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
  void check_errors(std::size_t n, errc code) {
    CHECK(errors.size() == (n == 0 ? 0u : static_cast<std::size_t>(ranks)));
    for (const auto& entry : errors) {
      const std::vector<dyncp::error>& list = entry.second;
      INFO("rank " << entry.first);
      REQUIRE(list.size() == n);
      for (std::size_t k = 0; k < n; ++k) {
        CHECK(list[k].code == code);
        if (code != errc::parse_error) CHECK(!list[k].hint.empty());
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

const std::vector<std::int64_t> lengths = some_lengths(42, 380, 11);

/// As many that need several micro-batches a step, whose order tells who has learned.
std::vector<std::int64_t> long_lengths() {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < 42; ++i) out.push_back(90 + i * 37 % 250);
  return out;
}

}  // namespace

namespace {

/// The probed iterator of a rank; what it probes is counted.
auto probed(std::int32_t rank, dyncp::data_position start, std::map<std::int64_t, int>& probes,
            const std::vector<std::int64_t>& truth, std::int32_t ahead = 1,
            std::int64_t batch = 8) {
  const dyncp::problem job = small_job(ranks);
  return dyncp::make_probed_iterator(
      shard_of(truth, rank, ranks), planner_of(job), job,
      {.global_batch_size = batch, .ahead = ahead, .start = start},
      [&probes](const token_sample& s) {
        probes[s.front()] += 1;
        return probe_sample(s);
      });
}

}  // namespace

TEST_CASE("an iterator that throws on one rank fails the step on all, and the next call goes on") {
  for (const std::int32_t bad : {0, 3}) {
    for (const bool increment : {false, true}) {
      for (const std::int64_t at : {1, 9, 17, 40}) {
        for (const std::int32_t ahead : {0, 2}) {
          INFO("rank " << bad << " at " << at << (increment ? " ++" : " *") << " ahead " << ahead);
          ledger book;
          const dyncp::problem job = small_job(ranks);
          const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
            const thrower how{pool.rank() == bad ? at : -1, increment};
            auto batches = dyncp::make_data_iterator(
                throwing_range(lengths, how), planner_of(job), job,
                {.global_batch_size = 8, .ahead = ahead}, make_sample);
            return drain(batches, pool, book);
          });
          CHECK(complaints(results) == "");
          book.check_errors(1, errc::callback_failed);
          const dyncp::error& e = book.errors[0][0];
          CHECK(e.what.find("rank " + std::to_string(bad)) == 0);
          CHECK(e.what.find("the disk is away") != std::string::npos);
          book.check_all_once(42);
          for (const auto& [id, when] : book.yielded) CHECK(when.begin()->first == id / 8);
        }
      }
    }
  }
}

TEST_CASE("a loader that throws on one rank fails the step on all; nothing is loaded twice") {
  ledger book;
  const dyncp::problem job = small_job(ranks);
  const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
    std::map<std::int64_t, int> loads;
    int failures = 3;
    auto batches = dyncp::make_data_iterator(
        lengths, planner_of(job), job, {.global_batch_size = 10},
        [&](const sequence& s) -> dyncp::result<token_sample> {
          if (pool.rank() == 2 && failures > 0) {
            --failures;
            if (failures % 2 == 0) throw std::runtime_error("no such shard");
            return dyncp::make_error(errc::io_error, "cannot read");
          }
          loads[s.id] += 1;
          return make_sample(s);
        });
    auto done = drain(batches, pool, book);
    for (const auto& [id, n] : loads) {
      if (n != 1) return failed("sample " + std::to_string(id) + " was loaded more than once");
    }
    return done;
  });
  CHECK(complaints(results) == "");
  REQUIRE(book.errors.size() == ranks);
  for (auto& [rank, list] : book.errors) {
    REQUIRE(list.size() == 3);
    CHECK(list[0].code == errc::callback_failed);
    CHECK(list[1].code == errc::io_error);
    CHECK(list[2].code == errc::callback_failed);
    CHECK(list[0].what == book.errors[0][0].what);
  }
  book.check_all_once(42);
}

TEST_CASE("a length that lies about its sample is told to all, and planned with from then on") {
  for (const std::int64_t delta : {-3, 5}) {
    ledger book;
    const dyncp::problem job = small_job(ranks);
    auto announced = lengths;
    announced[5] = 60;
    announced[20] = 30;
    auto truth = announced;
    truth[5] += delta;
    truth[20] += delta;
    const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
      auto batches = dyncp::make_data_iterator(
          announced, planner_of(job), job, {.global_batch_size = 8, .ahead = 2},
          [&](const sequence& s) {
            return make_sample({s.id, truth[static_cast<std::size_t>(s.id)], -1});
          });
      return drain(batches, pool, book);
    });
    CHECK(complaints(results) == "");
    book.check_errors(2, errc::invalid_length);
    const dyncp::error& e = book.errors[0][0];
    CHECK(e.what.find("sample 5 was announced with 60 tokens and has " +
                      std::to_string(60 + delta)) != std::string::npos);
    CHECK(e.value == 60 + delta);
    CHECK(e.limit == 60);
    book.check_all_once(42);
  }
}

// Ranks disagreed on lengths and hung; here one length is altered on one rank.
TEST_CASE(
    "OpenPipe/ART#840: plans that differ are the same error on all ranks, before an exchange") {
  ledger book;
  const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
    auto mine = lengths;
    if (pool.rank() == 1) mine[3] += 1;
    const dyncp::problem job = small_job(ranks);
    auto batches = dyncp::make_data_iterator(
        mine, planner_of(job), job, {.global_batch_size = 8},
        [](const sequence& s) { return make_sample(s); });
    auto step = batches.next(pool);
    if (step) return failed("a step came of plans that differ");
    book.add(pool.rank(), step.error());
    // The pool is unharmed: with the right list all go on, from the same position.
    auto right = dyncp::make_data_iterator(
        lengths, planner_of(job), job, {.global_batch_size = 8, .start = batches.position()},
        make_sample);
    return drain(right, pool, book);
  });
  CHECK(complaints(results) == "");
  book.check_errors(1, errc::mismatch);
  CHECK(book.errors[0][0].what.find("rank 1 has digest") != std::string::npos);
  book.check_all_once(42);
}

TEST_CASE("limits, models, cost models and options that differ are found alike") {
  for (int what = 0; what < 4; ++what) {
    ledger book;
    const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
      dyncp::problem job = small_job(ranks);
      const bool odd = pool.rank() == 3;
      if (odd && what == 0) job.limits.max_tokens_per_rank = 101;
      if (odd && what == 1) job.model.hidden += 1;
      if (odd && what == 2) job.cluster.fixed_s *= 2;
      const std::int64_t size = odd && what == 3 ? 7 : 8;
      auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                               {.global_batch_size = size}, make_sample);
      auto step = batches.next(pool);
      if (step) return failed("a step came of problems that differ");
      book.add(pool.rank(), step.error());
      return {};
    });
    CHECK(complaints(results) == "");
    book.check_errors(1, errc::mismatch);
  }
}

TEST_CASE("each option that must be alike is compared and named, also one that changes no plan") {
  struct difference {
    const char* name;
    void (*make)(dyncp::data_iterator_options&, dyncp::probe_options&);
    bool listed;  // it must be alike where lengths are known, too
  };
  using options = dyncp::data_iterator_options;
  using probing = dyncp::probe_options;
  const std::vector<difference> differences = {
      {"global_batch_size", [](options& o, probing&) { o.global_batch_size = 7; }, true},
      {"layout", [](options& o, probing&) { o.layout = dyncp::layout_kind::contiguous; }, true},
      {"drop_last", [](options& o, probing&) { o.drop_last = true; }, true},
      {"drop_unfit", [](options& o, probing&) { o.drop_unfit = true; }, true},
      {"warm_start", [](options& o, probing&) { o.warm_start = true; }, true},
      {"ahead", [](options& o, probing&) { o.ahead = 2; }, false},
      {"shape_words", [](options&, probing& p) { p.shape_words = 1; }, false},
      {"kind of iterator", nullptr, true},
  };
  for (const difference& d : differences) {
    for (const std::int32_t odd : {0, 3}) {
      for (const bool probe : {false, true}) {
        if (!probe && !d.listed) continue;
        INFO(d.name << " on rank " << odd << " probe " << probe);
        ledger book;
        const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
          const dyncp::problem job = small_job(ranks);
          options o{.global_batch_size = 8};
          probing shapes;
          const bool differs = pool.rank() == odd;
          if (differs && d.make != nullptr) d.make(o, shapes);
          const auto expect_error = [&](auto batches) -> dyncp::result<void> {
            auto step = batches.next(pool);
            if (step) return failed("a step came of options that differ");
            book.add(pool.rank(), step.error());
            return {};
          };
          if (probe != (differs && d.make == nullptr)) {
            return expect_error(dyncp::make_probed_iterator(
                shard_of(lengths, pool.rank(), ranks), planner_of(job), job, o, probe_sample, {},
                {}, shapes));
          }
          return expect_error(dyncp::make_data_iterator(lengths, planner_of(job), job, o,
                                                        make_sample));
        });
        CHECK(complaints(results) == "");
        book.check_errors(1, errc::mismatch);
        CHECK(book.errors[0][0].what.find(d.name) != std::string::npos);
      }
    }
  }
}

TEST_CASE("data that ends earlier on one rank is told as that") {
  for (const std::int32_t bad : {0, 2}) {
    ledger book;
    const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
      auto mine = lengths;
      if (pool.rank() == bad) mine.resize(40);  // 5 batches of 8; the others have 2 more
      const dyncp::problem job = small_job(ranks);
      auto batches = dyncp::make_data_iterator(mine, planner_of(job), job,
                                               {.global_batch_size = 8}, make_sample);
      for (int k = 0; k < 5; ++k) {
        auto step = batches.next(pool);
        if (!step) return std::move(step).error();
      }
      auto step = batches.next(pool);
      if (step) return failed("a step, or an end, of some");
      book.add(pool.rank(), step.error());
      return {};
    });
    CHECK(complaints(results) == "");
    book.check_errors(1, errc::mismatch);
    CHECK(book.errors[0][0].what == "the data ended on rank " + std::to_string(bad) +
                                        " before iteration 5, and goes on on rank " +
                                        (bad == 0 ? "1" : "0"));
  }
}

TEST_CASE("one rank that cannot plan fails all") {
  ledger book;
  const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
    dyncp::problem job = small_job(ranks);
    if (pool.rank() == 2) job.limits.max_tokens_per_rank = 50;  // 380 tokens fit no group
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                             {.global_batch_size = 42}, make_sample);
    auto step = batches.next(pool);
    if (step) return failed("a step came");
    book.add(pool.rank(), step.error());
    return {};
  });
  CHECK(complaints(results) == "");
  book.check_errors(1, errc::sequence_too_long);
  CHECK(book.errors[0][0].what.find("rank 2: ") == 0);
}

namespace {

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

}  // namespace

TEST_CASE("a rank that dies ends the step on all within the deadline, wherever it dies") {
  const dyncp::problem job = small_job(ranks);
  for (const std::int32_t bad : {0, 2}) {
    for (std::int64_t step = first_step; step < 18; ++step) {
      INFO("rank " << bad << " at exchange " << step);
      ledger book;
      run_worlds({.faults = {{dyncp::cpu::fault_kind::kill, bad, step, 0}}},
                 [&](std::int32_t, dyncp::data_position start) {
                   return dyncp::make_data_iterator(lengths, planner_of(job), job,
                                                    {.global_batch_size = 8, .start = start},
                                                    make_sample);
                 },
                 book);
      book.check_all_once(42);
      book.check_errors(1, errc::aborted);
    }
  }
}

TEST_CASE("after a death all ranks may start again from the positions of a common iteration") {
  const dyncp::problem job = small_job(ranks);
  for (std::int64_t step = first_step; step < 18; ++step) {
    INFO("at exchange " << step);
    for (const bool probe : {false, true}) {
      ledger book;
      const rank_world faulty{.faults = {{dyncp::cpu::fault_kind::kill, 1, step, 0}}};
      std::vector<std::map<std::int64_t, int>> probes(ranks);
      if (probe) {
        run_worlds(faulty, [&](std::int32_t rank, dyncp::data_position start) {
          return probed(rank, start, probes[static_cast<std::size_t>(rank)], lengths);
        }, book, true);
      } else {
        run_worlds(faulty, [&](std::int32_t, dyncp::data_position start) {
          return dyncp::make_data_iterator(lengths, planner_of(job), job,
                                           {.global_batch_size = 8, .start = start}, make_sample);
        }, book, true);
      }
      book.check_all_once(42);
      book.check_errors(1, errc::aborted);
    }
  }
}

TEST_CASE("a rank that is late, or a lost message, ends the step on all; no sample is lost") {
  const dyncp::problem job = small_job(ranks);
  for (const auto kind : {dyncp::cpu::fault_kind::delay, dyncp::cpu::fault_kind::drop,
                          dyncp::cpu::fault_kind::wrong_size}) {
    for (const std::int64_t step : {6, 7, 9, 13}) {  // making the pool takes 0 to 3
      INFO("fault " << static_cast<int>(kind) << " at exchange " << step);
      ledger book;
      run_worlds({.faults = {{kind, 1, step, 5'000'000}}},
                 [&](std::int32_t, dyncp::data_position start) {
                   return dyncp::make_data_iterator(lengths, planner_of(job), job,
                                                    {.global_batch_size = 8, .start = start},
                                                    make_sample);
                 },
                 book);
      book.check_all_once(42);
      book.check_errors(1, errc::aborted);
    }
  }
}

// Plans that learn from each other, steps that are yielded again, lengths that lie: what ranks know
// beyond their data, and may know differently after a fault.
TEST_CASE("whatever ranks had learned or had to do again, faults lose and mix up no sample") {
  const dyncp::problem job = small_job(ranks);
  auto announced = long_lengths();
  announced[13] = 60;
  announced[20] = 30;
  auto truth = announced;
  truth[13] -= 3;
  truth[20] += 5;
  const auto read = [&](const sequence& s) {
    return make_sample({s.id, truth[static_cast<std::size_t>(s.id)], -1});
  };
  int faults = 0;
  for (const auto kind : {dyncp::cpu::fault_kind::kill, dyncp::cpu::fault_kind::delay,
                          dyncp::cpu::fault_kind::drop}) {
    for (const bool probe : {false, true}) {
      for (const bool train : {false, true}) {
        for (const std::int32_t ahead : {0, 2}) {
          for (std::int64_t step = first_step; step < 26; step += probe ? 7 : 4) {
            INFO("fault " << static_cast<int>(kind) << " at exchange " << step << " probe " << probe
                          << " train " << train << " ahead " << ahead);
            ledger book;
            const rank_world faulty{.faults = {{kind, 1, step, 5'000'000}}};
            const dyncp::data_iterator_options options{
                .global_batch_size = 8, .ahead = ahead, .warm_start = true};
            if (probe) {
              run_worlds(faulty, [&](std::int32_t rank, dyncp::data_position) {
                return dyncp::make_probed_iterator(
                    shard_of(truth, rank, ranks), learning_planner{planner_of(job)}, job, options,
                    [&](const token_sample& s) {
                      return sequence{s.front(), announced[static_cast<std::size_t>(s.front())],
                                      -1};
                    });
              }, book, false, train);
            } else {
              run_worlds(faulty, [&](std::int32_t, dyncp::data_position) {
                return dyncp::make_data_iterator(announced, learning_planner{planner_of(job)}, job,
                                                 options, read);
              }, book, false, train);
            }
            book.check_all_once(42);
            // The lies are told, though an error may be lost to the fault, and little else is.
            REQUIRE(book.errors.size() == ranks);
            for (const auto& [rank, list] : book.errors) {
              const auto lies = std::count_if(list.begin(), list.end(), [](const auto& e) {
                return e.code == errc::invalid_length;
              });
              CHECK(lies >= 1);
              CHECK(list.size() <= 6);
              faults += static_cast<std::int64_t>(list.size()) > lies ? 1 : 0;
            }
          }
        }
      }
    }
  }
  CHECK(faults > 3 * 2 * 2 * (5 + 3) * ranks / 2);
}

TEST_CASE("after a length that lied any rank may start again from its position") {
  const dyncp::problem job = small_job(ranks);
  auto truth = lengths;
  truth[13] = 57;
  auto announced = truth;
  announced[13] = 60;
  for (const bool probe : {false, true}) {
    for (const std::int32_t ahead : {0, 2}) {
      for (std::int32_t restarted = 0; restarted < ranks; ++restarted) {
        INFO("rank " << restarted << " probe " << probe << " ahead " << ahead);
        ledger book;
        const dyncp::data_iterator_options options{.global_batch_size = 8, .ahead = ahead};
        // Drains; the rank in question forgets all it knew when it hears of the lie.
        const auto run = [&](thread_pool& pool, auto make) -> dyncp::result<void> {
          std::optional<decltype(make(dyncp::data_position{}))> batches{make({})};
          bool known = false;
          for (int patience = 5; patience > 0;) {
            auto step = batches->next(pool);
            if (step && !*step) return {};
            if (step) {
              book.add(pool.rank(), **step);
              continue;
            }
            --patience;
            book.add(pool.rank(), step.error());
            if (known || pool.rank() != restarted) continue;
            known = true;
            const dyncp::data_position position = batches->position();
            batches.emplace(make(position));
          }
          return failed("no end to the errors");
        };
        const auto results = run_pool({}, [&](thread_pool& pool) {
          if (probe) {
            return run(pool, [&](dyncp::data_position start) {
              auto o = options;
              o.start = start;
              return dyncp::make_probed_iterator(
                  shard_of(truth, pool.rank(), ranks), planner_of(job), job, o,
                  [&](const token_sample& s) {
                    return sequence{s.front(), announced[static_cast<std::size_t>(s.front())], -1};
                  });
            });
          }
          return run(pool, [&](dyncp::data_position start) {
            auto o = options;
            o.start = start;
            return dyncp::make_data_iterator(announced, planner_of(job), job, o,
                                             [&](const sequence& s) {
              return make_sample({s.id, truth[static_cast<std::size_t>(s.id)], -1});
            });
          });
        });
        CHECK(complaints(results) == "");
        book.check_all_once(42);
        REQUIRE(book.errors.size() == ranks);
        for (const auto& [rank, list] : book.errors) {
          CHECK(list.front().code == errc::invalid_length);
          CHECK(list.size() <= 3);
        }
      }
    }
  }
}

TEST_CASE("plans that learn: a rank that starts again makes all begin anew, and nobody an error") {
  const dyncp::problem job = small_job(ranks);
  for (const std::int32_t ahead : {0, 2}) {
    for (std::int32_t restarted = 0; restarted < ranks; ++restarted) {
      INFO("rank " << restarted << " ahead " << ahead);
      ledger book;
      const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
        const auto make = [&](dyncp::data_position start) {
          return dyncp::make_data_iterator(
              long_lengths(), learning_planner{planner_of(job)}, job,
              {.global_batch_size = 8, .ahead = ahead, .warm_start = true, .start = start},
              make_sample);
        };
        std::optional<decltype(make({}))> batches{make({})};
        for (int k = 0; k < 3; ++k) {
          auto step = batches->next(pool);
          if (!step) return std::move(step).error();
          book.add(pool.rank(), **step);
        }
        if (pool.rank() == restarted) {
          const dyncp::data_position position = batches->position();
          batches.emplace(make(position));
        }
        return drain(*batches, pool, book);
      });
      CHECK(complaints(results) == "");
      book.check_errors(0, errc::mismatch);
      book.check_all_once(42);
    }
  }
}

TEST_CASE("a delay within the deadline is no fault") {
  ledger book;
  const dyncp::problem job = small_job(ranks);
  const auto results = run_pool({.faults = {{dyncp::cpu::fault_kind::delay, 1, 5, 900'000}}},
                                [&](thread_pool& pool) -> dyncp::result<void> {
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                             {.global_batch_size = 8}, make_sample);
    return drain(batches, pool, book);
  });
  CHECK(complaints(results) == "");
  book.check_errors(0, errc::aborted);
  book.check_all_once(42);
}

// ---- lengths that are probed

TEST_CASE("probing throws on one rank: all fail alike, no sample is lost or probed twice") {
  for (const std::int32_t ahead : {0, 2}) {
    for (const int at : {0, 1, 5, 9}) {
      ledger book;
      const dyncp::problem job = small_job(ranks);
      const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
        std::map<std::int64_t, int> probes;
        int count = 0;
        bool angry = pool.rank() == 1;
        auto batches = dyncp::make_probed_iterator(
            shard_of(lengths, pool.rank(), ranks), planner_of(job), job,
            {.global_batch_size = 8, .ahead = ahead}, [&](const token_sample& s) {
              if (angry && count == at) {
                angry = false;
                throw std::runtime_error("bad sample");
              }
              ++count;
              probes[s.front()] += 1;
              return probe_sample(s);
            });
        auto done = drain(batches, pool, book);
        for (const auto& [id, n] : probes) {
          if (n != 1) return failed("probed twice");
        }
        return done;
      });
      CHECK(complaints(results) == "");
      book.check_errors(1, errc::callback_failed);
      book.check_all_once(42);
    }
  }
}

TEST_CASE("a shard that throws fails the step on all, and the next call goes on") {
  // A sample of this shard is its length alone.
  struct codec {
    std::int64_t bytes(std::int64_t) const { return 8; }
    void pack(std::int64_t tokens, std::byte* to) const { std::memcpy(to, &tokens, 8); }
    dyncp::result<std::int64_t> unpack(std::span<const std::byte> from) const {
      std::int64_t tokens = 0;
      std::memcpy(&tokens, from.data(), 8);
      return tokens;
    }
  };
  for (const std::int64_t at : {0, 2, 9}) {
    std::mutex mutex;
    std::map<std::int64_t, std::int64_t> seen;
    std::map<std::int32_t, std::vector<dyncp::error>> errors;
    const dyncp::problem job = small_job(ranks);
    const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
      const std::int32_t rank = pool.rank();
      std::vector<std::int64_t> mine;
      for (std::size_t i = static_cast<std::size_t>(rank); i < lengths.size(); i += ranks) {
        mine.push_back(lengths[i]);
      }
      std::int64_t next = rank;
      const thrower how{rank == 2 ? at : -1, false};
      auto batches = dyncp::make_probed_iterator(
          throwing_range(mine, how), planner_of(job), job, {.global_batch_size = 8},
          [&](std::int64_t tokens) {
            const sequence s{next, tokens, -1};
            next += ranks;
            return s;
          },
          codec{}, [](std::int64_t tokens) { return tokens; });
      for (;;) {
        auto step = batches.next(pool);
        const std::lock_guard lock(mutex);
        if (!step) {
          errors[rank].push_back(step.error());
          if (errors[rank].size() > 2) return std::move(step).error();
          continue;
        }
        if (!*step) return {};
        for (std::int32_t m = 0; m < (*step)->num_micro_batches(); ++m) {
          const auto mb = (*step)->micro_batch(m);
          if (mb.idle() || mb.params->cp_rank() != 0) continue;
          for (std::size_t i = 0; i < mb.samples.size(); ++i) {
            const std::int64_t id = mb.params->sequence_ids[i];
            seen[id] += 1;
            if (mb.samples[i] != lengths[static_cast<std::size_t>(id)]) return failed("mixed up");
          }
        }
      }
    });
    CHECK(complaints(results) == "");
    CHECK(seen.size() == 42);
    for (const auto& [id, n] : seen) CHECK(n == 1);
    for (const auto& [rank, list] : errors) {
      REQUIRE(list.size() == 1);
      CHECK(list[0].code == errc::callback_failed);
      CHECK(list[0].what == errors[0][0].what);
    }
    CHECK(errors.size() == ranks);
  }
}

TEST_CASE("a probe that lies is found by who receives the sample; all plan with the truth then") {
  ledger book;
  const dyncp::problem job = small_job(ranks);
  const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
    auto batches = dyncp::make_probed_iterator(
        shard_of(lengths, pool.rank(), ranks), planner_of(job), job,
        {.global_batch_size = 8, .ahead = 2}, [&](const token_sample& s) {
          sequence found = probe_sample(s);
          if (found.id == 6 || found.id == 19) found.length += 2;
          return found;
        });
    return drain(batches, pool, book);
  });
  CHECK(complaints(results) == "");
  book.check_errors(2, errc::invalid_length);
  CHECK(book.errors[0][0].what.find("sample 6 was announced") != std::string::npos);
  CHECK(book.errors[0][1].what.find("sample 19 was announced") != std::string::npos);
  book.check_all_once(42);
}

TEST_CASE("what was discarded stays so when a lost message makes the ranks gather lengths again") {
  const dyncp::problem job = small_job(ranks);
  int hits = 0;
  for (const auto kind : {dyncp::cpu::fault_kind::kill, dyncp::cpu::fault_kind::drop}) {
    for (std::int64_t step = first_step; step < 40; step += 2) {
      INFO("fault " << static_cast<int>(kind) << " at exchange " << step);
      ledger book;
      std::atomic<int> called = 0;
      std::vector<std::optional<decltype(dyncp::make_probed_iterator(
          shard_of(lengths, 0, ranks), planner_of(job), job, dyncp::data_iterator_options{},
          probe_sample))>>
          iterators(ranks);
      for (int world = 0; world < 2; ++world) {
        rank_world w;
        if (world == 0) w.faults = {{kind, 1, step, 0}};
        const auto results = run_pool(w, [&](thread_pool& pool) -> dyncp::result<void> {
          std::optional<decltype(dyncp::make_probed_iterator(
              shard_of(lengths, 0, ranks), planner_of(job), job, dyncp::data_iterator_options{},
              probe_sample))>& batches = iterators[static_cast<std::size_t>(pool.rank())];
          if (world == 0) {
            batches.emplace(dyncp::make_probed_iterator(
                shard_of(lengths, pool.rank(), ranks), planner_of(job), job,
                {.global_batch_size = 8, .ahead = 0}, probe_sample));
            auto first = batches->next(pool);
            if (!first) return std::move(first).error();
            book.add(pool.rank(), **first);
            batches->discard(11);  // of iteration 1
            ++called;
          }
          return drain(*batches, pool, book, 2, [] { return dyncp::result<void>{}; });
        });
        if (called != ranks) break;  // a fault before all had asked for it
        if (world == 1) CHECK(complaints(results) == "");
      }
      if (called != ranks) continue;
      ++hits;
      CHECK(book.yielded.count(11) == 0);
      book.check_all_once(41);
    }
  }
  CHECK(hits > 15);
}

TEST_CASE("an element of a shard that can never be read or probed is given up by its place") {
  const dyncp::problem job = small_job(ranks);
  for (const std::int32_t ahead : {0, 2}) {
    for (const bool reading : {false, true}) {
      for (const std::int64_t at : {0, 1, 4, 10}) {  // rank 1 has 0 .. 10
        INFO("ahead " << ahead << " reading " << reading << " element " << at);
        ledger book;
        std::vector<std::vector<std::int64_t>> skipped(ranks);
        const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
          const std::int32_t rank = pool.rank();
          const bool bad = rank == 1;
          throwing<token_sample> how{shard_of(lengths, rank, ranks), bad && reading ? at : -1};
          auto batches = dyncp::make_probed_iterator(
              std::move(how), planner_of(job), job, {.global_batch_size = 8, .ahead = ahead},
              [&](const token_sample& s) {
                if (bad && !reading && s.front() == 1 + at * ranks) {
                  throw std::runtime_error("no such codec");
                }
                return probe_sample(s);
              });
          if (batches.skip_unreadable()) return failed("nothing has failed yet");
          for (int patience = 3; patience > 0;) {
            auto step = batches.next(pool);
            if (step && !*step) return {};
            if (step) {
              book.add(rank, **step);
              continue;
            }
            --patience;
            book.add(rank, step.error());
            const auto place = batches.skip_unreadable();
            if (place) skipped[static_cast<std::size_t>(rank)].push_back(*place);
            if (batches.skip_unreadable()) return failed("there is one only");
          }
          return failed("it fails for good");
        });
        CHECK(complaints(results) == "");
        book.check_errors(1, errc::callback_failed);
        CHECK(book.errors[0][0].what.find("element " + std::to_string(at) + " of the shard") !=
              std::string::npos);
        const std::vector<std::int64_t> place = {at};
        for (std::size_t r = 0; r < ranks; ++r) {
          CHECK(skipped[r] == (r == 1 ? place : std::vector<std::int64_t>{}));
        }
        CHECK(book.yielded.count(1 + at * ranks) == 0);
        book.check_all_once(41);
      }
    }
  }
}

TEST_CASE("a codec that fails at one end fails the step on all, and the samples are still there") {
  struct fragile {
    std::shared_ptr<std::atomic<int>> pack_failures = std::make_shared<std::atomic<int>>(0);
    std::shared_ptr<std::atomic<int>> unpack_failures = std::make_shared<std::atomic<int>>(0);
    dyncp::plain_codec plain;
    std::int64_t bytes(const token_sample& s) const { return plain.bytes(s); }
    void pack(const token_sample& s, std::byte* to) const {
      if (pack_failures->fetch_sub(1) > 0) throw std::runtime_error("cannot pack");
      plain.pack(s, to);
    }
    dyncp::result<token_sample> unpack(std::span<const std::byte> from) const {
      if (unpack_failures->fetch_sub(1) > 0) {
        return dyncp::make_error(errc::parse_error, "cannot unpack");
      }
      return plain.unpack(from);
    }
  };
  for (const bool packing : {false, true}) {
    ledger book;
    const dyncp::problem job = small_job(ranks);
    const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
      fragile codec;
      if (pool.rank() == 3) (packing ? codec.pack_failures : codec.unpack_failures)->store(1);
      auto batches = dyncp::make_probed_iterator(
          shard_of(lengths, pool.rank(), ranks), planner_of(job), job,
          {.global_batch_size = 12}, probe_sample, codec);
      return drain(batches, pool, book);
    });
    CHECK(complaints(results) == "");
    book.check_errors(1, packing ? errc::callback_failed : errc::parse_error);
    book.check_all_once(42);
  }
}

TEST_CASE("probed: a rank that dies, is late or loses a message; wherever; no sample is lost") {
  for (const auto kind : {dyncp::cpu::fault_kind::kill, dyncp::cpu::fault_kind::delay,
                          dyncp::cpu::fault_kind::drop}) {
    const bool kill = kind == dyncp::cpu::fault_kind::kill;
    int silent = 0;  // exchanges in which rank 2 sends nothing that could be late
    for (std::int64_t step = first_step; step < 44; step += kill ? 1 : 5) {
      INFO("fault " << static_cast<int>(kind) << " at exchange " << step);
      ledger book;
      std::vector<std::map<std::int64_t, int>> probes(ranks);
      run_worlds({.faults = {{kind, 2, step, 5'000'000}}},
                 [&](std::int32_t rank, dyncp::data_position start) {
                   return probed(rank, start, probes[static_cast<std::size_t>(rank)], lengths);
                 },
                 book);
      book.check_all_once(42);
      for (const auto& by_id : probes) {
        for (const auto& [id, n] : by_id) CHECK(n == 1);
      }
      silent += book.errors.empty() ? 1 : 0;
      if (kill || !book.errors.empty()) book.check_errors(1, errc::aborted);
    }
    CHECK(silent <= 2);
  }
}

TEST_CASE("ranks that call next unequally often are told so, and meet again") {
  const dyncp::problem job = small_job(ranks);
  ledger book;
  std::vector<std::optional<decltype(dyncp::make_data_iterator(
      lengths, planner_of(job), job, dyncp::data_iterator_options{}, make_sample))>>
      iterators(ranks);
  for (int world = 0; world < 2; ++world) {
    const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
      const auto r = static_cast<std::size_t>(pool.rank());
      if (world == 1) return drain(*iterators[r], pool, book);
      iterators[r].emplace(dyncp::make_data_iterator(lengths, planner_of(job), job,
                                                     {.global_batch_size = 8}, make_sample));
      auto first = iterators[r]->next(pool);
      // Rank 1 leaves when it has its step; whoever has not heard all votes by then fails.
      if (!first && first.error().code == errc::aborted) return {};
      if (!first) return std::move(first).error();
      book.add(pool.rank(), **first);
      if (pool.rank() == 1) return {};
      auto second = iterators[r]->next(pool);
      if (second) return failed("a step without rank 1");
      return second.error().code == errc::aborted ? dyncp::result<void>{}
                                                  : dyncp::result<void>{second.error()};
    });
    CHECK(complaints(results) == "");
  }
  book.check_all_once(42);
}

TEST_CASE("ranks whose positions are too far apart are told which") {
  const dyncp::problem job = small_job(ranks);
  ledger book;
  const auto results = run_pool({}, [&](thread_pool& pool) -> dyncp::result<void> {
    const dyncp::data_position start =
        pool.rank() == 2 ? dyncp::data_position{1, 8} : dyncp::data_position{};
    auto batches = dyncp::make_data_iterator(
        lengths, planner_of(job), job, {.global_batch_size = 8, .start = start}, make_sample);
    auto step = batches.next(pool);
    if (step) return failed("a step came");
    book.add(pool.rank(), step.error());
    return {};
  });
  CHECK(complaints(results) == "");
  book.check_errors(1, errc::mismatch);
}
