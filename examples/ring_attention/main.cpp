// SPDX-License-Identifier: Apache-2.0
// Plans a batch of real lengths for 8 ranks, then does its attention on 8 ranks that are threads:
// rank r loads every eighth sequence, split sends each share where the plan wants it, the ring runs
// forward and backward, merge brings results and gradients back to the loader, who compares them
// with attention over whole sequences. Lengths are divided by 64 for the run, so that it takes
// seconds; groups and packs are those of the real plan.
#include <dyncp/attention/ring_attention.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/cpu/attention.hpp>
#include <dyncp/cpu/attention_rows.hpp>
#include <dyncp/cpu/plain_attention.hpp>
#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/io/length_file.hpp>
#include <dyncp/packers/packing_only.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/runtime/split_merge.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace dyncp;
using backend_t = cpu::thread_backend;
using provider_t = cpu::attention<>;
using ring_t = ring_attention<double, backend_t, provider_t>;

constexpr std::int32_t ranks = 8;
constexpr std::int64_t scale = 64;

// A row of q, k and v of a token, as a fused projection gives it; of their gradients alike.
constexpr attention_shape shape{2, 1, 16, 16, 0.25};
constexpr std::int64_t q_width = 2 * 16;
constexpr std::int64_t kv_width = 16;
constexpr std::int64_t row_width = q_width + 2 * kv_width;
constexpr std::int64_t row_bytes = row_width * static_cast<std::int64_t>(sizeof(double));
constexpr std::int64_t out_bytes = q_width * static_cast<std::int64_t>(sizeof(double));

template <class T>
struct fused {
  thd_view<T> q, k, v;
  explicit fused(T* row)
      : q{row, row_width}, k{row + q_width, row_width}, v{row + q_width + kv_width, row_width} {}
};

/// Numbers in [-1, 1) that depend on where they stand alone.
double number(std::int64_t id, std::int64_t position, std::int64_t column) {
  auto z = static_cast<std::uint64_t>(id * 1000003 + position * 7919 + column * 104729);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-52 - 1.0;
}

struct outcome {
  double error = 0;        ///< largest difference over the largest result
  std::int64_t bytes = 0;  ///< sent by all ranks in the rings
};

/// Device memory of n doubles.
result<cpu::device::buffer> doubles(backend_t& backend, std::int64_t n) {
  return backend.device().allocate(n * static_cast<std::int64_t>(sizeof(double)));
}
double* data(cpu::device::buffer& b) {
  return static_cast<double*>(b.data());
}

/// Whole sequences against what came back; all arrays in the order of `rows`.
double compare(const plan_layout& layout, const sequence_rows& rows, double* qkv, double* dout,
               const double* out, const double* dqkv) {
  const auto n = static_cast<std::size_t>(rows.rows);
  std::vector<double> want(n * q_width), lse(n * 2), delta(n * 2), gradient(n * row_width, 0.0);
  cpu::plain_attention dense;
  double difference = 0;
  double largest = 0;
  const auto measure = [&](const std::vector<double>& a, const double* b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      difference = std::fmax(difference, std::fabs(a[i] - b[i]));
      largest = std::fmax(largest, std::fabs(a[i]));
    }
  };
  std::vector<attention_segment> segments;
  for (std::int32_t s = 0; s < layout.num_sequences(); ++s) {
    const auto place = static_cast<std::int32_t>(rows.place[static_cast<std::size_t>(s)]);
    const auto length = static_cast<std::int32_t>(layout.length(s));
    if (place >= 0) segments.push_back({place, length, place, length});
  }
  const fused<double> in(qkv);
  const fused<double> to(gradient.data());
  dense.forward<double>(shape, attention_mask::causal, segments, {in.q, in.k, in.v},
                        {{want.data(), q_width}, {lse.data(), 2}});
  cpu::attention_delta<double, double>(shape, segments, {want.data(), q_width}, {dout, q_width},
                                       {delta.data(), 2});
  dense.backward<double>(
      shape, attention_mask::causal, segments,
      {in.q, in.k, in.v, {dout, q_width}, {lse.data(), 2}, {delta.data(), 2}, to.q, to.k, to.v});
  measure(want, out);
  measure(gradient, dqkv);
  return largest > 0 ? difference / largest : 0;
}

/// One rank: its share of the plan from loaders and back to them.
result<outcome> work(backend_t& backend, const plan_layout& layout) {
  auto& device = backend.device();
  const auto s = device.main_stream();
  auto pool = group_pool<backend_t>::create(backend, {});
  if (!pool) return pool.error();
  const std::int32_t rank = pool->rank();

  std::vector<std::int32_t> loaders;
  ring_limits limits{0, 0, ranks};
  for (std::int32_t i = 0; i < layout.num_sequences(); ++i) loaders.push_back(i % ranks);
  for (const placed_pack& p : layout.packs()) {
    limits.tokens_per_rank = std::max(limits.tokens_per_rank, p.layout.view().local_rows());
    limits.sequences_per_pack = std::max(limits.sequences_per_pack, p.layout.sequences());
  }
  auto split = plan_split<backend_t>::make(*pool, layout, loaders, row_bytes, s);
  if (!split) return split.error();
  auto merge = plan_merge<backend_t>::make(*pool, layout, loaders, row_bytes, false, s);
  if (!merge) return merge.error();
  auto ring = ring_t::create(*pool, provider_t{}, shape, limits);
  if (!ring) return ring.error();
  auto context = ring->make_context();
  if (!context) return context.error();

  const sequence_rows loaded = rows_of_owner(layout, loaders, rank);
  const std::int64_t local = layout.local_rows(rank);
  auto whole_qkv = doubles(backend, loaded.rows * row_width);
  auto whole_dqkv = doubles(backend, loaded.rows * row_width);
  auto whole_dout = doubles(backend, loaded.rows * q_width);
  auto whole_out = doubles(backend, loaded.rows * q_width);
  auto qkv = doubles(backend, local * row_width);
  auto dqkv = doubles(backend, local * row_width);
  auto dout = doubles(backend, local * q_width);
  auto out = doubles(backend, local * q_width);
  auto lse = doubles(backend, local * 2);
  for (const auto* b :
       {&whole_qkv, &whole_dqkv, &whole_dout, &whole_out, &qkv, &dqkv, &dout, &out, &lse}) {
    if (!*b) return b->error();
  }
  for (std::int32_t i = 0; i < layout.num_sequences(); ++i) {
    const std::int64_t place = loaded.place[static_cast<std::size_t>(i)];
    for (std::int64_t p = 0; place >= 0 && p < layout.length(i); ++p) {
      for (std::int64_t c = 0; c < row_width; ++c) {
        data(*whole_qkv)[(place + p) * row_width + c] = number(layout.id(i), p, c);
      }
      for (std::int64_t c = 0; c < q_width; ++c) {
        data(*whole_dout)[(place + p) * q_width + c] = number(layout.id(i), p, row_width + c);
      }
    }
  }

  outcome mine;
  DYNCP_TRY(split->run(data(*whole_qkv), data(*qkv), row_bytes, s));
  DYNCP_TRY(split->run(data(*whole_dout), data(*dout), out_bytes, s));
  for (std::int32_t m = 0; m < layout.num_micro_batches(); ++m) {
    auto params = layout.params(rank, m, [&](rank_range r) { return pool->group(r); });
    if (!params) return params.error();
    if (!*params) continue;  // this rank is idle in micro-batch m
    const std::int64_t row = layout.local_begin(rank, m);
    const fused<double> in(data(*qkv) + row * row_width);
    const fused<double> to(data(*dqkv) + row * row_width);
    const thd_view<double> o{data(*out) + row * q_width, q_width};
    const thd_view<double> g{data(*dout) + row * q_width, q_width};
    const thd_view<double> l{data(*lse) + row * 2, 2};
    DYNCP_TRY(ring->prepare(*context, **params, attention_mask::causal, s));
    DYNCP_TRY(ring->forward(*context, {in.q, in.k, in.v, o, l}, s));
    DYNCP_TRY(ring->backward(*context, {in.q, in.k, in.v, o, l, g, to.q, to.k, to.v}, s));
    DYNCP_TRY(pool->synchronize(s));  // the context is filled again for the next one
    mine.bytes += ring->forward_bytes(*context) + ring->backward_bytes(*context);
  }
  DYNCP_TRY(merge->run(data(*out), data(*whole_out), out_bytes, s));
  DYNCP_TRY(merge->run(data(*dqkv), data(*whole_dqkv), row_bytes, s));
  DYNCP_TRY(pool->synchronize(s));
  mine.error = compare(layout, loaded, data(*whole_qkv), data(*whole_dout), data(*whole_out),
                       data(*whole_dqkv));

  auto everyone = pool->channel(pool->everyone());
  DYNCP_TRY(all_reduce(everyone, std::span<double>(&mine.error, 1), reduction::maximum));
  DYNCP_TRY(all_reduce(everyone, std::span<std::int64_t>(&mine.bytes, 1), reduction::sum));
  return mine;
}

std::string sizes_of(const plan& p) {
  std::map<std::int32_t, int> count;
  for (const micro_batch& mb : p.micro_batches) {
    for (const pack& pk : mb.packs) ++count[pk.ranks.size];
  }
  std::string text;
  for (const auto& [size, packs] : count) {
    text += (text.empty() ? "" : ", ") + std::to_string(packs) + " x " + std::to_string(size);
  }
  return text;
}

int fail(const error& e) {
  std::fprintf(stderr, "%s\n", e.message().c_str());
  return 1;
}

/// Runs the plan on threads and prints its line; the error tells whether it was right.
result<outcome> run(const char* name, const planned& chosen, const std::vector<sequence>& batch) {
  std::vector<sequence> scaled = batch;
  for (sequence& q : scaled) q.length = (q.length + scale - 1) / scale;
  auto layout = plan_layout::make(chosen.plan, scaled, layout_kind::zigzag);
  if (!layout) return layout.error();
  cpu::thread_world world({.ranks = ranks});
  std::optional<outcome> seen;
  const auto results = cpu::run_ranks(world, {}, [&](backend_t& backend) -> result<void> {
    auto done = work(backend, *layout);
    if (!done) return done.error();
    if (backend.fabric().rank() == 0) seen = *done;
    return {};
  });
  for (const auto& r : results) {
    if (!r) return r.error();
  }
  std::printf("%-12s %9.1f %6d   %-28s %8.2f   %.1e\n", name, 1e3 * chosen.statistics.iteration_s,
              chosen.plan.num_micro_batches(), sizes_of(chosen.plan).c_str(),
              static_cast<double>(seen->bytes) / 1048576.0, seen->error);
  return *seen;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: ring_attention LENGTHS\n"), 2;
  const auto lengths = read_length_file(argv[1]);
  if (!lengths) return fail(lengths.error());
  problem job;
  for (const std::int64_t length : lengths->lengths) {
    if (length < 16 || length > 131072) continue;
    job.sequences.push_back({static_cast<std::int64_t>(job.sequences.size()), length, -1});
    if (job.sequences.size() == 256) break;
  }
  job.model = find_model("reference-13b").value();
  job.cluster = find_cluster("reference-13b").value();
  job.parallel.ranks = ranks;
  job.parallel.static_cp = ranks;
  job.limits.max_tokens_per_rank = 16384;
  job.padding.zigzag = true;

  const analytic_cost cost(job.model, job.cluster, job.parallel);
  const auto fixed = planner{cost, packing_only{}}.plan(job);
  if (!fixed) return fail(fixed.error());
  const auto dynamic = planner{cost}.plan(job);
  if (!dynamic) return fail(dynamic.error());

  std::printf("%zu sequences on %d ranks of %lld tokens; run with lengths / %lld\n\n",
              job.sequences.size(), ranks, static_cast<long long>(job.limits.max_tokens_per_rank),
              static_cast<long long>(scale));
  std::printf("%-12s %9s %6s   %-28s %8s   %s\n", "", "planned", "micro-", "packs x ranks", "ring",
              "error against");
  std::printf("%-12s %9s %6s   %-28s %8s   %s\n", "", "ms", "batch.", "", "MiB", "whole sequences");
  const auto by_static = run("static CP", *fixed, job.sequences);
  if (!by_static) return fail(by_static.error());
  const auto by_plan = run("dynamic CP", *dynamic, job.sequences);
  if (!by_plan) return fail(by_plan.error());
  std::printf("\nthe plan sends %.1f %% of the bytes of static CP\n",
              100.0 * static_cast<double>(by_plan->bytes) / static_cast<double>(by_static->bytes));
  // Not a number is no small error.
  return by_static->error < 1e-12 && by_plan->error < 1e-12 ? 0 : 1;
}
