// SPDX-License-Identifier: Apache-2.0
// What the NCCL fabric offers beyond the suite of all fabrics: bootstraps, communicators of the
// trainer, memory, versions.
#include "conformance/emulated_runner.hpp"
#include "conformance/exchange_suite.hpp"
#include "conformance/failure_suite.hpp"
#include "emulation/nccl.hpp"
#include "emulation/world.hpp"

#include <dyncp/cuda/backend.hpp>
#include <dyncp/cuda/file_bootstrap.hpp>
#include <dyncp/cuda/library.hpp>
#include <dyncp/cuda/nccl_fabric.hpp>
#include <dyncp/cuda/process_bootstrap.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

using namespace dyncp;
using dyncp_emulation::world;
using backend_type = dyncp_test::lent_backend<cuda::nccl_backend>;
using pool_type = group_pool<backend_type>;

namespace {

constexpr std::int64_t deadline_us = 50'000;

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

result<backend_type> create(const cuda::device_options& device, const cuda::bootstrap& connection,
                            const cuda::nccl_options& options = {.deadline_us = deadline_us}) {
  return backend_type::make(cuda::nccl_backend::create(device, connection, options));
}
result<backend_type> adopt(const cuda::device_options& device, ncclComm_t comm,
                           const cuda::nccl_options& options = {.deadline_us = deadline_us},
                           const cuda::bootstrap& connection = {}) {
  return backend_type::make(cuda::nccl_backend::adopt(device, comm, options, connection));
}

std::int64_t arrived = 0;

/// A barrier beside the fabric: nobody fails on purpose while another one is in a call still.
void everyone(std::int64_t ranks) {
  const std::int64_t until = (arrived++ / ranks + 1) * ranks;
  static_cast<void>(world::current()->wait_until([&] { return arrived >= until; }));
}

/// f(rank) on `ranks` GPUs; nothing stays behind.
void run(std::int32_t ranks, const std::function<void(std::int32_t)>& f) {
  dyncp_emulation::nccl_reset();
  arrived = 0;
  world w({.seed = 5, .devices = ranks});
  w.run_ranks(ranks, f);
  CHECK_MESSAGE(w.first_fault().kind == dyncp_emulation::fault_kind::none, w.first_fault().text);
  CHECK_MESSAGE(dyncp_emulation::nccl_misuse().empty(), dyncp_emulation::nccl_misuse());
}

result<void> meet_on(pool_type& pool) {
  auto channel = pool.channel(pool.everyone());
  return barrier(channel);
}

/// A communicator as a trainer makes one.
ncclComm_t trainers(std::int32_t rank, std::int32_t ranks, bool blocking) {
  static ncclUniqueId id;
  static bool made = false;
  REQUIRE(cudaSetDevice(rank) == cudaSuccess);
  if (rank == 0) {
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    made = true;
  }
  static_cast<void>(world::current()->wait_until([] { return made; }));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t begun = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  REQUIRE((begun == ncclSuccess || begun == ncclInProgress));
  for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
    REQUIRE(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    world::current()->pause();
  }
  made = false;
  return comm;
}

class folder {
 public:
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "dyncp-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("versions of NCCL: the same major one, not older than the headers") {
  CHECK(cuda::check_nccl(22809, 22809));
  CHECK(cuda::check_nccl(22809, 22900));
  for (const std::int64_t running : {22808, 0, 30100}) {
    const auto refused = cuda::check_nccl(22809, running);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == errc::mismatch);
    CHECK(refused.error().value == running);
    CHECK(refused.error().limit == 22809);
  }
  const auto absent = cuda::check_nccl(0, 0);
  REQUIRE_FALSE(absent.has_value());
  CHECK(absent.error().code == errc::unsupported);
  CHECK(cuda::loaded_library().nccl_version == NCCL_VERSION_CODE);
}

TEST_CASE("bootstrap by a common folder, and notices of failures through it") {
  const folder here;
  run(4, [&](std::int32_t rank) {
    auto backend = create(
        {.ordinal = rank, .rank = rank},
        cuda::file_bootstrap({here / "job", rank, 4, deadline_us, 1000}),
        {.deadline_us = deadline_us});
    REQUIRE(backend.has_value());
    for (std::uint64_t generation = 1; generation <= 2; ++generation) {
      auto pool = pool_type::create(*backend, {.strategy = pool_strategy::split});
      REQUIRE_MESSAGE(pool.has_value(), pool.error().message());
      CHECK(pool->generation() == generation);
      CHECK(meet_on(*pool));
      everyone(4);
      if (rank == 2) {
        pool->fail(make_error(errc::callback_failed, "the loader of rank 2 stopped"));
      }
      CHECK(dyncp_test::wait_for_failure(*pool));
      const auto refused = meet_on(*pool);
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().code == errc::aborted);
      CHECK(contains(refused.error().what, "rank 2 failed first: the loader of rank 2 stopped"));
    }
  });
  CHECK(dyncp_emulation::nccl_live_communicators() == 0);
}

TEST_CASE("a folder that another run has used, or that is none, is refused") {
  const folder here;
  std::FILE* const old = std::fopen((here / "job.id0").c_str(), "wb");
  REQUIRE(old != nullptr);
  std::fclose(old);
  run(1, [&](std::int32_t) {
    for (const std::string& path : {here / "job", here / "nowhere/job"}) {
      std::vector<std::byte> id(132);
      const auto done = cuda::file_bootstrap({path, 0, 2, deadline_us, 0}).broadcast(id);
      REQUIRE_FALSE(done.has_value());
      CHECK(done.error().code == errc::io_error);
      CHECK(contains(done.error().what, path.c_str()));
    }
    // Rank 0 never came.
    std::vector<std::byte> id(132);
    const auto done = cuda::file_bootstrap({here / "other", 1, 2, deadline_us, 0}).broadcast(id);
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == errc::timeout);
    // Rank 0 sent something else.
    const auto short_one = cuda::file_bootstrap({here / "job", 1, 2, deadline_us, 0}).broadcast(id);
    REQUIRE_FALSE(short_one.has_value());
    CHECK(short_one.error().code == errc::mismatch);
  });
}

TEST_CASE("bootstrap by a function of the caller, whose failures are results") {
  std::vector<std::byte> store;
  int sent = 0;
  run(2, [&](std::int32_t rank) {
    cuda::bootstrap mine;
    mine.rank = rank;
    mine.ranks = 2;
    int turn = 0;
    mine.broadcast = [&](std::span<std::byte> data) -> result<void> {
      ++turn;
      if (rank == 0) {
        store.assign(data.begin(), data.end());
        ++sent;
      } else {
        static_cast<void>(world::current()->wait_until([&] { return sent >= turn; }));
        std::copy(store.begin(), store.end(), data.begin());
      }
      return {};
    };
    auto backend = create({.ordinal = rank, .rank = rank}, mine,
                                        {.deadline_us = deadline_us});
    REQUIRE(backend.has_value());
    auto pool = pool_type::create(*backend, {});
    REQUIRE_MESSAGE(pool.has_value(), pool.error().message());
    CHECK(meet_on(*pool));
  });
  run(1, [](std::int32_t) {
    cuda::bootstrap broken{.rank = 0, .ranks = 2};
    auto refused = create({}, broken);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == errc::invalid_argument);
    broken.broadcast = [](std::span<std::byte>) -> result<void> {
      throw std::runtime_error("the store is gone");
    };
    auto backend = create({}, broken);
    REQUIRE(backend.has_value());
    auto pool = pool_type::create(*backend, {});
    REQUIRE_FALSE(pool.has_value());
    CHECK(pool.error().code == errc::callback_failed);
    CHECK(contains(pool.error().what, "the store is gone"));
    broken.broadcast = [](std::span<std::byte>) -> result<void> {
      return make_error(errc::io_error, "no such key");
    };
    backend = create({}, broken);
    REQUIRE(backend.has_value());
    CHECK(pool_type::create(*backend, {}).error().code == errc::io_error);
  });
}

TEST_CASE("without anyone to tell, a failure is found by the deadline") {
  const cuda::process_bootstrap board(2, deadline_us);
  run(2, [&](std::int32_t rank) {
    cuda::bootstrap quiet = board.of(rank);
    quiet.tell = nullptr;
    quiet.hear = nullptr;
    auto backend =
        create({.ordinal = rank, .rank = rank}, quiet, {.deadline_us = deadline_us});
    REQUIRE(backend.has_value());
    auto pool = pool_type::create(*backend, {});
    REQUIRE(pool.has_value());
    everyone(2);
    if (rank == 0) {
      pool->fail(make_error(errc::callback_failed, "stop"));
      return;
    }
    const auto done = meet_on(*pool);
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == errc::timeout);
  });
  CHECK(dyncp_emulation::nccl_live_communicators() == 0);
}

TEST_CASE("on the trainer's communicator: split from it, or itself") {
  for (const bool blocking : {false, true}) {
    for (const auto adopted :
         {cuda::adoption::child, cuda::adoption::direct, cuda::adoption::direct_may_abort}) {
      INFO("blocking " << blocking << ", adoption " << static_cast<int>(adopted));
      run(4, [&](std::int32_t rank) {
        const ncclComm_t comm = trainers(rank, 4, blocking);
        {
          auto backend = adopt({.ordinal = rank, .rank = rank}, comm,
                                             {.deadline_us = deadline_us, .adopted = adopted});
          REQUIRE_MESSAGE(backend.has_value(), backend.error().message());
          CHECK(backend->fabric().rank() == rank);
          CHECK(backend->fabric().ranks() == 4);
          for (int generation = 0; generation < 2; ++generation) {
            auto pool = pool_type::create(*backend, {.strategy = pool_strategy::split});
            REQUIRE_MESSAGE(pool.has_value(), pool.error().message());
            CHECK(meet_on(*pool));
          }
          auto root = backend->fabric().open();
          REQUIRE(root.has_value());
          CHECK((root->native() == comm) == (adopted != cuda::adoption::child));
          auto second = backend->fabric().open();
          CHECK(second.has_value() == (adopted == cuda::adoption::child));
          if (second) backend->fabric().close(*second);
          backend->fabric().close(*root);
        }
        // It is the trainer's still.
        ncclResult_t state = ncclInternalError;
        CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
        CHECK(state == ncclSuccess);
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
      });
      CHECK(dyncp_emulation::nccl_live_communicators() == 0);
    }
  }
}

TEST_CASE("after a failure the trainer's communicator is left alone, unless the caller said so") {
  for (const auto adopted :
       {cuda::adoption::child, cuda::adoption::direct, cuda::adoption::direct_may_abort}) {
    INFO("adoption " << static_cast<int>(adopted));
    const cuda::process_bootstrap board(2, deadline_us);
    run(2, [&](std::int32_t rank) {
      const ncclComm_t comm = trainers(rank, 2, false);
      {
        auto backend =
            adopt({.ordinal = rank, .rank = rank}, comm,
                                {.deadline_us = deadline_us, .adopted = adopted}, board.of(rank));
        REQUIRE(backend.has_value());
        {
          auto pool = pool_type::create(*backend, {});
          REQUIRE(pool.has_value());
          CHECK(meet_on(*pool));
          everyone(2);
          if (rank == 0) pool->fail(make_error(errc::callback_failed, "stop"));
          CHECK(dyncp_test::wait_for_failure(*pool));
        }
        auto next = pool_type::create(*backend, {});
        if (adopted == cuda::adoption::child) {
          REQUIRE_MESSAGE(next.has_value(), next.error().message());
          CHECK(meet_on(*next));
        } else {
          REQUIRE_FALSE(next.has_value());
          CHECK(next.error().code == errc::unsupported);
        }
      }
      if (adopted == cuda::adoption::direct_may_abort) return;
      ncclResult_t state = ncclInternalError;
      CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
      CHECK(state == ncclSuccess);
      CHECK(ncclCommDestroy(comm) == ncclSuccess);
    });
    CHECK(dyncp_emulation::nccl_live_communicators() == 0);
  }
}

TEST_CASE("a communicator of another GPU, or none, is refused") {
  run(2, [&](std::int32_t rank) {
    const ncclComm_t comm = trainers(rank, 2, false);
    const auto other = adopt({.ordinal = 1 - rank, .rank = rank}, comm);
    REQUIRE_FALSE(other.has_value());
    CHECK(other.error().code == errc::invalid_argument);
    CHECK(other.error().value == rank);
    CHECK(other.error().limit == 1 - rank);
    const auto none = adopt({.ordinal = rank, .rank = rank}, nullptr);
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().code == errc::invalid_argument);
    REQUIRE(cudaSetDevice(rank) == cudaSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  });
}

TEST_CASE("pools tell the memory of their communicators; logical ones have one, and give it back") {
  const cuda::process_bootstrap board(8, deadline_us);
  run(8, [&](std::int32_t rank) {
    auto backend = create({.ordinal = rank, .rank = rank}, board.of(rank),
                                        {.deadline_us = deadline_us});
    REQUIRE(backend.has_value());
    std::vector<double> mebibytes;
    for (const auto strategy : {pool_strategy::logical, pool_strategy::split}) {
      auto pool = pool_type::create(*backend, {.strategy = strategy});
      REQUIRE(pool.has_value());
      CHECK(backend->fabric().memory_in_use() > 0);
      double sum = 0;
      for (const group_cost& c : pool->costs()) sum += c.mebibytes;
      mebibytes.push_back(sum);
    }
    // Two splits of 4 MiB each, and their connections.
    CHECK(mebibytes[1] >= mebibytes[0] + 8);
    CHECK(backend->fabric().memory_in_use() == 0);
    auto limited = pool_type::create(
        *backend, {.strategy = pool_strategy::split, .memory_limit_bytes = 1 << 20});
    REQUIRE_FALSE(limited.has_value());
    CHECK((limited.error().code == errc::out_of_memory || limited.error().code == errc::aborted));
  });
}

TEST_CASE("host messages of every length") {
  const cuda::process_bootstrap board(2, deadline_us);
  run(2, [&](std::int32_t rank) {
    auto backend = create({.ordinal = rank, .rank = rank}, board.of(rank),
                                        {.deadline_us = deadline_us});
    REQUIRE(backend.has_value());
    auto pool = pool_type::create(*backend, {});
    REQUIRE(pool.has_value());
    // Around what fits beside the head, and around pieces.
    for (const std::int64_t bytes : {1, 247, 248, 249, 16384, 16631, 16632, 16633, 33016, 33017}) {
      std::vector<std::uint8_t> out(static_cast<std::size_t>(bytes));
      std::vector<std::uint8_t> in(static_cast<std::size_t>(bytes + 100));
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = dyncp_test::message_byte(rank, 1 - rank, bytes, static_cast<std::int64_t>(i));
      }
      // Longer one way than the other.
      const std::int64_t mine = rank == 0 ? bytes : (bytes + 1) / 2;
      const std::int64_t theirs = rank == 0 ? (bytes + 1) / 2 : bytes;
      const outgoing o{1 - rank, out.data(), mine};
      const incoming i{1 - rank, in.data(), theirs};
      REQUIRE(pool->exchange_host(pool->everyone(), {&o, 1}, {&i, 1}));
      bool right = true;
      for (std::int64_t k = 0; k < theirs; ++k) {
        right = right && in[static_cast<std::size_t>(k)] ==
                             dyncp_test::message_byte(1 - rank, rank, bytes, k);
      }
      CHECK_MESSAGE(right, bytes << " bytes");
      CHECK(in[static_cast<std::size_t>(theirs)] == 0);
    }
  });
}

TEST_CASE("host messages with every other rank at once take no new memory") {
  const cuda::process_bootstrap board(5, deadline_us);
  run(5, [&](std::int32_t rank) {
    auto backend = create({.ordinal = rank, .rank = rank}, board.of(rank));
    REQUIRE(backend.has_value());
    auto pool = pool_type::create(*backend, {});
    REQUIRE(pool.has_value());
    everyone(5);
    const std::int64_t before = world::current()->memory().allocations();
    std::vector<std::int32_t> words(5);
    std::vector<outgoing> out;
    std::vector<incoming> in;
    for (std::int32_t peer = 0; peer < 5; ++peer) {
      if (peer == rank) continue;
      out.push_back({peer, &rank, sizeof rank});
      in.push_back({peer, &words[static_cast<std::size_t>(peer)], sizeof rank});
    }
    REQUIRE(pool->exchange_host(pool->everyone(), out, in));
    for (const incoming& m : in) CHECK(*static_cast<const std::int32_t*>(m.data) == m.peer);
    everyone(5);
    CHECK(world::current()->memory().allocations() == before);
  });
}

TEST_CASE("the others hear of a failure before anything is aborted") {
  const cuda::process_bootstrap board(2, deadline_us);
  std::int64_t alive = 0;
  run(2, [&](std::int32_t rank) {
    cuda::bootstrap connection = board.of(rank);
    connection.tell = [&, tell = connection.tell](const cuda::failure_notice& notice) {
      alive = dyncp_emulation::nccl_live_communicators();
      tell(notice);
    };
    auto backend = create({.ordinal = rank, .rank = rank}, connection);
    REQUIRE(backend.has_value());
    auto pool = pool_type::create(*backend, {});
    REQUIRE(pool.has_value());
    everyone(2);
    if (rank == 0) pool->fail(make_error(errc::callback_failed, "stop"));
    CHECK(dyncp_test::wait_for_failure(*pool));
  });
  CHECK(alive == 2);
  CHECK(dyncp_emulation::nccl_live_communicators() == 0);
}

TEST_CASE("a split waits for the exchanges before it") {
  const cuda::process_bootstrap board(2, deadline_us);
  run(2, [&](std::int32_t rank) {
    auto backend = create({.ordinal = rank, .rank = rank}, board.of(rank));
    REQUIRE(backend.has_value());
    auto& fabric = backend->fabric();
    auto all = fabric.open();
    REQUIRE(all.has_value());
    const auto s = backend->device().comm_stream();
    auto memory = backend->device().allocate(16);
    REQUIRE(memory.has_value());
    REQUIRE(backend->device().fill_zero(memory->data(), 16, s));
    const outgoing out{1 - rank, memory->data(), 8};
    const incoming in{1 - rank, static_cast<char*>(memory->data()) + 8, 8};
    for (int i = 0; i < 5; ++i) {
      for (int k = 0; k < 4; ++k) REQUIRE(fabric.exchange(*all, {&out, 1}, {&in, 1}, s));
      auto child = fabric.split(*all, 0, rank);
      REQUIRE_MESSAGE(child.has_value(), child.error().message());
      fabric.close(*child);
    }
    CHECK(fabric.synchronize(s));
    fabric.close(*all);
  });
}

TEST_CASE("a split without a color is refused") {
  run(1, [&](std::int32_t) {
    auto backend = create({}, {});
    REQUIRE(backend.has_value());
    auto comm = backend->fabric().open();
    REQUIRE(comm.has_value());
    const auto refused = backend->fabric().split(*comm, -1, 0);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == errc::invalid_argument);
    CHECK(backend->fabric().health(*comm));
    backend->fabric().close(*comm);
  });
}
