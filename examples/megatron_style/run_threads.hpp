// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dense_run.hpp"
#include "run.hpp"
#include "run_rank.hpp"
#include "thread_ranks.hpp"

#include <dyncp/cpu/thread_backend.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

// The definitions of the templates of run.hpp: run_double.cpp and run_float.cpp instantiate them.

namespace megatron_style {

template <class T>
reference<T> make_reference(const run_options& options) {
  dense_run<T> dense(options.model);
  parameter_set<T>& p = dense.parameters();
  descent<T> optimizer(p, options.learning_rate, options.momentum);
  reference<T> out;
  out.parameters.assign(p.all().begin(), p.all().end());
  const std::span<const sample> all(options.samples);
  const auto size = static_cast<std::size_t>(options.global_batch_size);
  for (std::size_t begin = 0; begin < all.size(); begin += size) {
    out.losses.push_back(dense.run(all.subspan(begin, std::min(size, all.size() - begin))));
    out.gradients.emplace_back(p.gradients().begin(), p.gradients().end());
    optimizer.step();
  }
  return out;
}

template <class T>
run_result run_threads(const run_options& options, const reference<T>* compare) {
  run_result out;
  using backend = dyncp::cpu::thread_backend;
  out.failures = run_thread_ranks(options.world, [&](backend& world, backend& domain) {
    std::vector<step_result> steps = run_rank<T>(world, domain, options, compare);
    if (world.fabric().rank() == 0) out.steps = std::move(steps);
  });
  return out;
}

}  // namespace megatron_style
