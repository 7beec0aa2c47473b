// SPDX-License-Identifier: Apache-2.0
// Data iterators without faults: what is yielded, what is loaded, where one can go on.
#include "trainer/batches.hpp"

#include <dyncp/plan/digest.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/trainer/data_iterator.hpp>
#include <dyncp/trainer/token_share.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp_test;
using dyncp::data_position;
using dyncp::lone_channel;
using dyncp::sequence;

namespace {

/// Groups of a pool that does not exist: for tests of one process that plays all ranks in turn.
auto groups_of(std::int32_t rank) {
  return [rank](dyncp::rank_range ranks) -> dyncp::result<dyncp::group_handle> {
    return dyncp::group_handle{1, ranks, rank - ranks.begin, 0};
  };
}

/// The numbers of a stream: a range that can be read once.
struct numbers_of {
  std::istream* text;
  [[nodiscard]] auto begin() const { return std::istream_iterator<std::int64_t>(*text); }
  [[nodiscard]] auto end() const { return std::istream_iterator<std::int64_t>(); }
};

/// Every step of an iterator of one process as `rank`.
template <class Iterator>
auto all_steps(Iterator& batches, std::int32_t rank) {
  std::vector<typename Iterator::step_type> steps;
  lone_channel alone;
  for (;;) {
    auto step = batches.next(alone, groups_of(rank));
    if (!step) FAIL(step.error().message());
    if (!*step) return steps;
    steps.push_back(**step);
  }
}

/// Ids by iteration of the samples that a rank is yielded; checks that samples are whole.
template <class Step>
std::vector<std::int64_t> ids_of(const Step& step) {
  std::vector<std::int64_t> ids;
  for (std::int32_t m = 0; m < step.num_micro_batches(); ++m) {
    const auto mb = step.micro_batch(m);
    CHECK(mb.index == m);
    if (mb.idle()) {
      CHECK(mb.samples.empty());
      continue;
    }
    REQUIRE(mb.samples.size() == mb.params->sequence_ids.size());
    CHECK(mb.params->micro_batch == m);
    for (std::size_t i = 0; i < mb.samples.size(); ++i) {
      const std::int64_t id = mb.params->sequence_ids[i];
      const auto& cu = mb.params->cu().real;
      CHECK(static_cast<std::int64_t>(mb.samples[i].size()) == cu[i + 1] - cu[i]);
      CHECK(std::all_of(mb.samples[i].begin(), mb.samples[i].end(),
                        [&](std::int32_t t) { return t == id; }));
      ids.push_back(id);
    }
  }
  return ids;
}

}  // namespace

TEST_CASE("ranks together get every sequence of every batch, each on the ranks of one group") {
  const auto lengths = some_lengths(50, 380, 1);
  const dyncp::problem job = small_job(4);
  std::map<std::int64_t, std::map<std::int64_t, std::int32_t>> copies;  // iteration, id
  std::map<std::int64_t, std::map<std::int64_t, std::int32_t>> wanted;
  std::vector<std::int32_t> micro_batches;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                             {.global_batch_size = 16, .rank = rank}, make_sample);
    const auto steps = all_steps(batches, rank);
    REQUIRE(steps.size() == 4);
    std::vector<std::int32_t> counts;
    for (const auto& step : steps) {
      counts.push_back(step.num_micro_batches());
      CHECK(step.metadata().rank == rank);
      for (const std::int64_t id : ids_of(step)) copies[step.iteration()][id] += 1;
      for (std::int32_t i = 0; i < step.layout().num_sequences(); ++i) {
        wanted[step.iteration()][step.layout().id(i)] = step.layout().pack_of(i).ranks.size;
      }
    }
    if (rank == 0) micro_batches = counts;
    CHECK(counts == micro_batches);
  }
  CHECK(copies == wanted);
  std::int64_t total = 0;
  for (std::int64_t k = 0; k < 4; ++k) {
    CHECK(copies[k].size() == (k < 3 ? 16u : 2u));  // the last batch is short
    for (const auto& [id, n] : copies[k]) CHECK(id / 16 == k);
    total += static_cast<std::int64_t>(copies[k].size());
  }
  CHECK(total == 50);
}

TEST_CASE("known lengths: nothing is loaded to plan, and of a step only what the rank works on") {
  const auto lengths = some_lengths(32, 300, 2);
  const dyncp::problem job = small_job(4);
  std::vector<std::int64_t> loaded;
  auto batches = dyncp::make_data_iterator(
      lengths, planner_of(job), job, {.global_batch_size = 8, .ahead = 2, .rank = 1},
      [&](const sequence& s) {
        loaded.push_back(s.id);
        return make_sample(s);
      });
  lone_channel alone;
  for (std::int64_t k = 0; k < 4; ++k) {
    loaded.clear();
    auto step = batches.next(alone, groups_of(1));
    REQUIRE(step);
    REQUIRE(*step);
    std::vector<std::int64_t> mine = ids_of(**step);
    std::sort(mine.begin(), mine.end());
    std::sort(loaded.begin(), loaded.end());
    CHECK(loaded == mine);
    CHECK(std::all_of(loaded.begin(), loaded.end(), [&](std::int64_t id) { return id / 8 == k; }));
  }
  auto end = batches.next(alone, groups_of(1));
  REQUIRE(end);
  CHECK(!*end);
  end = batches.next(alone, groups_of(1));
  REQUIRE(end);
  CHECK(!*end);
}

TEST_CASE("any input range of lengths or sequences will do") {
  const dyncp::problem job = small_job(2);
  const auto steps_of = [&](auto&& range) {
    auto batches = dyncp::make_data_iterator(std::forward<decltype(range)>(range), planner_of(job),
                                             job, {.global_batch_size = 4, .rank = 0});
    std::vector<std::uint64_t> digests;
    for (const auto& step : all_steps(batches, 0)) digests.push_back(step.metadata().digest);
    return digests;
  };
  const std::vector<std::int64_t> lengths = {30, 100, 7, 55, 12, 99};
  const auto expected = steps_of(lengths);
  CHECK(expected.size() == 2);
  CHECK(steps_of(std::vector<int>{30, 100, 7, 55, 12, 99}) == expected);
  CHECK(steps_of(*dyncp::make_batch(lengths)) == expected);
  std::istringstream text("30 100 7 55 12 99");
  CHECK(steps_of(numbers_of{&text}) == expected);
// clang 14 cannot compile the views of libstdc++ 12.
#if !defined(__clang__) || __clang_major__ >= 16
  const auto view = std::views::iota(0, 6) | std::views::transform([&](int i) {
                      return lengths[static_cast<std::size_t>(i)];
                    });
  CHECK(steps_of(view) == expected);
  CHECK(steps_of(std::vector(lengths) | std::views::take(6)) == expected);
#endif
}

TEST_CASE("steps do not depend on how far ahead they are planned") {
  const auto lengths = some_lengths(40, 390, 3);
  const dyncp::problem job = small_job(4);
  for (const bool warm : {false, true}) {
    std::vector<std::uint64_t> expected;
    for (const std::int32_t ahead : {0, 1, 2, 5}) {
      auto batches = dyncp::make_data_iterator(
          lengths, planner_of(job), job,
          {.global_batch_size = 8, .ahead = ahead, .warm_start = warm, .rank = 0});
      std::vector<std::uint64_t> digests;
      for (const auto& step : all_steps(batches, 0)) digests.push_back(step.metadata().digest);
      if (ahead == 0) expected = digests;
      CHECK(digests == expected);
      CHECK(batches.report().steps == 5);
      CHECK(batches.report().planning_s > 0);
    }
  }
}

// Megatron-LM#5483, Bridge#6127: the iterator ends inside a step, the batch is shorter than the
// ranks.
TEST_CASE("Megatron-LM#5483: a short last batch is a step of its own, or is left out when asked") {
  const dyncp::problem job = small_job(8);
  const std::vector<std::int64_t> lengths(11, 20);
  for (const bool drop : {false, true}) {
    auto batches = dyncp::make_data_iterator(
        lengths, planner_of(job), job,
        {.global_batch_size = 8, .drop_last = drop, .rank = 0}, make_sample);
    const auto steps = all_steps(batches, 0);
    REQUIRE(steps.size() == (drop ? 1 : 2));
    if (!drop) {
      CHECK(steps[1].layout().num_sequences() == 3);
      CHECK(steps[1].num_micro_batches() >= 1);
      dyncp::problem prob = job;
      prob.sequences = {{8, 20, -1}, {9, 20, -1}, {10, 20, -1}};
      CHECK(dyncp::check(steps[1].plan(), prob));
    }
    CHECK(batches.position().taken == (drop ? 8 : 11));
  }
}

TEST_CASE("Bridge#6127: evaluation runs on an iterator of its own, with its own limits, any time") {
  const auto lengths = some_lengths(24, 200, 5);
  const dyncp::problem job = small_job(4);
  dyncp::problem evaluation = small_job(4, 400);
  auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                           {.global_batch_size = 8, .rank = 0}, make_sample);
  lone_channel alone;
  std::vector<std::int64_t> trained;
  std::vector<std::uint64_t> evaluated;
  for (int round = 0; round < 3; ++round) {
    auto step = batches.next(alone, groups_of(0));
    REQUIRE(step);
    REQUIRE(*step);
    for (std::int32_t i = 0; i < (*step)->layout().num_sequences(); ++i) {
      trained.push_back((*step)->layout().id(i));
    }
    const std::vector<std::int64_t> held_out = {390, 20, 77, 400};
    auto passes = dyncp::make_data_iterator(held_out, planner_of(evaluation), evaluation,
                                            {.global_batch_size = 4, .rank = 0}, make_sample);
    const auto steps = all_steps(passes, 0);
    REQUIRE(steps.size() == 1);
    evaluated.push_back(steps[0].metadata().digest);
  }
  std::sort(trained.begin(), trained.end());
  CHECK(trained.size() == 24);
  CHECK(std::unique(trained.begin(), trained.end()) == trained.end());
  CHECK(evaluated[0] == evaluated[1]);
  CHECK(evaluated[0] == evaluated[2]);
}

TEST_CASE("an iterator that starts at a saved position yields what the first one would have") {
  const auto lengths = some_lengths(45, 300, 6);
  const dyncp::problem job = small_job(4);
  const auto make = [&](data_position start) {
    return dyncp::make_data_iterator(lengths, planner_of(job), job,
                                     {.global_batch_size = 8, .rank = 2, .start = start},
                                     make_sample);
  };
  auto whole = make({});
  const auto steps = all_steps(whole, 2);
  REQUIRE(steps.size() == 6);
  lone_channel alone;
  for (std::size_t stop = 0; stop <= steps.size(); ++stop) {
    auto first = make({});
    for (std::size_t k = 0; k < stop; ++k) REQUIRE(first.next(alone, groups_of(2)));
    auto second = make(first.position());
    const auto rest = all_steps(second, 2);
    REQUIRE(rest.size() == steps.size() - stop);
    for (std::size_t k = 0; k < rest.size(); ++k) {
      CHECK(rest[k].iteration() == steps[stop + k].iteration());
      CHECK(rest[k].metadata().digest == steps[stop + k].metadata().digest);
      CHECK(ids_of(rest[k]) == ids_of(steps[stop + k]));
    }
  }
}

TEST_CASE("again yields the last step once more, and then goes on") {
  const auto lengths = some_lengths(24, 200, 7);
  const dyncp::problem job = small_job(4);
  std::int64_t loads = 0;
  auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                           {.global_batch_size = 8, .rank = 0},
                                           [&](const sequence& s) {
                                             ++loads;
                                             return make_sample(s);
                                           });
  lone_channel alone;
  CHECK(!batches.again());
  auto first = batches.next(alone, groups_of(0));
  REQUIRE(first);
  const std::int64_t loaded = loads;
  for (int i = 0; i < 3; ++i) {
    CHECK(batches.again());
    auto same = batches.next(alone, groups_of(0));
    REQUIRE(same);
    CHECK((*same)->iteration() == 0);
    CHECK(ids_of(**same) == ids_of(**first));
  }
  CHECK(loads == loaded);
  auto second = batches.next(alone, groups_of(0));
  REQUIRE(second);
  CHECK((*second)->iteration() == 1);
  CHECK(batches.position().iteration == 2);
}

TEST_CASE("again, then a failure, with plans that learn: a new plan, and its own samples") {
  std::vector<std::int64_t> lengths;  // several micro-batches of each batch
  for (std::int64_t i = 0; i < 60; ++i) lengths.push_back(30 + i * 37 % 60);
  const dyncp::problem job = small_job(2);
  for (const std::int32_t ahead : {0, 1, 3}) {
    for (const int failures : {1, 2}) {
      INFO("ahead " << ahead << " failures " << failures);
      auto batches = dyncp::make_data_iterator(
          lengths, learning_planner{planner_of(job)}, job,
          {.global_batch_size = 20, .ahead = ahead, .warm_start = true, .rank = 0}, make_sample);
      lone_channel alone;
      REQUIRE(batches.next(alone, groups_of(0)));
      auto warm = batches.next(alone, groups_of(0));
      REQUIRE(warm);
      const std::vector<std::int64_t> before = ids_of(**warm);
      REQUIRE(batches.again());
      for (int i = 0; i < failures; ++i) {
        const auto none = batches.next(
            alone, [](dyncp::rank_range) -> dyncp::result<dyncp::group_handle> {
              return dyncp::make_error(dyncp::errc::timeout, "no groups");
            });
        CHECK(!none);
      }
      auto cold = batches.next(alone, groups_of(0));
      REQUIRE(cold);
      CHECK((*cold)->iteration() == 1);
      // Without a hint the micro-batches come the other way round; ids_of reads every token.
      const std::vector<std::int64_t> after = ids_of(**cold);
      CHECK(after != before);
      CHECK(std::set<std::int64_t>(after.begin(), after.end()) ==
            std::set<std::int64_t>(before.begin(), before.end()));
      CHECK(ids_of(**warm) == before);
      for (const auto& step : all_steps(batches, 0)) ids_of(step);
      CHECK(batches.position() == data_position{3, 60});
    }
  }
}

TEST_CASE("a step that is yielded again counts once, its samples' bytes each time they move") {
  const std::vector<std::int64_t> lengths = {30, 500, 20, 40, 10, 0};
  const dyncp::problem job = small_job(4);
  auto batches = dyncp::make_data_iterator(
      lengths, planner_of(job), job,
      {.global_batch_size = 3, .drop_unfit = true, .rank = 0}, make_sample);
  lone_channel alone;
  REQUIRE(batches.next(alone, groups_of(0)));
  for (int i = 0; i < 3; ++i) {
    REQUIRE(batches.again());
    REQUIRE(batches.next(alone, groups_of(0)));
  }
  CHECK(batches.report().steps == 1);
  CHECK(batches.report().dropped == 1);  // 500
  REQUIRE(batches.again());
  batches.discard(2);
  REQUIRE(batches.next(alone, groups_of(0)));
  CHECK(batches.report().steps == 1);
  CHECK(batches.report().dropped == 2);
  CHECK(all_steps(batches, 0).size() == 1);
  CHECK(batches.report().steps == 2);
  CHECK(batches.report().dropped == 3);  // 0

  const auto results = run_pool({.ranks = 4}, [&](thread_pool& pool) -> dyncp::result<void> {
    const std::vector<std::int64_t> known(8, 90);
    auto probed = dyncp::make_probed_iterator(shard_of(known, pool.rank(), 4), planner_of(job), job,
                                              {.global_batch_size = 8}, probe_sample);
    if (!probed.next(pool)) return failed("no step");
    const dyncp::data_iterator_report once = probed.report();
    if (!probed.again()) return failed("no step to go back to");
    if (!probed.next(pool)) return failed("not again");
    const dyncp::data_iterator_report twice = probed.report();
    if (once.probe_bytes == 0 || twice.probe_bytes != once.probe_bytes) return failed("probed");
    if (twice.rerouted_bytes != 2 * once.rerouted_bytes) return failed("moved twice");
    return twice.steps == 1 ? dyncp::result<void>{} : failed("steps");
  });
  CHECK(complaints(results) == "");
}

// Megatron-LM#5109: chunks shared one sample dict, and clearing labels broke the last stage.
TEST_CASE("Megatron-LM#5109: views of virtual stages are independent; only some hold samples") {
  const auto lengths = some_lengths(16, 200, 8);
  dyncp::problem job = small_job(2, 100, 2);
  job.parallel.vpp = 2;
  auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                           {.global_batch_size = 16, .rank = 1}, make_sample);
  const auto steps = all_steps(batches, 1);
  REQUIRE(steps.size() == 1);
  const auto& step = steps[0];
  CHECK(step.num_micro_batches() % 2 == 0);  // the interleaved schedule passes groups of pp
  std::vector<dyncp::stage_view<token_sample>> views;
  for (std::int32_t stage = 0; stage < 2; ++stage) {
    for (std::int32_t chunk = 0; chunk < 2; ++chunk) {
      for (std::int32_t tensor = 0; tensor < 2; ++tensor) {
        views.push_back(step.view({stage, 2, chunk, 2, tensor}));
      }
    }
  }
  while (views[0].next()) {
  }
  CHECK(!views[0].next());
  for (std::size_t v = 1; v < views.size(); ++v) {
    auto& view = views[v];
    const bool holds = view.place().holds_data();
    CHECK(holds == (v == 0 || v == 6));
    for (std::int32_t m = 0; m < step.num_micro_batches(); ++m) {
      const auto mb = view.next();
      REQUIRE(mb);
      CHECK(mb->index == m);
      CHECK(mb->params == step.micro_batch(m).params);
      if (!mb->idle()) CHECK(mb->samples.empty() == !holds);
    }
    CHECK(!view.next());
    view.rewind();
    CHECK(view.next());
  }
}

TEST_CASE("a step outlives its iterator") {
  const dyncp::problem job = small_job(1);
  std::optional<dyncp::training_step<token_sample>> kept;
  {
    const std::vector<std::int64_t> lengths = {5, 6, 7};
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                             {.global_batch_size = 3, .rank = 0}, make_sample);
    lone_channel alone;
    auto step = batches.next(alone, groups_of(0));
    REQUIRE(step);
    kept = **step;
  }
  auto ids = ids_of(*kept);
  std::sort(ids.begin(), ids.end());
  CHECK(ids == std::vector<std::int64_t>{0, 1, 2});
}

// Megatron-LM#7045: consumers inferred groups, and CP 1 had none.
TEST_CASE("Megatron-LM#7045: every micro-batch carries its group, of one rank too") {
  const std::vector<std::int64_t> lengths = {10, 20, 30, 40};
  const dyncp::problem job = small_job(4);
  auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                           {.global_batch_size = 4, .rank = 3}, make_sample);
  for (const auto& step : all_steps(batches, 3)) {
    for (std::int32_t m = 0; m < step.num_micro_batches(); ++m) {
      const auto mb = step.micro_batch(m);
      if (mb.idle()) continue;
      CHECK(mb.params->group.ranks.contains(3));
      CHECK(mb.params->cp_size() == mb.params->layout.cp());
      CHECK(mb.params->cp_rank() == 3 - mb.params->group.ranks.begin);
    }
  }
}

TEST_CASE("a group other than the plan's is refused") {
  const std::vector<std::int64_t> lengths = {350};  // needs all four ranks
  const dyncp::problem job = small_job(4);
  auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                           {.global_batch_size = 1, .rank = 0}, make_sample);
  lone_channel alone;
  auto step = batches.next(alone, [](dyncp::rank_range) -> dyncp::result<dyncp::group_handle> {
    return dyncp::group_handle{1, {0, 2}, 0, 0};
  });
  REQUIRE(!step);
  CHECK(step.error().code == dyncp::errc::mismatch);
  auto right = batches.next(alone, groups_of(0));
  REQUIRE(right);
  CHECK((*right)->iteration() == 0);
}

TEST_CASE("sequences that no plan can hold fail the step by name, or are left out and named") {
  std::vector<std::int64_t> lengths = {30, 500, 20, 0, 60};
  const dyncp::problem job = small_job(4);
  {
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                             {.global_batch_size = 5, .rank = 0}, make_sample);
    lone_channel alone;
    auto step = batches.next(alone, groups_of(0));
    REQUIRE(!step);
    CHECK(step.error().code == dyncp::errc::invalid_length);
    batches.discard(3);
    step = batches.next(alone, groups_of(0));
    REQUIRE(!step);
    CHECK(step.error().code == dyncp::errc::sequence_too_long);
    CHECK(step.error().what.find("sequence 1 ") != std::string::npos);
    batches.discard(1);
    step = batches.next(alone, groups_of(0));
    REQUIRE(step);
    CHECK((*step)->dropped().size() == 2);
    CHECK((*step)->layout().num_sequences() == 3);
  }
  auto batches = dyncp::make_data_iterator(
      lengths, planner_of(job), job,
      {.global_batch_size = 5, .drop_unfit = true, .rank = 0}, make_sample);
  const auto steps = all_steps(batches, 0);
  REQUIRE(steps.size() == 1);
  REQUIRE(steps[0].dropped().size() == 2);
  CHECK(steps[0].dropped()[0].id == 1);
  CHECK(steps[0].dropped()[1].id == 3);
  CHECK(batches.report().dropped == 2);

  // A pair goes together; a batch of which nothing is left is a step without micro-batches.
  const std::vector<sequence> pairs = {{7, 300, 1}, {8, 300, 1}, {9, 390, 2}, {10, 5, 2}};
  auto paired = dyncp::make_data_iterator(
      pairs, planner_of(job), job,
      {.global_batch_size = 2, .drop_unfit = true, .rank = 0}, make_sample);
  const auto two = all_steps(paired, 0);
  REQUIRE(two.size() == 2);
  CHECK(two[0].dropped().size() == 2);
  CHECK(two[0].num_micro_batches() == 0);
  CHECK(two[1].dropped().empty());
  CHECK(two[1].num_micro_batches() == 1);
}

TEST_CASE("discard takes from the next step alone, however far ahead it was read; or it is told") {
  const dyncp::problem job = small_job(4);
  std::vector<sequence> two_epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t id = 0; id < 8; ++id) two_epochs.push_back({id, 20 + id, -1});
  }
  for (const std::int32_t ahead : {0, 1, 3}) {
    INFO("ahead " << ahead);
    auto batches = dyncp::make_data_iterator(
        two_epochs, planner_of(job), job,
        {.global_batch_size = 4, .ahead = ahead, .rank = 0}, make_sample);
    lone_channel alone;
    const auto sequences_of = [&](const auto& step) {
      return step && *step ? (*step)->layout().num_sequences() : -1;
    };
    const auto told = [&](std::int64_t id, std::int64_t iteration) {
      const auto step = batches.next(alone, groups_of(0));
      REQUIRE(!step);
      CHECK(step.error().code == dyncp::errc::invalid_argument);
      CHECK(step.error().value == id);
      CHECK(step.error().limit == iteration);
    };
    batches.discard(5);  // of step 1; 0 .. 3 come first
    batches.discard(2);
    told(5, 0);
    CHECK(sequences_of(batches.next(alone, groups_of(0))) == 3);  // 0 1 3
    batches.discard(2);  // of the step before, and of a later one
    told(2, 1);
    batches.discard(6);
    batches.discard(6);
    CHECK(sequences_of(batches.next(alone, groups_of(0))) == 3);  // 4 5 7
    CHECK(sequences_of(batches.next(alone, groups_of(0))) == 4);  // the second epoch: 0 1 2 3
    CHECK(sequences_of(batches.next(alone, groups_of(0))) == 4);
    CHECK(sequences_of(batches.next(alone, groups_of(0))) == -1);
    batches.discard(7);  // there is no more step
    told(7, 4);
    CHECK(batches.report().dropped == 2);
  }
}

// verl#6176, EasyR1#11004, tinker-cloud#30: counts of micro-batches came from local samples.
TEST_CASE(
    "verl#6176, EasyR1#11004: one number of micro-batches on all ranks, however few samples") {
  for (const std::int64_t n : {1, 2, 3, 5, 9}) {
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(n), 95);
    const dyncp::problem job = small_job(2);
    std::vector<std::int32_t> counts;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                               {.global_batch_size = n, .rank = rank}, make_sample);
      const auto steps = all_steps(batches, rank);
      REQUIRE(steps.size() == 1);
      counts.push_back(steps[0].num_micro_batches());
    }
    CHECK(counts[0] == counts[1]);
  }
}

TEST_CASE("options that cannot be are refused") {
  const std::vector<std::int64_t> lengths = {10};
  const dyncp::problem job = small_job(2);
  lone_channel alone;
  for (const dyncp::data_iterator_options& bad :
       {dyncp::data_iterator_options{.global_batch_size = 0, .rank = 0},
        dyncp::data_iterator_options{.global_batch_size = (std::int64_t{1} << 22) + 1, .rank = 0},
        dyncp::data_iterator_options{.global_batch_size = 1, .ahead = 2147483647, .rank = 0},
        dyncp::data_iterator_options{.global_batch_size = 1, .rank = 2},
        dyncp::data_iterator_options{.global_batch_size = 1, .rank = 0, .start = {-1, 0}},
        dyncp::data_iterator_options{.global_batch_size = 1, .rank = 0, .start = {0, -1}}}) {
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job, bad, make_sample);
    const auto step = batches.next(alone, groups_of(0));
    REQUIRE(!step);
    CHECK(step.error().code == dyncp::errc::invalid_argument);
    CHECK(!step.error().hint.empty());
  }
  // Nothing is allocated for a batch that nobody can mean.
  const auto results = run_pool({.ranks = 2}, [&](thread_pool& pool) -> dyncp::result<void> {
    auto probing = dyncp::make_probed_iterator(std::vector<token_sample>{}, planner_of(job), job,
                                               {.global_batch_size = std::int64_t{1} << 60},
                                               probe_sample);
    const auto step = probing.next(pool);
    if (step) return failed("a batch of 2^60 samples");
    if (step.error().code == dyncp::errc::invalid_argument) return {};
    return step.error();
  });
  CHECK(complaints(results) == "");
}

TEST_CASE("a line per micro-batch goes to the log sink; a sink that throws fails the step") {
  const std::vector<std::int64_t> lengths = {350, 20, 30};
  const dyncp::problem job = small_job(4);
  std::vector<std::string> lines;
  bool angry = true;
  dyncp::data_iterator_options options{.global_batch_size = 3, .rank = 0};
  options.log = [&](const dyncp::log_line& line) {
    if (angry) throw std::runtime_error("disk full");
    lines.emplace_back(line.text);
  };
  auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job, options, make_sample);
  lone_channel alone;
  auto step = batches.next(alone, groups_of(0));
  REQUIRE(!step);
  CHECK(step.error().code == dyncp::errc::callback_failed);
  CHECK(step.error().what.find("disk full") != std::string::npos);
  angry = false;
  step = batches.next(alone, groups_of(0));
  REQUIRE(step);
  REQUIRE(lines.size() == static_cast<std::size_t>((*step)->num_micro_batches()));
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  CHECK(all.find("iteration 0 micro-batch 0: cp ") != std::string::npos);
  CHECK(all.find("cp 4, 1 sequence, 350 tokens, 88 rows a rank") != std::string::npos);
}

TEST_CASE("over a pool: all ranks get the same step, with groups of the pool") {
  const auto lengths = some_lengths(40, 390, 9);
  const dyncp::problem job = small_job(4);
  std::mutex mutex;
  std::map<std::int64_t, std::set<std::uint64_t>> digests;
  std::map<std::int64_t, std::int32_t> seen;
  const auto results = run_pool({.ranks = 4}, [&](thread_pool& pool) -> dyncp::result<void> {
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                             {.global_batch_size = 10}, make_sample);
    for (;;) {
      auto step = batches.next(pool);
      if (!step) return std::move(step).error();
      if (!*step) return {};
      const std::lock_guard lock(mutex);
      digests[(*step)->iteration()].insert((*step)->metadata().digest);
      for (std::int32_t m = 0; m < (*step)->num_micro_batches(); ++m) {
        const auto mb = (*step)->micro_batch(m);
        if (mb.idle()) continue;
        if (mb.params->group.generation != pool.generation()) return failed("another pool's group");
        if (mb.params->cp_rank() != 0) continue;
        for (const std::int64_t id : mb.params->sequence_ids) seen[id] += 1;
      }
    }
  });
  CHECK(complaints(results) == "");
  CHECK(digests.size() == 4);
  for (const auto& [iteration, values] : digests) CHECK(values.size() == 1);
  CHECK(seen.size() == 40);
  for (const auto& [id, n] : seen) CHECK(n == 1);
}

// Auxiliary losses were summed over the group of the build, not that of the micro-batch.
TEST_CASE("Megatron-LM#7046: a sum over the group of a micro-batch is that of its own sequences") {
  const auto lengths = some_lengths(40, 390, 9);
  const dyncp::problem job = small_job(4);
  const auto results = run_pool({.ranks = 4}, [&](thread_pool& pool) -> dyncp::result<void> {
    auto batches = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                             {.global_batch_size = 10}, make_sample);
    for (;;) {
      auto step = batches.next(pool);
      if (!step) return std::move(step).error();
      if (!*step) return {};
      for (std::int32_t m = 0; m < (*step)->num_micro_batches(); ++m) {
        const auto mb = (*step)->micro_batch(m);
        if (mb.idle()) continue;
        // (tokens, tokens * id) of the rows of this rank.
        std::vector<std::int64_t> sums(2, 0);
        static_cast<void>(dyncp::cut_share<int>(
            *mb.params, 0, [&](std::int32_t s, std::int32_t) {
              sums[0] += 1;
              sums[1] += mb.params->sequence_ids[static_cast<std::size_t>(s)];
              return 0;
            }));
        auto group = pool.channel(mb.params->group);
        auto done = dyncp::all_reduce(group, std::span(sums), dyncp::reduction::sum);
        if (!done) return done;
        std::vector<std::int64_t> expected(2, 0);
        for (const std::int64_t id : mb.params->sequence_ids) {
          const std::int64_t length = lengths[static_cast<std::size_t>(id)];
          expected[0] += length;
          expected[1] += length * id;
        }
        if (sums != expected) return failed("a reduction over other sequences");
      }
    }
  });
  CHECK(complaints(results) == "");
}
