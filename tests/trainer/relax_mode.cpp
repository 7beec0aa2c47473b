// SPDX-License-Identifier: Apache-2.0
// Relax mode: what follows from a budget and a context, what is refused and how it can be repaired,
// the rule, the mix and why it is as it is, two budgets.
#include "support/problems.hpp"
#include "support/random.hpp"
#include "trainer/batches.hpp"

#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/plan/validate.hpp>
#include <dyncp/trainer/cp_mix.hpp>
#include <dyncp/trainer/data_iterator.hpp>
#include <dyncp/trainer/micro_batch_log.hpp>
#include <dyncp/trainer/pass_plans.hpp>
#include <dyncp/trainer/relax_mode.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

using namespace dyncp_test;
using dyncp::errc;
using dyncp::make_relax_setup;
using dyncp::relax_options;

namespace {

const relax_options good{.world_size = 64,
                         .tp = 2,
                         .pp = 2,
                         .max_context = 30000,
                         .max_tokens_per_gpu = 8192,
                         .per_token_loss = true};

std::string all_numbers(const dyncp::error& e) { return e.what + " | " + e.hint; }

dyncp::problem relax_job(std::int32_t max_cp, std::int32_t dp, std::int64_t budget) {
  const auto setup = make_relax_setup({.world_size = max_cp * dp,
                                       .max_context = budget * max_cp,
                                       .max_tokens_per_gpu = budget,
                                       .per_token_loss = true});
  REQUIRE(setup);
  REQUIRE(setup->max_cp == max_cp);
  return dyncp::relax_problem(*setup, reference_problem({}, 1, 1, 1));
}

auto relax_planner(const dyncp::problem& p) {
  return dyncp::make_relax_planner(dyncp::analytic_cost(p.model, p.cluster, p.parallel));
}

dyncp::planned planned_of(dyncp::problem p, const std::vector<std::int64_t>& lengths) {
  p.sequences = *dyncp::make_batch(lengths);
  const auto made = relax_planner(p).plan(p);
  REQUIRE(made);
  CHECK(dyncp::check(made->plan, p));
  return *made;
}

dyncp::plan_layout layout_of(const dyncp::plan& p, const std::vector<std::int64_t>& lengths) {
  return *dyncp::plan_layout::make(p, *dyncp::make_batch(lengths), dyncp::layout_kind::zigzag);
}

}  // namespace

TEST_CASE("the largest group is the next power of two of context over budget") {
  const auto setup = make_relax_setup(good);
  REQUIRE(setup);
  CHECK(setup->max_cp == 4);
  CHECK(setup->dp == 4);
  CHECK(setup->ranks() == 16);
  CHECK(setup->log_prob_max_tokens == 8192);
  for (const auto& [context, tokens, cp] :
       {std::tuple{1, 8192, 1}, {8192, 8192, 1}, {8193, 8193, 1}, {8200, 8192, 2},
        {16384, 8192, 2}, {16400, 8192, 4}, {24576, 8192, 4}, {65536, 8192, 8},
        {65552, 8192, 16}}) {
    auto o = good;
    o.max_context = context;
    o.max_tokens_per_gpu = tokens;
    const auto got = make_relax_setup(o);
    REQUIRE(got);
    CHECK(got->max_cp == cp);
    CHECK(got->ranks() == 16);
  }
  auto o = good;
  o.log_prob_max_tokens_per_gpu = 16384;
  CHECK(make_relax_setup(o)->log_prob_max_tokens == 16384);
}

TEST_CASE("no budget, no context, no per-token loss: refused by name") {
  auto no_budget = good;
  no_budget.max_tokens_per_gpu = 0;
  auto no_context = good;
  no_context.max_context = 0;
  auto no_loss = good;
  no_loss.per_token_loss = false;
  auto no_world = good;
  no_world.world_size = 0;
  for (const auto& [options, word] : {std::pair{no_budget, "max_tokens_per_gpu"},
                                      {no_context, "max_context"},
                                      {no_loss, "per-token loss"},
                                      {no_world, "world size"}}) {
    const auto got = make_relax_setup(options);
    REQUIRE(!got);
    CHECK(got.error().code == errc::invalid_argument);
    CHECK(got.error().what.find(word) != std::string::npos);
    CHECK(!got.error().hint.empty());
  }
}

TEST_CASE("a world that is no multiple of tp pp max_cp: the values, and three remedies that work") {
  auto o = good;
  o.world_size = 24;  // of 2 * 2 * 4 = 16
  const auto got = make_relax_setup(o);
  REQUIRE(!got);
  CHECK(got.error().code == errc::invalid_argument);
  CHECK(got.error().value == 24);
  CHECK(got.error().limit == 16);
  const std::string text = all_numbers(got.error());
  for (const char* part : {"24 GPUs", "2 * 2 * 4 = 16", "30000", "8192", "use 16 or 32 GPUs",
                           "raise max_tokens_per_gpu to 15000", "max_cp is 2",
                           "lower max_context to 16384"}) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  }
  for (const std::int64_t world : {16, 32}) {
    auto repaired = o;
    repaired.world_size = world;
    CHECK(make_relax_setup(repaired));
  }
  auto larger = o;
  larger.max_tokens_per_gpu = 15000;
  CHECK(make_relax_setup(larger)->max_cp == 2);
  auto shorter = o;
  shorter.max_context = 16384;
  CHECK(make_relax_setup(shorter)->max_cp == 2);

  o.world_size = 6;  // not even a multiple of tp * pp
  const auto worse = make_relax_setup(o);
  REQUIRE(!worse);
  CHECK(all_numbers(worse.error()).find("tp * pp divides 6") != std::string::npos);
}

TEST_CASE("remedies for a world size work, whatever padding and sizes are") {
  const auto number_after = [](const std::string& text, const std::string& words) {
    const auto at = text.find(words);
    return at == std::string::npos ? std::int64_t{-1} : std::stoll(text.substr(at + words.size()));
  };
  int raised = 0;
  int lowered = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    dyncp_test::random rng(seed);
    auto o = good;
    o.tp = static_cast<std::int32_t>(rng.between(1, 4));
    o.pp = static_cast<std::int32_t>(rng.between(1, 3));
    o.world_size = rng.between(1, 12) * o.tp * o.pp * rng.between(1, 8);
    o.max_tokens_per_gpu = rng.between(1, 300);
    o.max_context = rng.between(1, 4000);
    if (rng.one_in(2)) o.padding.shard_multiple = rng.between(1, 40);
    if (rng.one_in(2)) o.padding.sequence_parallel = o.tp;
    const auto got = make_relax_setup(o);
    if (got || got.error().what.find("a world of") != 0) continue;
    const std::string& hint = got.error().hint;
    INFO("seed " << seed << ": " << got.error().what << "; " << hint);
    auto repaired = o;
    repaired.max_tokens_per_gpu = number_after(hint, "raise max_tokens_per_gpu to ");
    if (repaired.max_tokens_per_gpu > 0) {
      const auto setup = make_relax_setup(repaired);
      REQUIRE(setup);
      CHECK(setup->max_cp == number_after(hint, "so that max_cp is "));
      ++raised;
    }
    repaired = o;
    repaired.max_context = number_after(hint, "lower max_context to ");
    if (repaired.max_context > 0) {
      CHECK(make_relax_setup(repaired));
      ++lowered;
    }
    repaired = o;
    repaired.world_size = number_after(hint, "use ");
    const auto other = make_relax_setup(repaired);
    CHECK((other || other.error().what.find("a context of") == 0));
  }
  CHECK(raised > 500);
  CHECK(lowered > 200);
}

TEST_CASE("sizes beyond all reason are refused by name, not computed with") {
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  constexpr std::int32_t wide = (1 << 30) - 1;
  for (int what = 0; what < 8; ++what) {
    auto o = good;
    const char* name = "";
    switch (what) {
      case 0: o.world_size = huge; name = "world size"; break;
      case 1: o.tp = wide; name = "tp"; break;
      case 2: o.pp = wide; name = "pp"; break;
      case 3: o.vpp = wide; name = "vpp"; break;
      case 4: o.max_context = huge; name = "max_context"; break;
      case 5: o.max_tokens_per_gpu = huge; name = "max_tokens_per_gpu"; break;
      case 6: o.log_prob_max_tokens_per_gpu = -1; name = "log_prob_max_tokens_per_gpu"; break;
      default: o.padding.shard_multiple = 0; name = "shard multiple"; break;
    }
    const auto got = make_relax_setup(o);
    REQUIRE(!got);
    CHECK(got.error().code == errc::invalid_argument);
    CHECK(got.error().what.find(name) == 0);
  }
}

TEST_CASE("a context must fit its group with padding, and under the log-prob budget") {
  auto o = good;
  o.max_context = 404;
  o.max_tokens_per_gpu = 101;
  auto got = make_relax_setup(o);  // 404 tokens pad to 408 on four ranks
  REQUIRE(!got);
  CHECK(got.error().hint.find("raise max_tokens_per_gpu to 102") != std::string::npos);
  o.max_tokens_per_gpu = 102;
  CHECK(make_relax_setup(o));
  o.log_prob_max_tokens_per_gpu = 50;
  got = make_relax_setup(o);
  REQUIRE(!got);
  CHECK(got.error().what.find("log_prob_max_tokens_per_gpu") != std::string::npos);
}

TEST_CASE("the rule, on the vectors of Relax: longest, budget, largest group, sequences") {
  CHECK(dyncp::relax_cp_size(6000, 8192, 8, 3) == 4);
  CHECK(dyncp::relax_cp_size(100, 8192, 8, 1) == 8);
  CHECK(dyncp::relax_cp_size(100, 8192, 4, 3) == 2);
  CHECK(dyncp::relax_cp_size(30000, 8192, 8, 8) == 4);
  CHECK(dyncp::relax_cp_size(30000, 32768, 8, 8) == 1);
  CHECK(dyncp::relax_cp_size(100000, 8192, 8, 8) == 8);
}

TEST_CASE("the packer follows the rule, grows for coverage and for the budget of sub-groups") {
  const auto cps = [](const dyncp::plan& p) {
    std::vector<std::int32_t> out;
    for (const auto& mb : p.micro_batches) {
      for (const auto& pk : mb.packs) {
        CHECK(pk.ranks.size == mb.packs.front().ranks.size);
      }
      out.push_back(mb.packs.front().ranks.size);
    }
    return out;
  };
  CHECK(cps(planned_of(relax_job(8, 1, 8192), {6000, 100, 50}).plan) ==
        std::vector<std::int32_t>{4});
  CHECK(cps(planned_of(relax_job(8, 1, 8192), {100}).plan) == std::vector<std::int32_t>{8});
  CHECK(cps(planned_of(relax_job(4, 1, 8192), {100, 60, 40}).plan) ==
        std::vector<std::int32_t>{2});
  // Relax leaves 120 tokens on a rank of 100: the group must grow instead.
  const auto grown = planned_of(relax_job(4, 1, 100), {60, 60, 60, 60, 60, 60});
  for (const std::int32_t c : cps(grown.plan)) CHECK(c > 1);
  planned_of(relax_job(8, 1, 100), {150, 120, 120, 120, 120, 150});
}

TEST_CASE("Relax, verl#7553: sub-groups keep the budget on any batch, padded, after the division") {
  const std::uint64_t seed = seed_or(71);
  dyncp_test::random rng(seed);
  INFO("seed " << seed);
  for (std::int64_t round = count_or(60); round > 0; --round) {
    const std::int32_t max_cp = std::int32_t{1} << rng.between(0, 3);
    const std::int32_t dp = static_cast<std::int32_t>(rng.between(1, 3));
    const std::int64_t budget = 16 * rng.between(2, 20);
    const dyncp::problem job = relax_job(max_cp, dp, budget);
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = rng.between(1, 40); n > 0; --n) {
      lengths.push_back(rng.between(1, rng.one_in(3) ? budget * max_cp : budget));
    }
    planned_of(job, lengths);  // checks every promise, the limit among them
  }
}

TEST_CASE("a line per micro-batch, and a summary that says why cp is always the same") {
  const auto mix_of = [](const dyncp::problem& job, std::int32_t max_cp,
                         const std::vector<std::int64_t>& lengths) {
    dyncp::cp_mix mix(job.limits.max_tokens_per_rank, max_cp);
    mix.add(layout_of(planned_of(job, lengths).plan, lengths));
    return mix;
  };
  {
    const dyncp::problem job = relax_job(4, 2, 100);
    const std::vector<std::int64_t> lengths = {10, 20, 30, 40, 50, 60, 70, 80};
    const auto mix = mix_of(job, 4, lengths);
    CHECK(mix.always(1));
    const std::string text = mix.text();
    CHECK(text.find("cp 1: 8 packs, 8 sequences, 100 % of tokens") == 0);
    CHECK(text.find("always 1 because no sequence exceeds the budget") != std::string::npos);
    CHECK(text.find("80 of 100") != std::string::npos);
  }
  {
    const auto mix = mix_of(relax_job(4, 1, 100), 4, {350, 300, 290});
    CHECK(mix.always(4));
    CHECK(mix.text().find("longest sequence of most packs needs it") != std::string::npos);
    CHECK(mix.text().find("raise the budget to 148") != std::string::npos);
  }
  {
    const auto mix = mix_of(relax_job(4, 1, 100), 4, {10});
    CHECK(mix.always(4));
    CHECK(mix.text().find("fewer sequences than there are groups") != std::string::npos);
  }
  {
    const auto mix = mix_of(relax_job(4, 1, 100), 4, {90, 90, 90, 90, 350, 20});
    CHECK(!mix.always(1));
    CHECK(mix.text().find("because") == std::string::npos);
  }
  // 350 tokens in 8 shares are 352; two ranks hold 200. The pack of 10 was grown to fill the ranks
  // and is no reason for a budget, wherever it stands.
  for (const bool grown_first : {false, true}) {
    const dyncp::problem job = relax_job(4, 1, 100);
    dyncp::cp_mix mix(100, 4);
    for (const bool grown : {grown_first, !grown_first}) {
      const std::vector<std::int64_t> lengths = {grown ? 10 : 350};
      mix.add(layout_of(planned_of(job, lengths).plan, lengths));
    }
    REQUIRE(mix.always(4));
    CHECK(mix.text().find("shortest of these has 352 padded tokens, over 200 that cp 2 holds; "
                          "raise the budget to 176 ") != std::string::npos);
  }
  CHECK(dyncp::cp_mix(100, 4).text() == "no micro-batch yet");

  const dyncp::problem job = relax_job(4, 1, 100);
  const std::vector<std::int64_t> lengths = {350, 30, 30, 30, 30};
  const auto layout = layout_of(planned_of(job, lengths).plan, lengths);
  std::vector<std::string> lines;
  REQUIRE(dyncp::log_micro_batches(layout, 7, [&](const dyncp::log_line& line) {
    CHECK(line.component == "dynamic_cp");
    lines.emplace_back(line.text);
  }));
  REQUIRE(lines.size() == static_cast<std::size_t>(layout.num_micro_batches()));
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  CHECK(all.find("iteration 7 micro-batch 0: cp ") != std::string::npos);
  CHECK(all.find("sequences, ") != std::string::npos);
  const auto thrown = dyncp::log_micro_batches(
      layout, 7, [](const dyncp::log_line&) { throw std::runtime_error("pipe"); });
  REQUIRE(!thrown);
  CHECK(thrown.error().code == errc::callback_failed);
}

TEST_CASE(
    "verl#6280: two budgets have plans of their own, or share the training plan bit for bit") {
  const auto setup = make_relax_setup({.world_size = 8,
                                       .max_context = 800,
                                       .max_tokens_per_gpu = 200,
                                       .log_prob_max_tokens_per_gpu = 400,
                                       .per_token_loss = true});
  REQUIRE(setup);
  const dyncp::problem base = reference_problem({}, 1, 1, 1);
  dyncp::problem training = dyncp::relax_problem(*setup, base);
  const dyncp::problem log_probs = dyncp::relax_log_prob_problem(*setup, base);
  const std::vector<std::int64_t> rollouts = {790, 300, 250, 20, 30, 40, 390, 8};
  training.sequences = *dyncp::make_batch(rollouts);
  const auto planner = relax_planner(training);
  const auto own = dyncp::plan_passes(planner, training, log_probs);
  REQUIRE(own);
  CHECK(!own->shared());
  CHECK(own->log_probs().plan.max_tokens_per_rank == 400);
  CHECK(own->training().plan.max_tokens_per_rank == 200);
  CHECK(own->log_probs().plan.num_micro_batches() <= own->training().plan.num_micro_batches());
  const auto reused =
      dyncp::plan_passes(planner, training, log_probs, dyncp::plan_reuse::always);
  REQUIRE(reused);
  CHECK(reused->shared());
  CHECK(&reused->log_probs() == &reused->training());
  const auto equal = dyncp::plan_passes(planner, training, training);
  REQUIRE(equal);
  CHECK(equal->shared());
  const auto apart = dyncp::plan_passes(planner, training, training, dyncp::plan_reuse::never);
  REQUIRE(apart);
  CHECK(!apart->shared());
  CHECK(apart->log_probs().plan == apart->training().plan);
}

TEST_CASE("a data iterator in Relax mode, one for each budget, over the same rollouts") {
  const auto setup = make_relax_setup({.world_size = 4,
                                       .max_context = 400,
                                       .max_tokens_per_gpu = 100,
                                       .log_prob_max_tokens_per_gpu = 200,
                                       .per_token_loss = true});
  REQUIRE(setup);
  const auto lengths = some_lengths(20, 390, 72);
  const dyncp::problem base = reference_problem({}, 1, 1, 1);
  const dyncp::problem training = dyncp::relax_problem(*setup, base);
  const dyncp::problem log_probs = dyncp::relax_log_prob_problem(*setup, base);
  const auto results = run_pool({.ranks = 4}, [&](thread_pool& pool) -> dyncp::result<void> {
    auto first = dyncp::make_data_iterator(lengths, relax_planner(log_probs), log_probs,
                                           {.global_batch_size = 10}, make_sample);
    auto second = dyncp::make_data_iterator(lengths, relax_planner(training), training,
                                            {.global_batch_size = 10}, make_sample);
    for (int k = 0; k < 2; ++k) {
      auto scored = first.next(pool);
      if (!scored) return std::move(scored).error();
      auto trained = second.next(pool);
      if (!trained) return std::move(trained).error();
      const auto count = [](const auto& step) {
        return step.layout().num_sequences();
      };
      if (count(**scored) != 10 || count(**trained) != 10) return failed("sequences are missing");
      for (const auto& mb : (*trained)->plan().micro_batches) {
        for (const auto& pk : mb.packs) {
          if (pk.ranks.size != mb.packs.front().ranks.size) return failed("CP sizes are mixed");
        }
      }
    }
    return {};
  });
  CHECK(complaints(results) == "");
}
