// SPDX-License-Identifier: Apache-2.0
// The row copies of split and merge, and both over a fabric, beside memcpy of the same bytes, in
// one run. Not less than 0.7 of memcpy is wanted.
//
// kernel: no split, no merge and no message: copy_rows on one rank, with the table that cuts a
//   share out of whole sequences, and with its reverse, against memcpy of the share's bytes.
// fabric: plan_split from owners and plan_merge to owners over ranks that are threads, against
//   memcpy of the shares by as many threads. A row that changes its rank is copied by its receiver
//   out of the sender's memory, once more at each end where the rows of the two ranks do not lie in
//   one piece; merge does all that twice, to the leader of the group and to the owner. The bound is
//   one through the copies of a row on average, all as fast as memcpy and shared by the ranks
//   alike.
// Wall time of the slowest rank, best of the repetitions; the argument is their number.
#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/runtime/split_merge.hpp>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace dyncp;
using backend_t = cpu::thread_backend;
using pool_t = group_pool<backend_t>;

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Sequences of mixed lengths on groups of `cp` ranks, `tokens` rows for each rank.
struct job {
  std::vector<sequence> batch;
  dyncp::plan plan;
  std::vector<std::int32_t> owners;

  job(std::int32_t ranks, std::int32_t cp, std::int64_t tokens) {
    plan.num_ranks = ranks;
    plan.padding.zigzag = true;
    micro_batch mb;
    std::int64_t draw = 1;
    for (std::int32_t begin = 0; begin < ranks; begin += cp) {
      pack p{{begin, cp}, {}};
      for (std::int64_t left = tokens * cp; left > 0;) {
        draw = (draw * 1103515245 + 12345) % 2147483648;
        const std::int64_t length =
            std::max<std::int64_t>(1, std::min(left, 200 + draw % (tokens * cp / 4 + 1)));
        p.sequences.push_back(static_cast<std::int32_t>(batch.size()));
        owners.push_back(static_cast<std::int32_t>(batch.size()) % ranks);
        batch.push_back({static_cast<std::int64_t>(batch.size()), length, -1});
        left -= length;
      }
      mb.packs.push_back(std::move(p));
    }
    plan.micro_batches = {mb};
  }
};

/// Copies of a row on average, where `route_of(rank)` is carried out by all ranks.
double copies_of(std::int32_t ranks, const auto& route_of) {
  struct lane {
    std::int64_t rows = 0;
    std::int64_t src = 0;
    std::int64_t dst = 0;
    bool src_in_one = true;
    bool dst_in_one = true;
  };
  std::int64_t copies = 0;
  std::int64_t rows = 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<lane> lanes(static_cast<std::size_t>(ranks));
    const row_route route = route_of(rank);
    for (const row_transfer& t : route.transfers) {
      if (t.from != rank) continue;
      lane& l = lanes[static_cast<std::size_t>(t.to)];
      if (l.rows == 0) l = {0, t.src, t.dst, true, true};
      l.src_in_one = l.src_in_one && t.src == l.src + l.rows;
      l.dst_in_one = l.dst_in_one && t.dst == l.dst + l.rows;
      l.rows += t.rows;
    }
    for (std::int32_t to = 0; to < ranks; ++to) {
      const lane& l = lanes[static_cast<std::size_t>(to)];
      const int each = to == rank ? 1 : 1 + (l.src_in_one ? 0 : 1) + (l.dst_in_one ? 0 : 1);
      copies += each * l.rows;
      rows += l.rows;
    }
  }
  return static_cast<double>(copies) / static_cast<double>(rows);
}

void in_one_rank(int repetitions, std::int64_t bytes, std::int64_t row_bytes) {
  constexpr std::int32_t cp = 4;
  const job j(cp, cp, bytes / row_bytes);
  const auto layout = plan_layout::make(j.plan, j.batch, layout_kind::zigzag).value();
  cpu::thread_world world({.ranks = 1});
  backend_t backend(world, 0);
  auto& device = backend.device();
  const auto s = device.main_stream();
  // The route of rank 1 of 4, as if it were alone: all copies are its own.
  const std::vector<std::int32_t> everywhere(j.batch.size(), every_rank);
  row_route split = split_route(layout, everywhere, 1);
  for (row_transfer& t : split.transfers) t.from = t.to = 0;
  row_route merge{{}, split.dst_rows, split.src_rows};
  for (const row_transfer& t : split.transfers) {
    merge.transfers.push_back({0, 0, t.dst, t.src, t.rows});
  }
  auto pool = pool_t::create(backend, {}).value();
  auto splitter = row_router<backend_t>::make(pool, split, {row_bytes, false}, s).value();
  const std::int64_t share = split.dst_rows * row_bytes;
  auto whole = device.allocate(split.src_rows * row_bytes).value();
  auto part = device.allocate(share).value();
  auto other = device.allocate(share).value();
  std::memset(whole.data(), 1, static_cast<std::size_t>(whole.bytes()));
  std::memset(part.data(), 2, static_cast<std::size_t>(share));
  std::memset(other.data(), 3, static_cast<std::size_t>(share));
  // Merge writes the rows of one share; the rest of the sequences is other ranks' business.
  std::vector<row_copy> back;
  std::int64_t rows = 0;
  for (const row_transfer& t : merge.transfers) {
    back.push_back({rows, t.dst, t.src, t.rows});
    rows += t.rows;
  }
  double copy = std::numeric_limits<double>::infinity();
  double cut = copy;
  double put = copy;
  for (int i = 0; i <= repetitions; ++i) {
    const double a = seconds_of(
        [&] { std::memcpy(other.data(), part.data(), static_cast<std::size_t>(share)); });
    const double b =
        seconds_of([&] { splitter.run(whole.data(), part.data(), row_bytes, s).value(); });
    const double c = seconds_of(
        [&] { device.copy_rows(whole.data(), part.data(), back, rows, row_bytes, s).value(); });
    if (i == 0) continue;
    copy = std::min(copy, a);
    cut = std::min(cut, b);
    put = std::min(put, c);
  }
  const double gb = static_cast<double>(share) * 1e-9;
  std::printf("kernel %8lld %7lld %8.2f %8.2f %6.2f %8.2f %6.2f\n",
              static_cast<long long>(bytes >> 20), static_cast<long long>(row_bytes), gb / copy,
              gb / cut, copy / cut, gb / put, copy / put);
}

void over_fabric(int repetitions, std::int32_t ranks, std::int64_t bytes, std::int64_t row_bytes) {
  const job j(ranks, ranks, bytes / row_bytes);
  const auto layout = plan_layout::make(j.plan, j.batch, layout_kind::zigzag).value();
  cpu::thread_world world({.ranks = ranks});
  std::barrier<> line(ranks);
  std::vector<double> copy(static_cast<std::size_t>(ranks),
                           std::numeric_limits<double>::infinity());
  std::vector<double> cut = copy;
  std::vector<double> put = copy;
  std::vector<std::int64_t> moved(static_cast<std::size_t>(ranks));
  const auto results = cpu::run_ranks(world, {}, [&](backend_t& backend) -> result<void> {
    auto& device = backend.device();
    const auto s = device.main_stream();
    auto pool = pool_t::create(backend, {}).value();
    const std::int32_t rank = pool.rank();
    auto splitter = plan_split<backend_t>::make(pool, layout, j.owners, row_bytes, s).value();
    auto merger = plan_merge<backend_t>::make(pool, layout, j.owners, row_bytes, false, s).value();
    const std::int64_t share = layout.local_rows(rank) * row_bytes;
    auto whole = device.allocate(rows_of_owner(layout, j.owners, rank).rows * row_bytes).value();
    auto part = device.allocate(share).value();
    auto other = device.allocate(share).value();
    std::memset(whole.data(), 1, static_cast<std::size_t>(whole.bytes()));
    std::memset(part.data(), 2, static_cast<std::size_t>(share));
    std::memset(other.data(), 3, static_cast<std::size_t>(share));
    moved[static_cast<std::size_t>(rank)] = share;
    for (int i = 0; i <= repetitions; ++i) {
      const auto timed = [&](const auto& work, std::vector<double>& best) {
        line.arrive_and_wait();
        const double t = seconds_of([&] {
          work();
          line.arrive_and_wait();
        });
        if (i > 0) {
          best[static_cast<std::size_t>(rank)] = std::min(best[static_cast<std::size_t>(rank)], t);
        }
      };
      timed([&] { std::memcpy(other.data(), part.data(), static_cast<std::size_t>(share)); }, copy);
      timed(
          [&] {
            splitter.run(whole.data(), part.data(), row_bytes, s).value();
            pool.synchronize(s).value();
          },
          cut);
      timed(
          [&] {
            merger.run(part.data(), whole.data(), row_bytes, s).value();
            pool.synchronize(s).value();
          },
          put);
    }
    return {};
  });
  for (const auto& r : results) {
    if (!r) std::printf("%s\n", r.error().message().c_str());
  }
  const double c = *std::max_element(copy.begin(), copy.end());
  const double a = *std::max_element(cut.begin(), cut.end());
  const double b = *std::max_element(put.begin(), put.end());
  const double gb = 1e-9 * static_cast<double>(moved[0]) * ranks;
  const double split_copies =
      copies_of(ranks, [&](std::int32_t rank) { return split_route(layout, j.owners, rank); });
  const double merge_copies =
      copies_of(ranks, [&](std::int32_t rank) { return gather_route(layout, rank); }) +
      copies_of(ranks, [&](std::int32_t rank) { return deliver_route(layout, j.owners, rank); });
  std::printf("fabric %8lld %7lld %5d %8.2f %8.2f %6.2f %6.2f %8.2f %6.2f %6.2f\n",
              static_cast<long long>(bytes >> 20), static_cast<long long>(row_bytes), ranks, gb / c,
              gb / a, c / a, 1 / split_copies, gb / b, c / b, 1 / merge_copies);
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  std::printf("%-6s %8s %7s %8s %8s %6s %8s %6s\n", "", "MiB", "row B", "memcpy", "cut", "ratio",
              "put back", "ratio");
  for (const std::int64_t mib : {64, 256}) {
    for (const std::int64_t row_bytes : {64, 2048, 16384})
      in_one_rank(repetitions, mib << 20, row_bytes);
  }
  std::printf("%-6s %8s %7s %5s %8s %8s %6s %6s %8s %6s %6s\n", "", "MiB/rank", "row B", "ranks",
              "memcpy", "split", "ratio", "bound", "merge", "ratio", "bound");
  for (const std::int32_t ranks : {2, 4}) {
    for (const std::int64_t row_bytes : {2048, 16384}) {
      over_fabric(repetitions, ranks, std::int64_t{64} << 20, row_bytes);
    }
  }
  std::printf("GB/s of the rows of the shares\n");
  return 0;
}
