// SPDX-License-Identifier: Apache-2.0
// The row-wise kernels of the CUDA library, in the emulator or on a GPU, against those of the CPU
// and against the index sets of thd.
#include "emulation/cuda_kernel.hpp"
#include "emulation/machine.hpp"

#include "support/local_ring.hpp"
#include "support/random.hpp"

#include <dyncp/cpu/attention_rows.hpp>
#include <dyncp/cuda/thd.hpp>
#include <dyncp/thd/convert.hpp>
#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/pack_layout.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

using namespace dyncp;
using namespace dyncp_test;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

void ok(const result<void>& done) {
  REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().message()));
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void fill(local_tensor<float>& t, dyncp_test::random& rng) {
  for (float& x : t.values) x = static_cast<float>(2 * rng.unit() - 1);
}

attention_step step_of(cuda::device::buffer& table, std::size_t count, std::int32_t rows) {
  return {{static_cast<const attention_segment*>(table.data()), count}, attention_mask::full, rows,
          rows};
}

}  // namespace

TEST_CASE(
    "merge: as on the CPU, for every mixture of rows with and without keys, and large scores") {
  dyncp_test::random rng(2);
  for (const std::int32_t dim : {1, 3, 4, 64, 128, 132}) {
    for (const std::int64_t gap : {0, 1, 4}) {
      const attention_shape shape{3, 1, dim, dim, 1.0};
      // Rows 0..19; segments leave out 0, 7 and 19, and one has no keys.
      const std::vector<attention_segment> segments{
          {1, 6, 0, 4}, {8, 0, 4, 3}, {8, 5, 7, 1}, {13, 3, 8, 0}, {16, 3, 9, 9}};
      local_tensor<float> part_out(20, 3, dim, 0, gap), part_lse(20, 3, 1, 0, gap);
      local_tensor<float> out(20, 3, dim, 0, gap), lse(20, 3, 1, 0);
      for (auto* t : {&part_out, &part_lse, &out, &lse}) fill(*t, rng);
      const float interesting[] = {-infinity, 0, -50, 45, 88, -88, 1e4F, -1e4F, -6e4F, 0.5F};
      for (std::int64_t r = 0; r < 20; ++r) {
        for (std::int64_t h = 0; h < 3; ++h) {
          part_lse.at(r, h, 0) = interesting[rng.between(0, 9)];
          lse.at(r, h, 0) = interesting[rng.between(0, 9)];
          // What has no weight may be anything.
          if (part_lse.at(r, h, 0) == -infinity) part_out.at(r, h, 0) = NAN;
          if (lse.at(r, h, 0) == -infinity) out.at(r, h, dim - 1) = NAN;
        }
      }
      auto expected_out = out;
      auto expected_lse = lse;
      cpu::merge_partials<float>(shape, segments, {part_out.view(), part_lse.view()},
                                 {expected_out.view(), expected_lse.view()});
      const machine m;
      cuda_kernel k;
      auto table = k.upload(segments);
      {
        device_copy<float> po(k.device(), k.stream(), part_out.view(), 20, 3 * dim);
        device_copy<float> pl(k.device(), k.stream(), part_lse.view(), 20, 3);
        device_copy<float> to(k.device(), k.stream(), out.view(), 20, 3 * dim);
        device_copy<float> tl(k.device(), k.stream(), lse.view(), 20, 3);
        cuda::attention<float> kernels(k.device());
        ok(kernels.merge(k.device(), k.stream(), shape, step_of(table, segments.size(), 20),
                         {po.view(), pl.view()}, {to.view(), tl.view()}));
        to.fetch();
        tl.fetch();
      }
      double worst = 0;
      for (std::int64_t r = 0; r < 20; ++r) {
        for (std::int64_t h = 0; h < 3; ++h) {
          const float a = lse.at(r, h, 0);
          const float b = expected_lse.at(r, h, 0);
          CHECK((a == b || std::fabs(a - b) <= 1e-6F * std::fabs(b) + 1e-6F));
          for (std::int64_t c = 0; c < dim; ++c) {
            const float x = out.at(r, h, c);
            const float y = expected_out.at(r, h, c);
            if (std::isnan(y)) {
              CHECK(std::isnan(x));  // a row that stays without keys keeps what it had
            } else {
              worst = std::fmax(worst, std::isnan(x) ? 1.0 : std::fabs(x - y));
            }
          }
        }
      }
      CHECK(worst <= 1e-6);
    }
  }
}

TEST_CASE("delta: as on the CPU, rows of no segment untouched") {
  dyncp_test::random rng(3);
  const auto check = [&](auto type, std::int32_t dim, std::int64_t gap) {
    using T = decltype(type);
    const attention_shape shape{2, 1, dim, dim, 1.0};
    const std::vector<attention_segment> segments{{0, 3, 0, 1}, {4, 0, 1, 1}, {5, 33, 2, 0}};
    local_tensor<T> out(40, 2, dim, T{}, gap), dout(40, 2, dim, T{}, gap);
    for (auto* t : {&out, &dout}) {
      for (T& x : t->values) x = from_double<T>(2 * rng.unit() - 1);
    }
    local_tensor<float> delta(40, 2, 1, 0.25F);
    auto expected = delta;
    cpu::attention_delta<T, T>(shape, segments, out.view(), dout.view(), expected.view());
    const machine m;
    cuda_kernel k;
    auto table = k.upload(segments);
    device_copy<const T> o(k.device(), k.stream(), out.view(), 40, 2 * dim);
    device_copy<const T> d(k.device(), k.stream(), dout.view(), 40, 2 * dim);
    device_copy<float> to(k.device(), k.stream(), delta.view(), 40, 2);
    cuda::attention<T> kernels(k.device());
    ok(kernels.delta(k.device(), k.stream(), shape, step_of(table, segments.size(), 40), o.view(),
                     d.view(), to.view()));
    to.fetch();
    for (std::size_t i = 0; i < delta.values.size(); ++i) {
      CHECK(std::fabs(delta.values[i] - expected.values[i]) <= 1e-6F * static_cast<float>(dim));
    }
  };
  for (const std::int32_t dim : {1, 7, 8, 64, 128}) {
    for (const std::int64_t gap : {0, 3}) {
      check(bfloat16{}, dim, gap);
      check(float16{}, dim, gap);
      check(0.0F, dim, gap);
    }
  }
}

TEST_CASE("clear, add and casts") {
  dyncp_test::random rng(4);
  for (const std::int32_t dim : {1, 5, 64}) {
    const machine m;
    cuda_kernel k;
    cuda::attention<float> kernels(k.device());
    local_tensor<float> out(9, 2, dim, 3.0F, 2), lse(9, 2, 1, 3.0F, 1);
    {
      device_copy<float> o(k.device(), k.stream(), out.view(), 9, 2 * dim);
      device_copy<float> l(k.device(), k.stream(), lse.view(), 9, 2);
      ok(kernels.clear(k.device(), k.stream(), {2, 1, dim, dim, 1.0}, 7, {o.view(), l.view()}));
      o.fetch();
      l.fetch();
    }
    for (std::int64_t r = 0; r < 9; ++r) {
      for (std::int64_t h = 0; h < 2; ++h) {
        CHECK(lse.at(r, h, 0) == (r < 7 ? -infinity : 3.0F));
        for (std::int64_t c = 0; c < dim; ++c) CHECK(out.at(r, h, c) == (r < 7 ? 0.0F : 3.0F));
      }
    }
  }
  for (const std::int64_t n : {0, 1, 3, 4, 5, 1023, 1024, 1025}) {
    const machine m;
    cuda_kernel k;
    cuda::attention<float> kernels(k.device());
    local_tensor<float> to(1, 1, n, 0), from(1, 1, n, 0);
    fill(to, rng);
    fill(from, rng);
    auto expected = to;
    for (std::int64_t i = 0; i < n; ++i) expected.at(0, 0, i) += from.at(0, 0, i);
    device_copy<float> a(k.device(), k.stream(), to.view(), 1, n);
    device_copy<float> b(k.device(), k.stream(), from.view(), 1, n);
    ok(kernels.add(k.device(), k.stream(), a.view().data, b.view().data, n));
    a.fetch();
    CHECK(to.values == expected.values);
  }
  const auto cast = [&](auto type, std::int64_t width, std::int64_t gap) {
    using T = decltype(type);
    const machine m;
    cuda_kernel k;
    cuda::attention<T> kernels(k.device());
    local_tensor<float> from(11, 1, width, 0, gap), back(11, 1, width, 0, gap);
    for (float& x : from.values)
      x = static_cast<float>(
          std::ldexp(2 * rng.unit() - 1, static_cast<int>(rng.between(-40, 20))));
    local_tensor<T> to(11, 1, width, T{}, gap);
    auto expected = to;
    cpu::convert_rows<T, float>(11, width, from.view(), expected.view());
    device_copy<float> a(k.device(), k.stream(), from.view(), 11, width);
    device_copy<T> b(k.device(), k.stream(), to.view(), 11, width);
    device_copy<float> c(k.device(), k.stream(), back.view(), 11, width);
    ok(kernels.convert(k.device(), k.stream(), 11, width, a.view(), b.view()));
    ok(kernels.widen(k.device(), k.stream(), 11, width, b.view(), c.view()));
    b.fetch();
    c.fetch();
    CHECK(same_bits(to.values, expected.values));
    for (std::int64_t r = 0; r < 11; ++r) {
      for (std::int64_t x = 0; x < width; ++x) {
        CHECK(back.at(r, 0, x) == static_cast<float>(expected.at(r, 0, x)));
      }
    }
  };
  for (const std::int64_t width : {1, 7, 8, 24, 300}) {
    for (const std::int64_t gap : {0, 1}) {
      cast(bfloat16{}, width, gap);
      cast(float16{}, width, gap);
    }
  }
}

TEST_CASE("split, merge and chunks: the index sets of every small pack, every layout and rank") {
  dyncp_test::random rng(6);
  std::int64_t cases = 0;
  for (const layout_kind kind :
       {layout_kind::zigzag, layout_kind::contiguous, layout_kind::row_split}) {
    for (const std::int32_t cp : {1, 2, 3, 4}) {
      for (const std::vector<std::int64_t>& lengths :
           {std::vector<std::int64_t>{}, {1}, {0}, {7, 0, 0, 3}, {16, 5}, {2, 9, 1, 30, 4}}) {
        const padding_rule rule{.zigzag = kind == layout_kind::zigzag,
                                .multiple = kind == layout_kind::contiguous ? cp : 1,
                                .shard_multiple = 5};
        const auto layout = pack_layout::make(lengths, kind, cp, rule);
        REQUIRE(layout.has_value());
        const pack_view pack = layout->view();
        const std::int64_t width = 1 + rng.between(0, 40);
        const std::int64_t rows = pack.tokens;
        const std::int64_t local = pack.local_rows();
        const machine m;
        auto d = cuda::device::open({}).value();
        const auto s = d.make_stream().value();
        const auto put = [&](const void* from, std::size_t bytes) {
          auto host = d.allocate_staging(static_cast<std::int64_t>(bytes)).value();
          auto memory = d.allocate(static_cast<std::int64_t>(bytes)).value();
          if (bytes > 0) std::memcpy(host.data(), from, bytes);
          ok(d.upload(memory.data(), host.data(), static_cast<std::int64_t>(bytes), s.get()));
          finish(d, s.get());
          return memory;
        };
        const auto get = [&](cuda::device::buffer& memory) {
          auto host = d.allocate_staging(memory.bytes()).value();
          ok(d.download(host.data(), memory.data(), memory.bytes(), s.get()));
          finish(d, s.get());
          const auto* const p = static_cast<const std::uint8_t*>(host.data());
          return std::vector<std::uint8_t>(p, p + memory.bytes());
        };
        const auto entries = static_cast<std::size_t>(pack.sequences) + 1;
        auto real = put(pack.cu_real, entries * 4);
        auto padded = put(pack.cu_padded, entries * 4);
        pack_view on_device = pack;
        on_device.cu_real = static_cast<const std::int32_t*>(real.data());
        on_device.cu_padded = static_cast<const std::int32_t*>(padded.data());
        std::vector<std::uint8_t> whole(static_cast<std::size_t>(rows * width));
        for (auto& x : whole) x = static_cast<std::uint8_t>(1 + rng.between(0, 200));
        auto whole_memory = put(whole.data(), whole.size());

        for (std::int32_t rank = 0; rank < cp; ++rank) {
          ++cases;
          for (const auto padding : {cuda::padding_rows::zero, cuda::padding_rows::copy}) {
            std::vector<std::uint8_t> expected(static_cast<std::size_t>(local * width), 0);
            std::vector<std::uint8_t> merged(whole.size(), 0xff);
            for (std::int32_t row = 0; row < local; ++row) {
              const std::int64_t from = packed_row(pack, rank, row);
              const bool keep =
                  padding == cuda::padding_rows::copy || token_at(pack, rank, row).valid;
              for (std::int64_t i = 0; i < width; ++i) {
                const std::uint8_t x = keep ? whole[static_cast<std::size_t>(from * width + i)] : 0;
                expected[static_cast<std::size_t>(row * width + i)] = x;
                merged[static_cast<std::size_t>(from * width + i)] = x;
              }
            }
            auto share = d.allocate(local * width).value();
            auto back = d.allocate(rows * width).value();
            ok(cuda::split_rows(d, s.get(), on_device, rank, whole_memory.data(), share.data(),
                                width, padding));
            ok(cuda::merge_rows(d, s.get(), on_device, rank, share.data(), back.data(), width,
                                padding));
            CHECK(get(share) == expected);
            CHECK(get(back) == merged);
            if (kind != layout_kind::zigzag || cp == 1) continue;

            const std::int32_t sequence_rows = pack.sequence_rows();
            const std::int64_t half = sequence_rows / (2 * cp);
            std::vector<std::uint8_t> front(static_cast<std::size_t>(half * width), 0);
            std::vector<std::uint8_t> second(front.size(), 0);
            std::vector<std::uint8_t> joined(expected.size(), 0xff);
            for (std::int32_t q = 0; q < pack.sequences; ++q) {
              const slot rows_of = slot_of(pack, q, rank);
              for (const bool back_chunk : {false, true}) {
                const row_run& run = back_chunk ? rows_of.back : rows_of.front;
                for (std::int32_t r = 0; r < run.rows; ++r) {
                  const std::int64_t at = pack.cu_padded[q] / (2 * cp) + r;
                  for (std::int64_t i = 0; i < width; ++i) {
                    const std::uint8_t x =
                        expected[static_cast<std::size_t>((run.row + r) * width + i)];
                    (back_chunk ? second : front)[static_cast<std::size_t>(at * width + i)] = x;
                    joined[static_cast<std::size_t>((run.row + r) * width + i)] = x;
                  }
                }
              }
            }
            auto chunks = d.allocate(half * width).value();
            auto joined_memory = d.allocate(local * width).value();
            ok(cuda::take_front(d, s.get(), on_device, rank, sequence_rows, share.data(),
                                chunks.data(), width, padding));
            ok(cuda::put_front(d, s.get(), on_device, rank, sequence_rows, chunks.data(),
                               joined_memory.data(), width, padding));
            CHECK(get(chunks) == front);
            ok(cuda::take_back(d, s.get(), on_device, rank, sequence_rows, share.data(),
                               chunks.data(), width, padding));
            ok(cuda::put_back(d, s.get(), on_device, rank, sequence_rows, chunks.data(),
                              joined_memory.data(), width, padding));
            CHECK(get(chunks) == second);
            CHECK(get(joined_memory) == joined);
          }
        }
        CHECK_MESSAGE(m.fault().empty(), m.fault());
      }
    }
  }
  CHECK(cases >= 100);
}

TEST_CASE("a change of layout on one rank: the moves of `conversion` as a table for copy_rows") {
  const std::vector<std::int64_t> lengths = {24, 8, 40};
  const padding_rule rule{.zigzag = true};
  const auto from = pack_layout::make(lengths, layout_kind::zigzag, 4, rule).value();
  const auto to = pack_layout::make(lengths, layout_kind::contiguous, 4, rule).value();
  const std::int32_t local = from.view().local_rows();
  // All ranks' rows, one rank after the other, as one array on one GPU.
  std::vector<row_copy> table;
  for (const row_move& m : conversion(from.view(), to.view())) {
    const std::int64_t begin = table.empty() ? 0 : table.back().begin + table.back().rows;
    table.push_back(
        {begin, m.to_rank * local + m.to_row, m.from_rank * local + m.from_row, m.rows});
  }
  const machine m;
  auto d = cuda::device::open({}).value();
  const auto s = d.make_stream().value();
  const std::int64_t rows = from.view().tokens;
  const std::int64_t bytes = rows * 16;
  auto host = d.allocate_staging(bytes).value();
  auto source = d.allocate(bytes).value();
  auto target = d.allocate(bytes).value();
  auto* const words = static_cast<std::int32_t*>(host.data());
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    for (std::int32_t row = 0; row < local; ++row) {
      std::fill_n(words + 4 * (rank * local + row), 4, packed_row(from.view(), rank, row));
    }
  }
  ok(d.upload(source.data(), host.data(), bytes, s.get()));
  finish(d, s.get());
  const auto table_bytes = static_cast<std::int64_t>(table.size() * sizeof(row_copy));
  auto table_host = d.allocate_staging(table_bytes).value();
  auto entries = d.allocate(table_bytes).value();
  std::memcpy(table_host.data(), table.data(), static_cast<std::size_t>(table_bytes));
  ok(d.upload(entries.data(), table_host.data(), table_bytes, s.get()));
  ok(d.copy_rows(target.data(), source.data(),
                 {static_cast<const row_copy*>(entries.data()), table.size()}, rows, 16, s.get()));
  ok(d.download(host.data(), target.data(), bytes, s.get()));
  finish(d, s.get());
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    for (std::int32_t row = 0; row < local; ++row) {
      CHECK(words[4 * (rank * local + row)] == packed_row(to.view(), rank, row));
    }
  }
}
