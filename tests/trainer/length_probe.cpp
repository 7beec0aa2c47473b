// SPDX-License-Identifier: Apache-2.0
// Lengths that nobody knows beforehand: probed once by their owner, gathered in one small
// collective; samples stay where they were read and travel once.
#include "trainer/batches.hpp"

#include <dyncp/trainer/data_iterator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp_test;
using dyncp::sequence;

namespace {

/// What all ranks together saw of a probed run.
struct probed_run {
  std::mutex mutex;
  std::map<std::int64_t, std::vector<std::int32_t>> probes;  // id -> ranks that probed it
  std::map<std::int64_t, std::int64_t> yielded;              // id -> iteration
  std::map<std::int64_t, std::set<std::uint64_t>> digests;   // iteration -> digests
  std::map<std::int64_t, std::vector<std::int64_t>> order;   // iteration -> ids as planned
  std::map<std::int64_t, std::int64_t> sent, received;       // iteration -> bytes, all ranks
  std::int64_t probe_bytes = 0;                              // of one rank, last step
  std::string complaints;
};

void run_probed(probed_run& out, const std::vector<std::int64_t>& lengths, std::int32_t ranks,
                std::int64_t batch, std::int32_t ahead,
                const std::vector<std::vector<token_sample>>& shards) {
  const dyncp::problem job = small_job(ranks);
  const auto results = run_pool({.ranks = ranks}, [&](thread_pool& pool) -> dyncp::result<void> {
    const std::int32_t rank = pool.rank();
    auto batches = dyncp::make_probed_iterator(
        shards[static_cast<std::size_t>(rank)], planner_of(job), job,
        {.global_batch_size = batch, .ahead = ahead}, [&](const token_sample& s) {
          const std::lock_guard lock(out.mutex);
          out.probes[s.front()].push_back(rank);
          return probe_sample(s);
        });
    for (;;) {
      auto step = batches.next(pool);
      if (!step) return std::move(step).error();
      if (!*step) return {};
      const std::lock_guard lock(out.mutex);
      const std::int64_t k = (*step)->iteration();
      out.digests[k].insert((*step)->metadata().digest);
      out.sent[k] += (*step)->costs().rerouted_bytes;
      out.received[k] += (*step)->costs().received_bytes;
      out.probe_bytes = (*step)->costs().probe_bytes;
      std::vector<std::int64_t> ids;
      for (std::int32_t i = 0; i < (*step)->layout().num_sequences(); ++i) {
        ids.push_back((*step)->layout().id(i));
        out.yielded.try_emplace(ids.back(), k);
      }
      out.order[k] = ids;
      for (std::int32_t m = 0; m < (*step)->num_micro_batches(); ++m) {
        const auto mb = (*step)->micro_batch(m);
        for (std::size_t i = 0; i < mb.samples.size(); ++i) {
          const std::int64_t id = mb.params->sequence_ids[i];
          if (mb.samples[i] != make_sample({id, lengths[static_cast<std::size_t>(id)], -1})) {
            return failed("sample " + std::to_string(id) + " arrived changed");
          }
        }
      }
    }
  });
  out.complaints = complaints(results);
}

std::vector<std::vector<token_sample>> shards_of(const std::vector<std::int64_t>& lengths,
                                                 std::int32_t ranks) {
  std::vector<std::vector<token_sample>> out;
  for (std::int32_t r = 0; r < ranks; ++r) out.push_back(shard_of(lengths, r, ranks));
  return out;
}

}  // namespace

TEST_CASE("each sample is probed once, by its owner; the plan is that of the whole list") {
  const auto lengths = some_lengths(42, 380, 21);
  for (const std::int32_t ahead : {0, 2}) {
    for (const std::int64_t batch : {8, 10, 3}) {  // with 10 and 3 shares differ by rank
      INFO("batch " << batch << " ahead " << ahead);
      probed_run run;
      run_probed(run, lengths, 4, batch, ahead, shards_of(lengths, 4));
      CHECK(run.complaints == "");
      CHECK(run.probes.size() == 42);
      for (const auto& [id, who] : run.probes) {
        CHECK(who == std::vector<std::int32_t>{static_cast<std::int32_t>(id % 4)});
      }
      CHECK(run.yielded.size() == 42);
      for (const auto& [id, k] : run.yielded) CHECK(k == id / batch);
      for (const auto& [k, ids] : run.order) {
        CHECK(std::is_sorted(ids.begin(), ids.end()));
        CHECK(run.digests[k].size() == 1);
        CHECK(run.sent[k] == run.received[k]);
      }
    }
  }
}

TEST_CASE("the plans are those of an iterator that knew the lengths") {
  const auto lengths = some_lengths(40, 380, 22);
  const dyncp::problem job = small_job(4);
  probed_run run;
  run_probed(run, lengths, 4, 8, 1, shards_of(lengths, 4));
  REQUIRE(run.complaints == "");
  auto known = dyncp::make_data_iterator(lengths, planner_of(job), job,
                                         {.global_batch_size = 8, .rank = 0});
  dyncp::lone_channel alone;
  for (std::int64_t k = 0; k < 5; ++k) {
    auto step = known.next(alone, [](dyncp::rank_range r) -> dyncp::result<dyncp::group_handle> {
      return dyncp::group_handle{1, r, 0, 0};
    });
    REQUIRE(step);
    CHECK(run.digests[k] == std::set<std::uint64_t>{(*step)->metadata().digest});
  }
}

TEST_CASE("the gather carries ids, lengths and shapes only, and its bytes are told") {
  const auto lengths = some_lengths(16, 200, 23);
  probed_run run;
  run_probed(run, lengths, 4, 8, 0, shards_of(lengths, 4));
  // 6 words of head and 2 records of 4 words, to 3 others.
  CHECK(run.probe_bytes == 3 * 8 * (6 + 2 * 4));
  // Samples travel to each rank of their group but the owner, once.
  const dyncp::problem job = small_job(4);
  for (const auto& [k, ids] : run.order) {
    dyncp::problem prob = job;
    for (const std::int64_t id : ids) {
      prob.sequences.push_back({id, lengths[static_cast<std::size_t>(id)], -1});
    }
    const auto planned = planner_of(job).plan(prob);
    REQUIRE(planned);
    std::int64_t bytes = 0;
    for (const auto& mb : planned->plan.micro_batches) {
      for (const auto& pk : mb.packs) {
        for (const std::int32_t i : pk.sequences) {
          const auto& s = prob.sequences[static_cast<std::size_t>(i)];
          const auto owner = static_cast<std::int32_t>(s.id % 4);
          bytes += 4 * s.length * (pk.ranks.size - (pk.ranks.contains(owner) ? 1 : 0));
        }
      }
    }
    CHECK(run.sent[k] == bytes);
  }
}

TEST_CASE("shards of unequal size: batches become shorter, every sample comes once") {
  const auto lengths = some_lengths(30, 200, 24);
  for (const std::int64_t batch : {8, 2, 1}) {
    for (int shape = 0; shape < 4; ++shape) {
      std::vector<std::vector<token_sample>> shards(4);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::size_t owner = shape == 0   ? 0                        // one has all
                                  : shape == 1 ? 3                        // the last has all
                                  : shape == 2 ? (i < 25 ? 1 : i % 4)     // most
                                               : i % 3;                   // one has none
        shards[owner].push_back(make_sample({static_cast<std::int64_t>(i), lengths[i], -1}));
      }
      INFO("batch " << batch << " shape " << shape);
      probed_run run;
      run_probed(run, lengths, 4, batch, 1, shards);
      CHECK(run.complaints == "");
      CHECK(run.yielded.size() == 30);
      CHECK(run.probes.size() == 30);
      for (const auto& [id, who] : run.probes) CHECK(who.size() == 1);
    }
  }
}

TEST_CASE("a process that is alone probes its own samples, and nothing travels") {
  const auto lengths = some_lengths(10, 90, 4);
  const dyncp::problem job = small_job(1);
  auto batches = dyncp::make_probed_iterator(shard_of(lengths, 0, 1), planner_of(job), job,
                                             {.global_batch_size = 4}, probe_sample);
  dyncp::lone_channel alone;
  const auto group_of = [](dyncp::rank_range ranks) {
    return dyncp::result<dyncp::group_handle>(dyncp::group_handle{.ranks = ranks});
  };
  std::map<std::int64_t, std::int64_t> seen;
  for (;;) {
    auto step = batches.next(alone, group_of);
    REQUIRE(step);
    if (!*step) break;
    CHECK((*step)->costs().rerouted_bytes == 0);
    CHECK((*step)->costs().received_bytes == 0);
    for (std::int32_t m = 0; m < (*step)->num_micro_batches(); ++m) {
      for (const token_sample& s : (*step)->micro_batch(m).samples) {
        seen[s.front()] += static_cast<std::int64_t>(s.size());
      }
    }
  }
  CHECK(seen.size() == lengths.size());
  for (const auto& [id, tokens] : seen) CHECK(tokens == lengths[static_cast<std::size_t>(id)]);
}

TEST_CASE("no shard has anything: the data ends at once") {
  probed_run run;
  run_probed(run, {}, 4, 8, 1, std::vector<std::vector<token_sample>>(4));
  CHECK(run.complaints == "");
  CHECK(run.order.empty());
}

TEST_CASE("atoms and shapes travel; too long a shape, or room for none, is refused on all ranks") {
  struct picture {
    std::int64_t id = 0;
    std::vector<std::int32_t> tokens;
    std::vector<float> pixels;
  };
  // Ids, lengths and pixels of any size: the codec is the caller's.
  struct picture_codec {
    std::int64_t bytes(const picture& p) const {
      return static_cast<std::int64_t>(24 + 4 * p.tokens.size() + 4 * p.pixels.size());
    }
    void pack(const picture& p, std::byte* to) const {
      const std::array<std::int64_t, 3> head = {p.id, static_cast<std::int64_t>(p.tokens.size()),
                                                static_cast<std::int64_t>(p.pixels.size())};
      std::memcpy(to, head.data(), 24);
      std::memcpy(to + 24, p.tokens.data(), 4 * p.tokens.size());
      if (!p.pixels.empty()) {
        std::memcpy(to + 24 + 4 * p.tokens.size(), p.pixels.data(), 4 * p.pixels.size());
      }
    }
    dyncp::result<picture> unpack(std::span<const std::byte> from) const {
      std::array<std::int64_t, 3> head = {};
      std::memcpy(head.data(), from.data(), 24);
      picture p{head[0], std::vector<std::int32_t>(static_cast<std::size_t>(head[1])),
                std::vector<float>(static_cast<std::size_t>(head[2]))};
      std::memcpy(p.tokens.data(), from.data() + 24, 4 * p.tokens.size());
      if (!p.pixels.empty()) {
        std::memcpy(p.pixels.data(), from.data() + 24 + 4 * p.tokens.size(), 4 * p.pixels.size());
      }
      return p;
    }
  };
  for (const std::int32_t words : {2, 1, -1, 1025}) {
    const dyncp::problem job = small_job(4);
    std::mutex mutex;
    std::map<std::int64_t, std::int64_t> atoms;  // id -> first rank of its group, micro-batch
    const auto results = run_pool({.ranks = 4}, [&](thread_pool& pool) -> dyncp::result<void> {
      std::vector<picture> shard;
      for (std::int64_t id = pool.rank(); id < 12; id += 4) {
        shard.push_back({id, std::vector<std::int32_t>(static_cast<std::size_t>(10 + id), 1),
                         std::vector<float>(static_cast<std::size_t>(id * 3), 0.5f)});
      }
      auto batches = dyncp::make_probed_iterator(
          shard, planner_of(job), job, {.global_batch_size = 12},
          [](const picture& p) {
            return dyncp::probed_sample{
                {p.id, static_cast<std::int64_t>(p.tokens.size()), p.id % 4},
                {static_cast<std::int64_t>(p.pixels.size()), 3}};
          },
          picture_codec{}, [](const picture& p) {
            return static_cast<std::int64_t>(p.tokens.size());
          },
          dyncp::probe_options{.shape_words = words});
      auto step = batches.next(pool);
      if (!step) return std::move(step).error();
      if (!*step) return failed("no step");
      const std::lock_guard lock(mutex);
      for (std::int32_t m = 0; m < (*step)->num_micro_batches(); ++m) {
        const auto mb = (*step)->micro_batch(m);
        if (mb.shapes.size() != mb.samples.size()) return failed("a shape for each sample");
        for (std::size_t i = 0; i < mb.samples.size(); ++i) {
          const picture& p = mb.samples[i];
          atoms[p.id] = m * 100 + mb.params->group.ranks.begin;
          if (p.pixels.size() != static_cast<std::size_t>(p.id * 3)) return failed("pixels lost");
          if (mb.shapes[i] != std::vector<std::int64_t>{p.id * 3, 3}) return failed("shapes lost");
        }
        // Places that hold no samples know the shapes all the same.
        const auto middle = (*step)->view({.stage = 1, .stages = 3}).at(m);
        if (!middle.samples.empty() || middle.shapes.size() != mb.shapes.size()) {
          return failed("the shapes of a middle stage");
        }
      }
      return {};
    });
    if (words != 2) {
      for (const auto& r : results) {
        REQUIRE(!r);
        CHECK(r.error().code == dyncp::errc::invalid_argument);
        CHECK(r.error().what == results[0].error().what);
      }
      continue;
    }
    CHECK(complaints(results) == "");
    CHECK(atoms.size() == 12);
    for (const auto& [id, place] : atoms) CHECK(place == atoms[id % 4]);
  }
}

TEST_CASE("a channel that is not the DPxCP domain is refused") {
  const dyncp::problem job = small_job(8);
  const auto results = run_pool({.ranks = 4}, [&](thread_pool& pool) -> dyncp::result<void> {
    auto batches = dyncp::make_probed_iterator(std::vector<token_sample>{}, planner_of(job), job,
                                               {.global_batch_size = 8}, probe_sample);
    auto step = batches.next(pool);
    if (step) return failed("a step");
    return step.error().code == dyncp::errc::invalid_argument ? dyncp::result<void>{}
                                                              : step.error();
  });
  CHECK(complaints(results) == "");
}
