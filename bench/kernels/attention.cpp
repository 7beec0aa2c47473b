// SPDX-License-Identifier: Apache-2.0
// Blocked attention of the CPU backend beside Eigen's matrix product of the same shape, in one
// run of one thread: q k^T and p v as whole matrices forward, the five products of the gradient
// backward. Prints GFLOP/s (best of the repetitions; a causal mask counts the pairs it leaves) and
// the ratio. The argument is the number of repetitions.
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/bfloat16.hpp>
#include <dyncp/cpu/attention_rows.hpp>
#include <dyncp/cpu/blocked_attention.hpp>
#include <dyncp/cpu/plain_attention.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/ring_steps.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

namespace {

using namespace dyncp;

template <class T>
using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class Work>
double best_seconds(int repetitions, Work work) {
  work();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count());
  }
  return best;
}

template <class T>
std::vector<T> random_values(std::size_t n, std::uint64_t seed) {
  std::vector<T> out(n);
  for (T& x : out) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    x = static_cast<T>(static_cast<float>(seed >> 40) / 8388608.0F - 1.0F);
  }
  return out;
}

/// GFLOP/s of the matrix products that attention is made of.
template <class Acc>
double gemm_gflops(std::int32_t length, std::int32_t dim, bool backward, int repetitions) {
  const matrix<Acc> q = matrix<Acc>::Random(length, dim);
  const matrix<Acc> k = matrix<Acc>::Random(length, dim);
  matrix<Acc> s(length, length);
  matrix<Acc> o(length, dim);
  s.setZero();
  const double products = backward ? 5.0 : 2.0;
  const double seconds = best_seconds(repetitions, [&] {
    s.noalias() = q * k.transpose();
    o.noalias() = s * k;
    if (backward) {
      s.noalias() = q * k.transpose();
      o.noalias() = s.transpose() * k;
      o.noalias() = s.transpose() * q;
    }
  });
  return products * 2.0 * length * length * dim / seconds * 1e-9;
}

template <class T>
void run(const char* type, std::int32_t length, const attention_shape& shape, attention_mask mask,
         int repetitions) {
  using acc = accumulator_t<T>;
  const auto rows = static_cast<std::size_t>(length);
  const std::int64_t q_width = std::int64_t{shape.q_heads} * shape.qk_dim;
  const std::int64_t k_width = std::int64_t{shape.kv_heads} * shape.qk_dim;
  const std::int64_t v_width = std::int64_t{shape.kv_heads} * shape.v_dim;
  const std::int64_t o_width = std::int64_t{shape.q_heads} * shape.v_dim;
  const auto size = [rows](std::int64_t width) { return rows * static_cast<std::size_t>(width); };
  const auto q = random_values<T>(size(q_width), 1);
  const auto k = random_values<T>(size(k_width), 2);
  const auto v = random_values<T>(size(v_width), 3);
  const auto dout = random_values<T>(size(o_width), 4);
  std::vector<acc> out(size(o_width)), lse(size(shape.q_heads)), delta(size(shape.q_heads));
  std::vector<acc> dq(size(q_width)), dk(size(k_width)), dv(size(v_width));
  const attention_segment segment{0, length, 0, length};
  const attention_operands<T> in{{q.data(), q_width}, {k.data(), k_width}, {v.data(), v_width}};
  const attention_partial<T> partial{{out.data(), o_width}, {lse.data(), shape.q_heads}};
  const double pairs = static_cast<double>(attended_pairs(segment, mask)) * shape.q_heads;

  cpu::blocked_attention kernel;
  const double forward_s = best_seconds(repetitions, [&] {
    kernel.forward<T>(shape, mask, {&segment, 1}, in, partial);
  });
  cpu::attention_delta<T, acc>(shape, {&segment, 1}, {out.data(), o_width}, {dout.data(), o_width},
                               {delta.data(), shape.q_heads});
  const attention_gradients<T> io{in.q,
                                  in.k,
                                  in.v,
                                  {dout.data(), o_width},
                                  {lse.data(), shape.q_heads},
                                  {delta.data(), shape.q_heads},
                                  {dq.data(), q_width},
                                  {dk.data(), k_width},
                                  {dv.data(), v_width}};
  const double backward_s = best_seconds(repetitions, [&] {
    kernel.backward<T>(shape, mask, {&segment, 1}, io);
  });

  const double forward_gflops = 2.0 * pairs * (shape.qk_dim + shape.v_dim) / forward_s * 1e-9;
  const double backward_gflops =
      2.0 * pairs * (3.0 * shape.qk_dim + 2.0 * shape.v_dim) / backward_s * 1e-9;
  const double gemm_forward = gemm_gflops<acc>(length, shape.qk_dim, false, repetitions);
  const double gemm_backward = gemm_gflops<acc>(length, shape.qk_dim, true, repetitions);
  std::printf("%-8s %6d %3d/%-3d %4d %-6s %8.1f %8.1f %6.2f %9.1f %8.1f %6.2f\n", type, length,
              shape.q_heads, shape.kv_heads, shape.qk_dim,
              mask == attention_mask::causal ? "causal" : "full", forward_gflops, gemm_forward,
              forward_gflops / gemm_forward, backward_gflops, gemm_backward,
              backward_gflops / gemm_backward);
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  std::printf("%-8s %6s %7s %4s %-6s %8s %8s %6s %9s %8s %6s\n", "type", "tokens", "heads", "dim",
              "mask", "forward", "GEMM", "ratio", "backward", "GEMM", "ratio");
  for (const attention_mask mask : {attention_mask::causal, attention_mask::full}) {
    for (const std::int32_t length : {512, 2048}) {
      for (const std::int32_t dim : {64, 128}) {
        const attention_shape shape{4, 2, dim, dim, default_scale(dim)};
        run<float>("float", length, shape, mask, repetitions);
        run<bfloat16>("bfloat16", length, shape, mask, repetitions);
        run<double>("double", length, shape, mask, repetitions);
      }
    }
  }
  return 0;
}
