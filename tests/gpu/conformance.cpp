// SPDX-License-Identifier: Apache-2.0
// The conformance suite on the GPU of this machine, with the kernels of the library: the in-process
// fabric with 2, 4 and 8 ranks, each a thread; NCCL with one rank, and with more where there are
// as many GPUs.
#include "conformance/exchange_suite.hpp"
#include "conformance/failure_suite.hpp"
#include "conformance/lent_backend.hpp"
#include "conformance/ring_suite.hpp"
#include "conformance/runner.hpp"
#include "conformance/split_merge_suite.hpp"
#include "gpu/self_exchange.hpp"

#include <dyncp/cuda/backend.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/fabric_abi.hpp>
#include <dyncp/cuda/library.hpp>
#include <dyncp/cuda/process_bootstrap.hpp>
#include <dyncp/runtime/group_pool.hpp>

#include <doctest/doctest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using dyncp::result;
using dyncp_test::cuda_kernels;
using dyncp_test::lent_backend;

constexpr std::int64_t deadline_us = 20'000'000;

/// Ranks are threads; each has its backend on a GPU for the length of one run.
template <class Base>
class gpu_runner {
 public:
  using backend_type = lent_backend<Base>;
  using provider_type = cuda_kernels;
  using element_type = float;

  explicit gpu_runner(std::int32_t ranks, std::int64_t limit_us = deadline_us)
      : ranks_(ranks), limit_us_(limit_us) {}
  [[nodiscard]] std::int32_t ranks() const { return ranks_; }
  [[nodiscard]] std::int32_t first_rank() const { return 0; }
  void meet() { everyone_->arrive_and_wait(); }

  template <class F>
  std::vector<result<void>> run_collect(F f) {
    std::vector<result<void>> results(static_cast<std::size_t>(ranks_));
    std::barrier<> everyone(ranks_);
    everyone_ = &everyone;
    dyncp::cuda::local_world world({ranks_, limit_us_});
    const dyncp::cuda::process_bootstrap board(ranks_, limit_us_);
    std::vector<std::thread> threads;
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        result<void>& out = results[static_cast<std::size_t>(rank)];
        try {
          out = run_rank(world, board, rank, f);
        } catch (const std::exception& e) {
          out = dyncp_test::failed(e.what());
        }
      });
    }
    for (std::thread& t : threads) t.join();
    return results;
  }
  template <class F>
  void run(F f) {
    const auto results = run_collect(f);
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK_MESSAGE(results[r].has_value(), "rank " << r << " of " << ranks_ << ": "
                                                    << (results[r] ? ""
                                                                   : results[r].error().message()));
    }
  }

 private:
  template <class F>
  result<void> run_rank(dyncp::cuda::local_world& world,
                        const dyncp::cuda::process_bootstrap& board, std::int32_t rank, F& f) {
    auto backend = [&] {
      if constexpr (std::is_same_v<Base, dyncp::cuda::local_backend>) {
        return backend_type::make(Base::create(world, {.rank = rank}));
      } else {
        return backend_type::make(Base::create({.ordinal = rank, .rank = rank}, board.of(rank),
                                               {.deadline_us = limit_us_}));
      }
    }();
    if (!backend) return std::move(backend).error();
    const std::int64_t before = backend->device().memory_in_use();
    DYNCP_TRY(f(*backend));
    if (backend->device().memory_in_use() != before) {
      return dyncp_test::failed("device memory is in use after the last buffer is gone");
    }
    return {};
  }

  std::int32_t ranks_;
  std::int64_t limit_us_;
  std::barrier<>* everyone_ = nullptr;
};

constexpr dyncp::pool_strategy strategies[] = {dyncp::pool_strategy::logical,
                                               dyncp::pool_strategy::split};

template <class Runner>
void check_fabric(Runner& runner) {
  for (auto strategy : strategies) {
    dyncp_test::check_exchanges(runner, strategy);
    dyncp_test::check_pool(runner, strategy);
  }
  dyncp_test::check_order(runner);
  dyncp_test::check_empty_messages(runner);
  dyncp_test::check_refused_exchanges(runner);
  dyncp_test::check_collectives(runner);
  dyncp_test::check_disagreement(runner);
  dyncp_test::check_pool_sizes(runner);
  dyncp_test::check_generations(runner);
  dyncp_test::check_pool_disagreement(runner);
}

template <class Runner>
void check_rings(Runner& runner, std::int64_t rounds) {
  dyncp_test::check_mixed_groups(runner);
  dyncp_test::check_logical_groups(runner);
  dyncp_test::check_random_batches(runner, rounds);
  dyncp_test::check_repeatable(runner);
  dyncp_test::check_cross_attention(runner);
  dyncp_test::check_ring_refusals(runner);
  dyncp_test::check_ring_disagreement(runner);
  dyncp_test::check_ring_bytes(runner);
  for (std::int32_t head_dim : {64, 128}) dyncp_test::check_bfloat16(runner, head_dim);
}

template <class Runner>
void check_rows(Runner& runner, std::int64_t rounds) {
  dyncp_test::check_random_plans(runner, rounds);
  dyncp_test::check_split_merge_failures(runner);
  dyncp_test::check_layout_vectors(runner);
  dyncp_test::check_merge_gradients(runner, rounds);
  dyncp_test::check_router_refusals(runner);
}

/// GPUs of this machine.
std::int32_t gpus() {
  std::int32_t n = 0;
  while (n < 8 && dyncp::cuda::device::open({.ordinal = n})) ++n;
  return n;
}

}  // namespace

template <class F>
void for_each_world(F f) {
  for (std::int32_t ranks : {2, 4, 8}) {
    INFO(ranks << " ranks");
    gpu_runner<dyncp::cuda::local_backend> runner(ranks);
    f(runner);
  }
}

TEST_CASE("exchanges between threads on one GPU") {
  for_each_world([](auto& runner) { check_fabric(runner); });
}
TEST_CASE("rings over threads on one GPU") {
  for_each_world([](auto& runner) { check_rings(runner, dyncp_test::count_or(4)); });
}
TEST_CASE("split, merge and reroute over threads on one GPU") {
  for_each_world([](auto& runner) { check_rows(runner, dyncp_test::count_or(3)); });
}

TEST_CASE("when a rank goes wrong") {
  gpu_runner<dyncp::cuda::local_backend> runner(2, 500'000);
  dyncp_test::check_missing_rank(runner);
  dyncp_test::check_wrong_size(runner);
  dyncp_test::check_one_sided(runner);
  dyncp_test::check_declared_failure(runner);
}

TEST_CASE("inputs on which other implementations failed") {
  gpu_runner<dyncp::cuda::local_backend> runner(4);
  dyncp_test::check_ring_failures(runner);
}

TEST_CASE("NCCL") {
  if (dyncp::cuda::loaded_library().nccl_version == 0) {
    MESSAGE("the library was built without NCCL");
    return;
  }
  const std::int32_t most = gpus();
  for (std::int32_t ranks = 1; ranks <= most; ranks *= 2) {
    INFO(ranks << " ranks");
    gpu_runner<dyncp::cuda::nccl_backend> runner(ranks);
    check_fabric(runner);
    check_rings(runner, 2);
    check_rows(runner, 2);
  }
  MESSAGE("NCCL ran with up to " << most << " ranks");
}

TEST_CASE("NCCL: an id, a communicator and a split of one rank, and their end") {
  if (dyncp::cuda::loaded_library().nccl_version == 0) return;
  gpu_runner<dyncp::cuda::nccl_backend> runner(1);
  runner.run([](auto& backend) -> result<void> {
    auto& fabric = backend.fabric();
    for (std::uint64_t family = 1; family <= 2; ++family) {
      auto all = fabric.open();
      if (!all) return std::move(all).error();
      auto child = fabric.split(*all, 0, 0);
      if (!child) return std::move(child).error();
      if (all->family() != family || child->size() != 1 || child->native() == nullptr) {
        return dyncp_test::failed("a communicator of one rank");
      }
      fabric.close(*child);
      fabric.close(*all);
    }
    auto lost = fabric.open();
    if (!lost) return std::move(lost).error();
    fabric.fail(*lost, dyncp::make_error(dyncp::errc::callback_failed, "stop"));
    const auto refused = fabric.health(*lost);
    if (refused || refused.error().code != dyncp::errc::aborted) {
      return dyncp_test::failed("an aborted communicator is healthy");
    }
    fabric.close(*lost);
    return {};
  });
}

TEST_CASE("NCCL: grouped messages of a rank to itself, over two streams") {
  if (dyncp::cuda::loaded_library().nccl_version == 0) return;
  constexpr std::int64_t most = 1 << 20;
  auto gpu = dyncp::cuda::device::open({}).value();
  // What a stream has in flight, in memory of its own.
  struct lane {
    dyncp::cuda::device::owned_stream stream;
    dyncp::cuda::device::buffer from, to;
    dyncp::cuda::device::staging sent, got;
    std::int64_t bytes = 0;
  };
  std::vector<lane> lanes;
  for (int i = 0; i < 2; ++i) {
    lanes.push_back({gpu.make_stream().value(), gpu.allocate(most).value(),
                     gpu.allocate(most).value(), gpu.allocate_staging(most).value(),
                     gpu.allocate_staging(most).value()});
  }
  const auto finish = [&gpu](lane& x) {
    const std::int64_t begin = dyncp::cuda::abi::clock_us();
    for (std::int64_t round = 0; !gpu.poll(x.stream.get()).value(); ++round) {
      REQUIRE(dyncp::cuda::abi::clock_us() - begin < deadline_us);
      dyncp::cuda::abi::pause(round);
    }
    CHECK(std::memcmp(x.sent.data(), x.got.data(), static_cast<std::size_t>(x.bytes)) == 0);
  };
  dyncp_test::self_exchange self(gpu);
  REQUIRE(self.open());
  const std::int64_t sizes[] = {1, 255, 4096, 100'003, most};
  for (int i = 0; i < 400; ++i) {
    lane& x = lanes[static_cast<std::size_t>(i % 2)];
    finish(x);  // of two rounds before
    x.bytes = sizes[i % 5];
    auto* const bytes = static_cast<std::uint8_t*>(x.sent.data());
    for (std::int64_t k = 0; k < x.bytes; ++k) {
      bytes[k] = static_cast<std::uint8_t>(7 * i + k + k / 251);
    }
    const auto s = x.stream.get();
    REQUIRE(gpu.fill_zero(x.to.data(), x.bytes, s));
    REQUIRE(gpu.upload(x.from.data(), x.sent.data(), x.bytes, s));
    REQUIRE(self.exchange(x.to.data(), x.from.data(), x.bytes, s));
    REQUIRE(gpu.download(x.got.data(), x.to.data(), x.bytes, s));
  }
  for (lane& x : lanes) finish(x);
}
