// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/lent_backend.hpp"
#include "conformance/runner.hpp"
#include "emulation/nccl.hpp"
#include "emulation/world.hpp"

#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/cpu/attention_rows.hpp>
#include <dyncp/cpu/plain_attention.hpp>
#include <dyncp/cuda/backend.hpp>
#include <dyncp/cuda/process_bootstrap.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// The CUDA backend on emulated GPUs: ranks, streams and what NCCL does in the background are fibers
// of one thread, in an order drawn from a seed, in virtual time.

namespace dyncp_test {

/// The CPU kernels on the streams of emulated GPUs: for tests in double of everything but kernels.
class host_kernels_on_streams {
 public:
  using device = dyncp::cuda::device;
  using stream = dyncp::cuda::stream;

  template <class T>
  result<void> forward(device&, stream s, const dyncp::attention_shape& shape,
                       const dyncp::attention_step& step, const dyncp::attention_operands<T>& in,
                       const dyncp::attention_partial<T>& out) {
    return run(s, [=] {
      dyncp::cpu::plain_attention().forward(shape, step.mask, step.segments, in, out);
    });
  }
  template <class T>
  result<void> merge(device&, stream s, const dyncp::attention_shape& shape,
                     const dyncp::attention_step& step, const dyncp::attention_partial<T>& part,
                     const dyncp::attention_partial<T>& total) {
    return run(s, [=] { dyncp::cpu::merge_partials<T>(shape, step.segments, part, total); });
  }
  template <class T>
  result<void> delta(device&, stream s, const dyncp::attention_shape& shape,
                     const dyncp::attention_step& step, dyncp::thd_view<const T> out,
                     dyncp::thd_view<const T> dout, dyncp::thd_view<dyncp::accumulator_t<T>> to) {
    return run(s, [=] {
      dyncp::cpu::attention_delta<T, T>(shape, step.segments, out, dout, to);
    });
  }
  template <class T>
  result<void> backward(device&, stream s, const dyncp::attention_shape& shape,
                        const dyncp::attention_step& step,
                        const dyncp::attention_gradients<T>& io) {
    return run(s, [=] {
      dyncp::cpu::plain_attention().backward(shape, step.mask, step.segments, io);
    });
  }
  template <class T>
  result<void> clear(device&, stream s, const dyncp::attention_shape& shape, std::int64_t rows,
                     const dyncp::attention_partial<T>& out) {
    return run(s, [=] { dyncp::cpu::clear_partial<T>(shape, rows, out); });
  }
  template <class Sum>
  result<void> add(device&, stream s, Sum* to, const Sum* from, std::int64_t n) {
    return run(s, [=] {
      for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
    });
  }
  template <class Sum, class T>
  result<void> convert(device&, stream s, std::int64_t rows, std::int64_t width,
                       dyncp::thd_view<const Sum> from, dyncp::thd_view<T> to) {
    return run(s, [=] { dyncp::cpu::convert_rows<T, Sum>(rows, width, from, to); });
  }
  result<void> supports(const dyncp::attention_shape& shape) const {
    return dyncp::validate(shape);
  }

 private:
  template <class F>
  result<void> run(stream s, F work) {
    dyncp_emulation::world::current()->enqueue(
        reinterpret_cast<dyncp_emulation::emulated_stream*>(s), std::move(work));
    return {};
  }
};

/// How an emulated rank is made.
struct local_kind {
  using backend = dyncp::cuda::local_backend;
  static constexpr bool nccl = false;
  dyncp::cuda::local_world world;

  local_kind(std::int32_t ranks, const dyncp::cuda::nccl_options& options)
      : world({ranks, options.deadline_us}) {}
  result<backend> make(std::int32_t rank) { return backend::create(world, {.rank = rank}); }
  [[nodiscard]] std::int64_t left_behind() const { return world.messages_in_flight(); }
};
struct nccl_kind {
  using backend = dyncp::cuda::nccl_backend;
  static constexpr bool nccl = true;
  dyncp::cuda::process_bootstrap board;
  dyncp::cuda::nccl_options options;

  nccl_kind(std::int32_t ranks, const dyncp::cuda::nccl_options& o)
      : board(ranks, o.deadline_us), options(o) {}
  result<backend> make(std::int32_t rank) {
    return backend::create({.ordinal = rank, .rank = rank}, board.of(rank), options);
  }
  [[nodiscard]] std::int64_t left_behind() const {
    return dyncp_emulation::nccl_live_communicators();
  }
};

/// Runs on emulated GPUs: one for all ranks of the local fabric, one for each of NCCL's.
template <class Kind, class Provider = host_kernels_on_streams, class Element = double>
class emulated_runner {
 public:
  using backend_type = lent_backend<typename Kind::backend>;
  using provider_type = Provider;
  using element_type = Element;

  /// Virtual time is cheap to wait for, but not free: a wait costs a few microseconds a tick.
  explicit emulated_runner(std::int32_t ranks, std::uint64_t seed = 1,
                           const dyncp::cuda::nccl_options& options = {.deadline_us = 200'000})
      : ranks_(ranks), seed_(seed), options_(options) {}

  [[nodiscard]] std::int32_t ranks() const { return ranks_; }
  [[nodiscard]] std::int32_t first_rank() const { return 0; }

  /// What each rank returned. Whatever it was, nothing is left behind and no GPU has a fault.
  template <class F>
  std::vector<result<void>> run_collect(F f) {
    dyncp_emulation::nccl_reset();
    const std::int32_t devices = Kind::nccl ? ranks_ : 1;
    dyncp_emulation::world world({.seed = seed_, .devices = devices});
    std::vector<result<void>> results(static_cast<std::size_t>(ranks_));
    arrived_ = 0;
    {
      Kind kind(ranks_, options_);
      world.run_ranks(ranks_, [&](std::int32_t rank) {
        results[static_cast<std::size_t>(rank)] = run_rank(kind, rank, f);
      });
      CHECK_MESSAGE(kind.left_behind() == 0, "messages or communicators are left behind");
    }
    if (!expect_misuse) {
      CHECK_MESSAGE(dyncp_emulation::nccl_misuse().empty(), dyncp_emulation::nccl_misuse());
    }
    CHECK_MESSAGE(world.first_fault().kind == dyncp_emulation::fault_kind::none,
                  world.first_fault().text);
    return results;
  }
  template <class F>
  void run(F f) {
    const auto results = run_collect(f);
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK_MESSAGE(results[r].has_value(),
                    "rank " << r << " of " << ranks_ << ", seed " << seed_ << ": "
                            << (results[r] ? "" : results[r].error().message()));
    }
  }
  /// A barrier beside the fabric.
  void meet() {
    const std::int64_t until = (arrived_++ / ranks_ + 1) * ranks_;
    static_cast<void>(
        dyncp_emulation::world::current()->wait_until([&] { return arrived_ >= until; }));
  }

  bool expect_misuse = false;

 private:
  template <class F>
  result<void> run_rank(Kind& kind, std::int32_t rank, F& f) {
    auto backend = backend_type::make(kind.make(rank));
    if (!backend) return std::move(backend).error();
    const std::int64_t before = backend->device().memory_in_use();
    result<void> done = f(*backend);
    if (done && backend->device().memory_in_use() != before) {
      return failed("device memory is in use after the last buffer is gone");
    }
    return done;
  }

  std::int32_t ranks_;
  std::uint64_t seed_;
  dyncp::cuda::nccl_options options_;
  std::int64_t arrived_ = 0;
};

}  // namespace dyncp_test
