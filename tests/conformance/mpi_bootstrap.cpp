// SPDX-License-Identifier: Apache-2.0
// How the NCCL fabric finds its ranks by MPI: every process runs this program. No GPU is needed.
#include <dyncp/cuda/mpi_bootstrap.hpp>

#include <doctest/doctest.h>

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

struct mpi_session {
  mpi_session() { MPI_Init(nullptr, nullptr); }
  ~mpi_session() { MPI_Finalize(); }
} const session;

/// Waits for one notice, at most ten seconds.
bool hear(const dyncp::cuda::bootstrap& b, dyncp::cuda::failure_notice& notice) {
  for (int i = 0; i < 10'000; ++i) {
    if (b.hear(notice)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace

TEST_CASE("ranks, broadcasts of rank 0, notices of any rank") {
  auto made = dyncp::cuda::mpi_bootstrap(MPI_COMM_WORLD);
  REQUIRE(made.has_value());
  const dyncp::cuda::bootstrap& b = *made;
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  CHECK(b.rank == rank);
  CHECK(b.ranks == ranks);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::byte> data(132, std::byte{static_cast<unsigned char>(100 * rank + round)});
    REQUIRE(b.broadcast(data));
    CHECK(data == std::vector<std::byte>(132, std::byte{static_cast<unsigned char>(round)}));
  }
  dyncp::cuda::failure_notice notice;
  CHECK_FALSE(b.hear(notice));
  MPI_Barrier(MPI_COMM_WORLD);
  const int speaker = ranks - 1;
  if (rank == speaker) {
    notice.family = 7;
    notice.rank = rank;
    std::strcpy(notice.text.data(), "stop");
    b.tell(notice);
  } else {
    REQUIRE(hear(b, notice));
    CHECK(notice.family == 7);
    CHECK(notice.rank == speaker);
    CHECK(std::strcmp(notice.text.data(), "stop") == 0);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  CHECK_FALSE(b.hear(notice));
}

TEST_CASE("a broadcast that rank 0 is late for is a timeout") {
  constexpr std::int64_t deadline_us = 100'000;
  auto made = dyncp::cuda::mpi_bootstrap(MPI_COMM_WORLD, deadline_us);
  REQUIRE(made.has_value());
  std::vector<std::byte> data(8, std::byte{3});
  if (made->rank != 0) {
    data.assign(8, std::byte{0});
    const auto late = made->broadcast(data);
    REQUIRE_FALSE(late.has_value());
    CHECK(late.error().code == dyncp::errc::timeout);
    CHECK(late.error().limit == deadline_us);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (made->rank == 0) CHECK(made->broadcast(data));
  MPI_Barrier(MPI_COMM_WORLD);
  // What came too late came to nobody's memory.
  const std::byte expected{static_cast<unsigned char>(made->rank == 0 ? 3 : 0)};
  CHECK(data == std::vector<std::byte>(8, expected));
}
