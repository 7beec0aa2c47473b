// SPDX-License-Identifier: Apache-2.0
// Blocked attention of the CPU backend beside Eigen's matrix product of the same shape, in one
// run of one thread: q k^T and p v as whole matrices forward, the five products of the gradient
// backward. Prints GFLOP/s (by CPU time, best of the repetitions; a causal mask counts the pairs it
// leaves) and the ratio. The argument is the number of repetitions.
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/bfloat16.hpp>
#include <dyncp/cpu/attention_rows.hpp>
#include <dyncp/cpu/blocked_attention.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/ring_steps.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <vector>

namespace {

using namespace dyncp;

template <class T>
using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Best CPU time of some works, run in turn so that a busy machine slows all of them alike.
template <class... Works>
std::array<double, sizeof...(Works)> best_seconds(int repetitions, Works... works) {
  std::array<double, sizeof...(Works)> best;
  best.fill(std::numeric_limits<double>::infinity());
  for (int i = 0; i <= repetitions; ++i) {  // the first warms up
    std::size_t w = 0;
    const auto time = [&](auto& work) {
      const std::clock_t start = std::clock();
      work();
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      if (i > 0) best[w] = std::min(best[w], seconds);
      ++w;
    };
    (time(works), ...);
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

/// The matrix products that attention is made of, over whole matrices.
template <class Acc>
class products {
 public:
  products(std::int32_t length, std::int32_t dim)
      : q_(matrix<Acc>::Random(length, dim)),
        k_(matrix<Acc>::Random(length, dim)),
        s_(matrix<Acc>::Zero(length, length)),
        o_(length, dim) {}

  void forward() {
    s_.noalias() = q_ * k_.transpose();
    o_.noalias() = s_ * k_;
  }
  void backward() {
    forward();
    s_.noalias() = q_ * k_.transpose();
    o_.noalias() = s_.transpose() * k_;
    o_.noalias() = s_.transpose() * q_;
  }

 private:
  matrix<Acc> q_, k_, s_, o_;
};

/// Returns the lower of the two ratios.
template <class T>
double run(const char* type, std::int32_t length, const attention_shape& shape, attention_mask mask,
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
  const attention_gradients<T> io{in.q,
                                  in.k,
                                  in.v,
                                  {dout.data(), o_width},
                                  {lse.data(), shape.q_heads},
                                  {delta.data(), shape.q_heads},
                                  {dq.data(), q_width},
                                  {dk.data(), k_width},
                                  {dv.data(), v_width}};
  kernel.forward<T>(shape, mask, {&segment, 1}, in, partial);
  cpu::attention_delta<T, acc>(shape, {&segment, 1}, {out.data(), o_width}, {dout.data(), o_width},
                               {delta.data(), shape.q_heads});
  products<acc> gemm(length, shape.qk_dim);
  const auto seconds = best_seconds(
      repetitions,
      [&] {
        kernel.forward<T>(shape, mask, {&segment, 1}, in, partial);
      },
      [&] { gemm.forward(); },
      [&] {
        kernel.backward<T>(shape, mask, {&segment, 1}, io);
      },
      [&] { gemm.backward(); });

  const double square = 2.0 * length * length * shape.qk_dim * 1e-9;
  const double forward_gflops = 2e-9 * pairs * (shape.qk_dim + shape.v_dim) / seconds[0];
  const double gemm_forward = 2.0 * square / seconds[1];
  const double backward_gflops =
      2e-9 * pairs * (3.0 * shape.qk_dim + 2.0 * shape.v_dim) / seconds[2];
  const double gemm_backward = 5.0 * square / seconds[3];
  std::printf("%-8s %6d %3d/%-3d %4d %-6s %8.1f %8.1f %6.2f %9.1f %8.1f %6.2f\n", type, length,
              shape.q_heads, shape.kv_heads, shape.qk_dim,
              mask == attention_mask::causal ? "causal" : "full", forward_gflops, gemm_forward,
              forward_gflops / gemm_forward, backward_gflops, gemm_backward,
              backward_gflops / gemm_backward);
  return std::min(forward_gflops / gemm_forward, backward_gflops / gemm_backward);
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  std::printf("%-8s %6s %7s %4s %-6s %8s %8s %6s %9s %8s %6s\n", "type", "tokens", "heads", "dim",
              "mask", "forward", "GEMM", "ratio", "backward", "GEMM", "ratio");
  double lowest = std::numeric_limits<double>::infinity();
  for (const attention_mask mask : {attention_mask::causal, attention_mask::full}) {
    for (const std::int32_t length : {512, 2048}) {
      for (const std::int32_t dim : {64, 128}) {
        const attention_shape shape{4, 2, dim, dim, default_scale(dim)};
        lowest = std::min(lowest, run<float>("float", length, shape, mask, repetitions));
        lowest = std::min(lowest, run<bfloat16>("bfloat16", length, shape, mask, repetitions));
        lowest = std::min(lowest, run<double>("double", length, shape, mask, repetitions));
      }
    }
  }
  std::printf("lowest ratio %.2f\n", lowest);
  return 0;
}
