// SPDX-License-Identifier: Apache-2.0
// What a ring adds to the work: forward and backward passes over one pack by N ranks that are
// threads, against one rank that does all of it with the same kernels. CPU time of the process, so
// that the number of cores does not matter; best of the repetitions, the argument is their number.
#include <dyncp/attention/ring_attention.hpp>
#include <dyncp/cpu/attention.hpp>
#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <utility>
#include <vector>

namespace {

using namespace dyncp;
using backend_t = cpu::thread_backend;
using provider_t = cpu::attention<>;

/// CPU seconds of one forward and backward pass by all ranks together.
template <class T>
double best_seconds(int repetitions, std::int32_t ranks, const std::vector<std::int64_t>& lengths,
                    const attention_shape& shape) {
  double best = std::numeric_limits<double>::infinity();
  cpu::thread_world world({.ranks = ranks});
  std::barrier<> line(ranks);
  std::clock_t start = 0;
  const auto results = cpu::run_ranks(world, {}, [&](backend_t& backend) -> result<void> {
    auto& device = backend.device();
    const auto s = device.main_stream();
    auto pool = group_pool<backend_t>::create(backend, {}).value();
    std::vector<std::int64_t> ids(lengths.size());
    const auto params =
        make_packed_seq_params(ids, lengths, pool.everyone(), layout_kind::zigzag, {.zigzag = true})
            .value();
    const std::int32_t rows = params.local_tokens();
    auto ring =
        ring_attention<T, backend_t, provider_t>::create(
            pool, provider_t{}, shape, {rows, static_cast<std::int32_t>(lengths.size()), ranks})
            .value();
    auto context = ring.make_context().value();
    DYNCP_TRY(ring.prepare(context, params, attention_mask::causal, s));
    const std::int64_t q = std::int64_t{shape.q_heads} * shape.qk_dim;
    const std::int64_t kv = std::int64_t{shape.kv_heads} * shape.qk_dim;
    auto memory =
        device.allocate((5 * q + 4 * kv) * rows * static_cast<std::int64_t>(sizeof(T))).value();
    auto sums = device
                    .allocate(std::int64_t{shape.q_heads} * rows *
                              static_cast<std::int64_t>(sizeof(accumulator_t<T>)))
                    .value();
    T* next = static_cast<T*>(memory.data());
    for (std::int64_t i = 0; i < (5 * q + 4 * kv) * rows; ++i) {
      next[i] =
          static_cast<T>(static_cast<float>((i * 7919 + pool.rank()) % 2003) / 2003.0F - 0.5F);
    }
    const auto take = [&](std::int64_t width) {
      const thd_view<T> view{next, width};
      next += width * rows;
      return view;
    };
    const auto vq = take(q), vk = take(kv), vv = take(kv), out = take(q), dout = take(q),
               dq = take(q), dk = take(kv), dv = take(kv);
    const thd_view<accumulator_t<T>> lse{static_cast<accumulator_t<T>*>(sums.data()),
                                         shape.q_heads};
    for (int i = 0; i <= repetitions; ++i) {
      line.arrive_and_wait();
      if (pool.rank() == 0) start = std::clock();
      line.arrive_and_wait();
      DYNCP_TRY(ring.forward(context, {vq, vk, vv, out, lse}, s));
      DYNCP_TRY(ring.backward(context, {vq, vk, vv, out, lse, dout, dq, dk, dv}, s));
      DYNCP_TRY(pool.synchronize(s));
      line.arrive_and_wait();
      if (pool.rank() == 0 && i > 0) {
        best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
      }
    }
    return {};
  });
  for (const auto& r : results) {
    if (!r) std::printf("%s\n", r.error().message().c_str());
  }
  return best;
}

template <class T>
void compare(const char* type, int repetitions, const std::vector<std::int64_t>& lengths,
             const attention_shape& shape) {
  std::int64_t tokens = 0;
  for (std::int64_t length : lengths) tokens += length;
  const double one = best_seconds<T>(repetitions, 1, lengths, shape);
  for (const std::int32_t ranks : {2, 4, 8}) {
    const double all = best_seconds<T>(repetitions, ranks, lengths, shape);
    std::printf("%-8s %7lld %4zu %5d/%-3d %4d %5d %9.3f %9.3f %+8.1f %%\n", type,
                static_cast<long long>(tokens), lengths.size(), shape.q_heads, shape.kv_heads,
                shape.qk_dim, ranks, one, all, 100 * (all / one - 1));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  std::printf("%-8s %7s %4s %9s %4s %5s %9s %9s %10s\n", "type", "tokens", "seqs", "heads", "dim",
              "ranks", "alone s", "ring s", "overhead");
  const attention_shape shape{4, 2, 64, 64, default_scale(64)};
  for (const auto& lengths :
       {std::vector<std::int64_t>{4096}, std::vector<std::int64_t>{2048, 1024, 512, 256, 256}}) {
    compare<float>("float", repetitions, lengths, shape);
    compare<bfloat16>("bfloat16", repetitions, lengths, shape);
  }
  return 0;
}
