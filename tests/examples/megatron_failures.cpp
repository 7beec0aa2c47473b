// SPDX-License-Identifier: Apache-2.0
// Ranks of the example's trainer that read, plan or compute something else than the others.
#include "megatron_style/demos.hpp"
#include "megatron_style/run_rank.hpp"
#include "megatron_style/thread_ranks.hpp"

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

using namespace megatron_style;

namespace {

run_options small_run(const world_shape& world) {
  demo_options demo;
  demo.world = world;
  demo.static_cp = 2;
  demo.steps = 3;
  demo.batch = 6;
  return make_run(demo, 80, 48);
}

/// Trains with options of its own on each rank; all must end with one error, which is returned.
template <class OptionsOf>
dyncp::error common_error(const world_shape& world, OptionsOf options_of) {
  using backend = dyncp::cpu::thread_backend;
  std::mutex mutex;
  std::vector<dyncp::error> errors;
  const auto failures = run_thread_ranks(world, [&](backend& all, backend& domain) {
    const run_options options = options_of(coordinates::of(all.fabric().rank(), world));
    try {
      static_cast<void>(run_rank<double>(all, domain, options, nullptr));
    } catch (const dyncp::bad_result& e) {
      const std::lock_guard lock(mutex);
      errors.push_back(e.error());
    }
  });
  CHECK(failures == std::vector<std::string>{});
  REQUIRE(errors.size() == static_cast<std::size_t>(world.ranks()));
  for (const dyncp::error& e : errors) {
    CHECK(dyncp::to_string(e.code) == dyncp::to_string(errors[0].code));
    CHECK(e.message() == errors[0].message());
  }
  return errors[0];
}

token_sample unreadable(const sample& s, std::int32_t vocabulary) {
  if (s.id >= 6) throw std::runtime_error("no such file");  // in the second step
  return load(s, vocabulary);
}

constexpr world_shape worlds[] = {{2, 2, 1, 1}, {2, 2, 2, 2}, {2, 4, 1, 1}};

}  // namespace

TEST_CASE("a loader that throws on the last stage alone ends the step on all ranks alike") {
  for (const world_shape& world : worlds) {
    const dyncp::error e = common_error(world, [&](const coordinates& at) {
      run_options o = small_run(world);
      if (at.stage == world.stages - 1) o.read = unreadable;
      return o;
    });
    CHECK(e.code == dyncp::errc::callback_failed);
    CHECK_MESSAGE(e.what.find("no such file") != std::string::npos, e.what);
  }
}

TEST_CASE("a batch that the last stage alone cannot plan ends the step on all ranks alike") {
  for (const world_shape& world : worlds) {
    const dyncp::error e = common_error(world, [&](const coordinates& at) {
      run_options o = small_run(world);
      if (at.stage == world.stages - 1) o.samples[7].length = 1000;
      return o;
    });
    CHECK(e.code == dyncp::errc::sequence_too_long);
    CHECK_MESSAGE(e.what.find("sequence 7 has 1000 tokens") != std::string::npos, e.what);
  }
}

TEST_CASE("plans of the first and the last stage that differ are found before the step") {
  for (const world_shape& world : worlds) {
    const dyncp::error e = common_error(world, [&](const coordinates& at) {
      run_options o = small_run(world);
      o.plan_by = at.stage == world.stages - 1 ? scheduler::packing_only : scheduler::dynamic_cp;
      return o;
    });
    CHECK(e.code == dyncp::errc::mismatch);
    CHECK_MESSAGE(e.what.find("the plans of iteration 0 differ") != std::string::npos, e.what);
  }
}

TEST_CASE("data that ends earlier on the last stage is found before the step") {
  for (const world_shape& world : worlds) {
    const dyncp::error e = common_error(world, [&](const coordinates& at) {
      run_options o = small_run(world);
      if (at.stage == world.stages - 1) o.samples.resize(12);
      return o;
    });
    CHECK(e.code == dyncp::errc::mismatch);
    CHECK_MESSAGE(e.what.find("the plans of iteration 2 differ") != std::string::npos, e.what);
  }
}

TEST_CASE("a loss that is no number is not equal to the reference's") {
  run_options options = small_run({2, 2, 1, 1});
  options.learning_rate = std::numeric_limits<double>::quiet_NaN();
  const reference<double> sound = make_reference<double>(small_run({2, 2, 1, 1}));
  const run_result run = run_threads<double>(options, &sound);
  REQUIRE(run.failures == std::vector<std::string>{});
  REQUIRE(std::isnan(run.steps.back().report.loss));
  CHECK(run.worst().loss == std::numeric_limits<double>::infinity());
  CHECK(run.worst().gradient == std::numeric_limits<double>::infinity());
}
