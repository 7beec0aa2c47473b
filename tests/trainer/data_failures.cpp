// SPDX-License-Identifier: Apache-2.0
// What ends a step on one rank: ranges and loaders that throw, lengths that lie, plans and options
// that differ. Each ends with the same typed error on all ranks, and the iterators go on with every
// sample once.
#include "trainer/failures.hpp"

#include <dyncp/trainer/data_iterator.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp_test;
using dyncp::errc;
using dyncp::sequence;

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
