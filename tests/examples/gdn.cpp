// SPDX-License-Identifier: Apache-2.0
// The example's gated-delta-rule layer: against its definition, finite differences, and one rank.
#include "gdn/gdn_layer.hpp"
#include "gdn/run.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace gdn;

namespace {

/// y of a sequence, term by term from the definition.
matrix definition(const layer_shape& s, const layer_weights& w, const matrix& x) {
  const matrix z = x * w.in;
  const auto sigmoid = [](double a) { return 1.0 / (1.0 + std::exp(-a)); };
  matrix mixed(x.rows(), s.mixed());
  for (Eigen::Index t = 0; t < x.rows(); ++t) {
    for (Eigen::Index c = 0; c < s.mixed(); ++c) {
      double sum = 0;
      for (Eigen::Index j = 0; j < s.taps && j <= t; ++j) sum += w.conv(j, c) * z(t - j, c);
      mixed(t, c) = sum * sigmoid(sum);
    }
  }
  matrix out(x.rows(), s.out());
  for (Eigen::Index h = 0; h < s.heads; ++h) {
    matrix state = matrix::Zero(s.value, s.key);
    for (Eigen::Index t = 0; t < x.rows(); ++t) {
      Eigen::VectorXd q = mixed.row(t).segment(h * s.key, s.key).transpose();
      Eigen::VectorXd k = mixed.row(t).segment((s.heads + h) * s.key, s.key).transpose();
      const Eigen::VectorXd v =
          mixed.row(t).segment(2 * s.heads * s.key + h * s.value, s.value).transpose();
      q /= std::sqrt(q.squaredNorm() + 1e-6);
      k /= std::sqrt(k.squaredNorm() + 1e-6);
      const double beta = sigmoid(z(t, s.mixed() + h));
      const double alpha = sigmoid(z(t, s.mixed() + s.heads + h));
      const matrix unit = matrix::Identity(s.key, s.key);
      state =
          (state * (alpha * (unit - beta * k * k.transpose())) + beta * v * k.transpose()).eval();
      out.row(t).segment(h * s.value, s.value) = (state * q).transpose();
    }
  }
  return out * w.out;
}

double largest(const matrix& a) {
  return a.size() == 0 ? 0.0 : a.cwiseAbs().maxCoeff();
}

}  // namespace

TEST_CASE("the layer is its definition, its gradients are finite differences") {
  const layer_shape shape{.hidden = 5, .heads = 2, .key = 3, .value = 2, .taps = 3};
  layer_weights weights = layer_weights::random(shape, 4);
  run_options o;
  o.shape = shape;
  o.lengths = {7};
  matrix x = input_of(o, 0);
  const matrix dy = output_gradient_of(o, 0);
  layer_weights gradients = layer_weights::zeros(shape);
  const alone got = run_alone(shape, weights, x, dy, gradients);
  CHECK(largest(got.y - definition(shape, weights, x)) < 1e-14);

  const auto loss = [&] { return (definition(shape, weights, x).array() * dy.array()).sum(); };
  const auto check = [&](matrix& of, const matrix& gradient) {
    constexpr double step = 1e-6;
    for (Eigen::Index i = 0; i < of.size(); ++i) {
      const double kept = of.data()[i];
      of.data()[i] = kept + step;
      const double above = loss();
      of.data()[i] = kept - step;
      const double below = loss();
      of.data()[i] = kept;
      CHECK(std::abs((above - below) / (2 * step) - gradient.data()[i]) < 1e-7);
    }
  };
  check(x, got.dx);
  check(weights.in, gradients.in);
  check(weights.conv, gradients.conv);
  check(weights.out, gradients.out);
}

TEST_CASE("runs one behind the other do what they do together") {
  const layer_shape shape;
  const layer_weights weights = layer_weights::random(shape, 9);
  run_options o;
  o.lengths = {12};
  const matrix z = input_of(o, 0) * weights.in;
  token_run whole(shape, weights.conv);
  const std::vector<double> all = whole.begin(z, 0);
  for (Eigen::Index cut = 0; cut <= 12; ++cut) {
    const Eigen::Index halo = std::min<Eigen::Index>(cut, shape.taps - 1);
    token_run first(shape, weights.conv);
    token_run second(shape, weights.conv);
    const std::vector<double> a = first.begin(z.topRows(cut), 0);
    const std::vector<double> b = second.begin(z.bottomRows(12 - cut + halo), halo);
    const std::vector<double> both = compose(shape, a, b);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(both[i] == doctest::Approx(all[i]).epsilon(1e-12));
    }
  }
}

TEST_CASE("packs on groups of all sizes give what one rank gives") {
  std::set<std::int32_t> sizes;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    run_options o;
    o.seed = seed;
    o.lengths = {500, 300, 180, 120, 90, 70, 33, 17, 40, 5, 1, 64, 28, 12, 9, 3};
    // Other packs with every seed.
    std::rotate(o.lengths.begin(), o.lengths.begin() + static_cast<std::ptrdiff_t>(seed),
                o.lengths.end());
    o.max_tokens_per_rank = 60 + static_cast<std::int64_t>(seed) * 8;
    const run_result r = run_ranks(o);
    REQUIRE(r.failures == std::vector<std::string>{});
    sizes.insert(r.cp_sizes.begin(), r.cp_sizes.end());
    CHECK(r.output_error <= 1e-10);
    CHECK(r.input_gradient_error <= 1e-10);
    CHECK(r.weight_gradient_error <= 1e-10);
    CHECK(r.row_bytes > 0);
    CHECK(r.state_bytes > 0);
  }
  CHECK(sizes == std::set<std::int32_t>{1, 2, 4, 8});
}

TEST_CASE("runs shorter than the convolution reach back over several ranks") {
  run_options o;
  o.ranks = 8;
  o.max_tokens_per_rank = 2;  // every sequence on all ranks, one or two tokens each
  o.lengths = {16, 13, 11, 10};
  const run_result r = run_ranks(o);
  REQUIRE(r.failures == std::vector<std::string>{});
  CHECK(r.cp_sizes == std::vector<std::int32_t>{8});
  CHECK(r.output_error <= 1e-10);
  CHECK(r.input_gradient_error <= 1e-10);
  CHECK(r.weight_gradient_error <= 1e-10);
}

TEST_CASE("one rank, one sequence, one token") {
  run_options o;
  o.ranks = 1;
  o.lengths = {1};
  const run_result r = run_ranks(o);
  REQUIRE(r.failures == std::vector<std::string>{});
  CHECK(r.output_error <= 1e-14);
  CHECK(r.row_bytes == 0);
}
