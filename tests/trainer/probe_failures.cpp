// SPDX-License-Identifier: Apache-2.0
// The same where lengths are probed: probes, shards and codecs that fail, and ranks that die.
#include "trainer/failures.hpp"

#include <dyncp/trainer/data_iterator.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
