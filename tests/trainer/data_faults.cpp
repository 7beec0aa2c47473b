// SPDX-License-Identifier: Apache-2.0
// Ranks that die or are late, and lost messages, at every exchange: each ends the step with the
// same typed error on all ranks, and the iterators go on with every sample once.
#include "trainer/failures.hpp"

#include <dyncp/trainer/data_iterator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

using namespace dyncp_test;
using dyncp::errc;
using dyncp::sequence;

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
