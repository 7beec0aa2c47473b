// SPDX-License-Identifier: Apache-2.0
#include <dyncp/cuda/device.hpp>

#include "emulation/world.hpp"
#include "support/random.hpp"

#include <cuda_runtime_api.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace dyncp;
using dyncp_emulation::fault_kind;
using dyncp_emulation::world;

namespace {

constexpr std::int64_t bytes_of(std::size_t n) { return static_cast<std::int64_t>(n); }

/// Waits as a fabric does: by asking.
void finish(cuda::device& d, cuda::stream s) {
  for (;;) {
    const auto done = d.poll(s);
    REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().message()));
    if (*done) return;
  }
}

std::vector<std::uint8_t> read(cuda::device& d, const void* from, std::size_t bytes,
                               cuda::stream s) {
  auto host = d.allocate_staging(bytes_of(bytes)).value();
  REQUIRE(d.download(host.data(), from, bytes_of(bytes), s));
  finish(d, s);
  std::vector<std::uint8_t> out(bytes);
  if (bytes > 0) std::memcpy(out.data(), host.data(), bytes);
  return out;
}

cuda::device::buffer write(cuda::device& d, const void* from, std::size_t bytes, cuda::stream s) {
  auto memory = d.allocate(bytes_of(bytes)).value();
  auto host = d.allocate_staging(bytes_of(bytes)).value();
  if (bytes > 0) std::memcpy(host.data(), from, bytes);
  REQUIRE(d.upload(memory.data(), host.data(), bytes_of(bytes), s));
  finish(d, s);
  return memory;
}

}  // namespace

TEST_CASE("without a GPU a device is a typed error") {
  const auto d = cuda::device::open({});
  REQUIRE(!d);
  CHECK(d.error().code == errc::unsupported);
}

TEST_CASE("a GPU that the library has no code for, or that is not there, is a typed error") {
  {
    world w({.capability = 89});
    const auto d = cuda::device::open({.rank = 3});
    REQUIRE(!d);
    CHECK(d.error().code == errc::unsupported);
    CHECK(d.error().what.find("rank 3") != std::string::npos);
    CHECK(d.error().what.find("8.9") != std::string::npos);
    CHECK(d.error().hint.find("gpu_arch") != std::string::npos);
  }
  world w({.devices = 2});
  const auto d = cuda::device::open({.ordinal = 2});
  REQUIRE(!d);
  CHECK(d.error().code == errc::invalid_argument);
  CHECK(d.error().value == 2);
  CHECK(d.error().limit == 2);
}

TEST_CASE("code runs on its own capability, or on later minor numbers of the same major one") {
  CHECK(cuda::runs_on(901, 90));
  CHECK_FALSE(cuda::runs_on(901, 91));
  CHECK_FALSE(cuda::runs_on(901, 100));
  CHECK(cuda::runs_on(800, 80));
  CHECK(cuda::runs_on(800, 86));
  CHECK_FALSE(cuda::runs_on(860, 80));
  CHECK_FALSE(cuda::runs_on(800, 90));
  CHECK(cuda::runs_on(1002, 103));
  CHECK_FALSE(cuda::runs_on(1002, 90));
  CHECK_FALSE(cuda::runs_on(1032, 100));
}

TEST_CASE("a library of another version or interface is refused, by name") {
  cuda::library_info info = cuda::loaded_library();
  CHECK(cuda::check_library(info));
  CHECK(info.cuda_version >= 12040);
  info.version_minor += 1;
  auto wrong = cuda::check_library(info);
  REQUIRE(!wrong);
  CHECK(wrong.error().code == errc::mismatch);
  info = cuda::loaded_library();
  info.interface_version += 1;
  wrong = cuda::check_library(info);
  REQUIRE(!wrong);
  CHECK(wrong.error().code == errc::mismatch);
  CHECK(dyncp_cuda_property(12345, 0) == -1);
}

TEST_CASE("buffers are aligned, counted, limited, and may outlive the device") {
  world w;
  cuda::device::buffer survivor;
  {
    auto d = cuda::device::open({.memory_limit_bytes = 1000}).value();
    auto a = d.allocate(600).value();
    CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % device_alignment_bytes == 0);
    CHECK(d.memory_in_use() == 600);
    auto b = d.allocate(500);
    REQUIRE(!b);
    CHECK(b.error().code == errc::out_of_memory);
    CHECK(b.error().limit == 400);
    survivor = std::move(a);
    CHECK(d.memory_in_use() == 600);
    CHECK(d.allocate(0).value().data() == nullptr);
    CHECK(d.allocate(-1).error().code == errc::invalid_argument);
  }
  survivor = {};
  CHECK(w.first_fault().kind == fault_kind::none);
}

TEST_CASE("the GPU's own limit is out_of_memory") {
  world w({.memory_limit_bytes = 4096});
  auto d = cuda::device::open({.rank = 5}).value();
  auto b = d.allocate(5000);
  REQUIRE(!b);
  CHECK(b.error().code == errc::out_of_memory);
  CHECK(b.error().what.find("rank 5: cudaMallocFromPoolAsync") != std::string::npos);
  CHECK(d.allocate(4000).has_value());
}

TEST_CASE("memory comes from the caller's allocator, whose failures are results") {
  world w;
  std::vector<void*> live;
  cuda::memory_source source;
  source.allocate = [&](std::int64_t bytes) -> void* {
    if (bytes == 13) throw std::runtime_error("no");
    if (bytes == 14) return nullptr;
    if (bytes == 15) return reinterpret_cast<void*>(std::uintptr_t{0x1001});
    live.push_back(w.memory().allocate(dyncp_emulation::memory_kind::device, 0,
                                       static_cast<std::size_t>(bytes)));
    return live.back();
  };
  source.release = [&](void* p, std::int64_t bytes) {
    CHECK(bytes == 64);
    live.erase(std::find(live.begin(), live.end(), p));
  };
  auto d = cuda::device::open({.memory = source}).value();
  {
    const auto b = d.allocate(64).value();
    CHECK(live.size() == 1);
    CHECK(b.data() == live[0]);
  }
  CHECK(live.empty());
  CHECK(d.allocate(13).error().code == errc::callback_failed);
  CHECK(d.allocate(14).error().code == errc::out_of_memory);
  CHECK(d.allocate(15).error().code == errc::invalid_argument);
  source.release = nullptr;
  CHECK(cuda::device::open({.memory = source}).error().code == errc::invalid_argument);
}

TEST_CASE("to ask for the end of work leaves no error behind for others to find") {
  bool waited = false;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    world w({.seed = seed});
    auto d = cuda::device::open({}).value();
    const auto s = d.make_stream().value();
    auto a = d.allocate(16).value();
    auto event = d.make_event().value();
    CHECK(cudaGetLastError() == cudaSuccess);
    for (int i = 0; i < 20; ++i) REQUIRE(d.fill_zero(a.data(), 16, s.get()));
    REQUIRE(d.record(event, s.get()));
    for (bool done = false; !done;) {
      REQUIRE(cuda::abi::poll_event(d.handle(), event.native(), &done).failed == 0);
      CHECK(cudaGetLastError() == cudaSuccess);
      const auto idle = d.poll(s.get());
      REQUIRE(idle.has_value());
      CHECK(cudaGetLastError() == cudaSuccess);
      waited = waited || !done;
    }
  }
  CHECK(waited);
}

TEST_CASE("memory that was given back is kept, whatever is waited for meanwhile") {
  world w;
  auto d = cuda::device::open({}).value();
  for (int i = 0; i < 5; ++i) {
    const auto a = d.allocate(1000).value();
    const auto b = d.allocate(500).value();
  }
  CHECK(w.use_of(0).growths == 2);
}

TEST_CASE("calls make no context on a GPU that nobody uses, and restore one that is used") {
  world w({.devices = 3});
  const auto work = [](std::int32_t ordinal) {
    auto d = cuda::device::open({.ordinal = ordinal}).value();
    const auto s = d.make_stream().value();
    auto a = d.allocate(16).value();
    REQUIRE(d.fill_zero(a.data(), 16, s.get()));
    finish(d, s.get());
  };
  // A thread that chose no GPU counts as one on GPU 0.
  REQUIRE(w.current_device() == 0);
  work(1);
  CHECK_FALSE(w.use_of(0).context);
  CHECK(w.use_of(1).context);
  REQUIRE(cudaSetDevice(2) == cudaSuccess);
  work(1);
  CHECK(w.current_device() == 2);
  CHECK_FALSE(w.use_of(0).context);
}

TEST_CASE("copies, zeros and strides") {
  world w;
  auto d = cuda::device::open({}).value();
  const auto s = d.make_stream().value();
  std::vector<std::uint8_t> bytes(300);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 + 1);
  auto a = write(d, bytes.data(), bytes.size(), s.get());
  auto b = d.allocate(300).value();
  REQUIRE(d.copy(b.data(), a.data(), 300, s.get()));
  REQUIRE(d.fill_zero(static_cast<std::byte*>(b.data()) + 10, 5, s.get()));
  auto expected = bytes;
  std::fill_n(expected.begin() + 10, 5, std::uint8_t{0});
  CHECK(read(d, b.data(), 300, s.get()) == expected);
  REQUIRE(d.copy_strided(b.data(), 10, a.data(), 30, 7, 10, s.get()));
  const auto strided = read(d, b.data(), 300, s.get());
  for (std::size_t row = 0; row < 10; ++row) {
    for (std::size_t i = 0; i < 7; ++i) CHECK(strided[10 * row + i] == bytes[30 * row + i]);
    for (std::size_t i = 7; i < 10; ++i) CHECK(strided[10 * row + i] == expected[10 * row + i]);
  }
  REQUIRE(d.copy(nullptr, nullptr, 0, s.get()));
  REQUIRE(d.copy_strided(nullptr, 5, nullptr, 5, 5, 0, s.get()));
  CHECK(w.first_fault().kind == fault_kind::none);
}

TEST_CASE("the default stream is never used: the fake would refuse it") {
  world w;
  auto d = cuda::device::open({}).value();
  auto a = d.allocate(16).value();
  CHECK(d.fill_zero(a.data(), 16, nullptr).error().code == errc::backend_failure);
}

TEST_CASE("streams run in any order unless an event joins them") {
  std::int64_t early = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    world w({.seed = seed});
    auto d = cuda::device::open({}).value();
    const auto s = d.make_stream().value();
    const auto t = d.make_stream().value();
    auto a = d.allocate(64).value();
    auto b = d.allocate(64).value();
    auto event = d.make_event().value();
    REQUIRE(d.wait(t.get(), event));  // never recorded: waits for nothing
    REQUIRE(d.fill_zero(a.data(), 64, s.get()));
    const bool joined = seed % 2 == 0;
    if (joined) {
      REQUIRE(d.record(event, s.get()));
      REQUIRE(d.wait(t.get(), event));
    }
    REQUIRE(d.copy(b.data(), a.data(), 64, t.get()));
    finish(d, s.get());
    const bool zeros = read(d, b.data(), 64, t.get()) == std::vector<std::uint8_t>(64, 0);
    if (joined) CHECK(zeros);
    if (!zeros) ++early;
  }
  CHECK(early > 0);
}

TEST_CASE("copy_rows moves what its table says, for every width and alignment") {
  const std::uint64_t seed = dyncp_test::seed_or(3);
  INFO("seed " << seed);
  dyncp_test::random rng(seed);
  world w({.seed = seed});
  auto d = cuda::device::open({}).value();
  const auto s = d.make_stream().value();
  for (const std::int64_t row_bytes :
       {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 100, 512, 528, 1040, 4096}) {
    const std::int64_t src_rows = rng.between(1, 60);
    std::vector<row_copy> table;
    std::int64_t rows = 0;
    std::int64_t dst = rng.between(0, 2);
    for (std::int64_t n = rng.between(1, 8); n > 0; --n) {
      const std::int64_t some =
          rng.between(0, 3) == 0 ? 0 : rng.between(1, std::min<std::int64_t>(src_rows, 20));
      if (some == 0) continue;
      table.push_back({rows, dst, rng.one_in(4) ? -1 : rng.between(0, src_rows - some), some});
      rows += some;
      dst += some + rng.between(0, 2);
    }
    std::vector<std::uint8_t> source(static_cast<std::size_t>(src_rows * row_bytes));
    for (auto& x : source) x = static_cast<std::uint8_t>(rng.next());
    std::vector<std::uint8_t> expected(static_cast<std::size_t>((dst + 1) * row_bytes), 0xff);
    for (const row_copy& c : table) {
      for (std::int64_t i = 0; i < c.rows * row_bytes; ++i) {
        expected[static_cast<std::size_t>(c.dst * row_bytes + i)] =
            c.src < 0 ? 0 : source[static_cast<std::size_t>(c.src * row_bytes + i)];
      }
    }
    auto from = write(d, source.data(), source.size(), s.get());
    auto entries = write(d, table.data(), table.size() * sizeof(row_copy), s.get());
    auto to = d.allocate(bytes_of(expected.size())).value();
    REQUIRE(d.copy_rows(to.data(), from.data(),
                        {static_cast<const row_copy*>(entries.data()), table.size()}, rows,
                        row_bytes, s.get()));
    CHECK(read(d, to.data(), expected.size(), s.get()) == expected);
  }
  CHECK_MESSAGE(w.first_fault().kind == fault_kind::none, w.first_fault().text);
}

TEST_CASE("nothing to copy launches nothing") {
  world w;
  auto d = cuda::device::open({}).value();
  const auto s = d.make_stream().value();
  REQUIRE(d.copy_rows(nullptr, nullptr, {}, 0, 16, s.get()));
  finish(d, s.get());
  CHECK(w.counters().kernels == 0);
}
