// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parallel.hpp"

#include <dyncp/core/error.hpp>
#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/cpu/thread_world.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace megatron_style {

/// Runs `f(world, domain)` on a thread per rank of the job; both are backends of that rank, `world`
/// for the trainer's own messages, `domain` for the library's in the DPxCP domain of a stage.
///
/// Returns what failed, in the order of the ranks: empty when all is well. A rank that throws
/// leaves, and its peers get a typed error instead of an answer.
template <class F>
[[nodiscard]] std::vector<std::string> run_thread_ranks(const world_shape& shape, F f) {
  using dyncp::cpu::thread_backend;
  using dyncp::cpu::thread_world;
  thread_world all({.ranks = shape.ranks()});
  std::vector<std::unique_ptr<thread_world>> domains;
  for (std::int32_t d = 0; d < shape.stages * shape.tp; ++d) {
    domains.push_back(
        std::make_unique<thread_world>(dyncp::cpu::thread_world_options{.ranks = shape.domain}));
  }
  std::vector<std::string> failures(static_cast<std::size_t>(shape.ranks()));
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < shape.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const coordinates at = coordinates::of(rank, shape);
      thread_world& own = *domains[static_cast<std::size_t>(at.stage * shape.tp + at.tp)];
      {
        thread_backend world(all, rank);
        thread_backend domain(own, at.domain);
        try {
          f(world, domain);
        } catch (const std::exception& e) {
          failures[static_cast<std::size_t>(rank)] = e.what();
        }
        // What it sent and nobody took is withdrawn before the memory goes.
        own.leave(at.domain);
        all.leave(rank);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  std::erase(failures, std::string{});
  return failures;
}

}  // namespace megatron_style
