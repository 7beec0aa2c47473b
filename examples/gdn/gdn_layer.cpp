// SPDX-License-Identifier: Apache-2.0
#include "gdn_layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace gdn {
namespace {

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

/// Uniform in [-1, 1).
double draw(std::uint64_t& state) {  // SplitMix64
  state += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-52 - 1.0;
}

using block_map = Eigen::Map<matrix>;
using const_block_map = Eigen::Map<const matrix>;

/// M and U of one head in a transition.
const_block_map factor(const layer_shape& s, std::span<const double> t, Eigen::Index head) {
  return {t.data() + head * s.key * s.key, s.key, s.key};
}
const_block_map addend(const layer_shape& s, std::span<const double> t, Eigen::Index head) {
  return {t.data() + s.heads * s.key * s.key + head * s.value * s.key, s.value, s.key};
}

}  // namespace

layer_weights layer_weights::zeros(const layer_shape& shape) {
  return {matrix::Zero(shape.hidden, shape.width()), matrix::Zero(shape.taps, shape.mixed()),
          matrix::Zero(shape.out(), shape.hidden)};
}

layer_weights layer_weights::random(const layer_shape& shape, std::uint64_t seed) {
  layer_weights w = zeros(shape);
  for (matrix* m : {&w.in, &w.conv, &w.out}) {
    const double scale = std::sqrt(2.0 / static_cast<double>(m->rows()));
    for (Eigen::Index i = 0; i < m->size(); ++i) m->data()[i] = scale * draw(seed);
  }
  return w;
}

std::vector<double> compose(const layer_shape& s, std::span<const double> first,
                            std::span<const double> second) {
  std::vector<double> out(static_cast<std::size_t>(s.transition()));
  for (Eigen::Index h = 0; h < s.heads; ++h) {
    block_map(out.data() + h * s.key * s.key, s.key, s.key) =
        factor(s, first, h) * factor(s, second, h);
    block_map(out.data() + s.heads * s.key * s.key + h * s.value * s.key, s.value, s.key) =
        addend(s, first, h) * factor(s, second, h) + addend(s, second, h);
  }
  return out;
}

void apply(const layer_shape& s, std::span<const double> transition, std::span<double> state) {
  for (Eigen::Index h = 0; h < s.heads; ++h) {
    block_map at(state.data() + h * s.value * s.key, s.value, s.key);
    at = (at * factor(s, transition, h) + addend(s, transition, h)).eval();
  }
}

/// Rows of one head at one token.
struct token_run::head_token {
  Eigen::VectorXd q;
  Eigen::VectorXd k;
  Eigen::VectorXd v;
  double beta = 0;
  double alpha = 0;

  /// S (I - beta k k^T) alpha.
  [[nodiscard]] matrix decay(const matrix& s) const {
    return alpha * (s - beta * (s * k) * k.transpose());
  }
};

token_run::head_token token_run::at(Eigen::Index head, Eigen::Index token) const {
  const auto row = mixed_.row(token);
  const Eigen::Index keys = shape_.heads * shape_.key;
  return {row.segment(head * shape_.key, shape_.key).transpose(),
          row.segment(keys + head * shape_.key, shape_.key).transpose(),
          row.segment(2 * keys + head * shape_.value, shape_.value).transpose(),
          gates_(token, head), gates_(token, shape_.heads + head)};
}

std::vector<double> token_run::begin(matrix z, Eigen::Index halo) {
  z_ = std::move(z);
  halo_ = halo;
  tokens_ = z_.rows() - halo;
  const Eigen::Index width = shape_.mixed();
  convolved_ = matrix::Zero(tokens_, width);
  for (Eigen::Index t = 0; t < tokens_; ++t) {
    for (Eigen::Index j = 0; j < shape_.taps && j <= t + halo_; ++j) {
      convolved_.row(t).array() +=
          conv_->row(j).array() * z_.row(halo_ + t - j).head(width).array();
    }
  }
  mixed_ = convolved_.unaryExpr([](double x) { return x * sigmoid(x); });
  norms_.resize(tokens_, 2 * shape_.heads);
  for (Eigen::Index t = 0; t < tokens_; ++t) {
    for (Eigen::Index h = 0; h < 2 * shape_.heads; ++h) {
      auto part = mixed_.row(t).segment(h * shape_.key, shape_.key);
      norms_(t, h) = std::sqrt(part.squaredNorm() + 1e-6);
      part /= norms_(t, h);
    }
  }
  gates_ = z_.bottomRows(tokens_).rightCols(2 * shape_.heads).unaryExpr(&sigmoid);

  std::vector<double> out(static_cast<std::size_t>(shape_.transition()));
  for (Eigen::Index h = 0; h < shape_.heads; ++h) {
    matrix m = matrix::Identity(shape_.key, shape_.key);
    matrix u = matrix::Zero(shape_.value, shape_.key);
    for (Eigen::Index t = 0; t < tokens_; ++t) {
      const head_token now = at(h, t);
      m = now.decay(m);
      u = now.decay(u) + now.beta * now.v * now.k.transpose();
    }
    block_map(out.data() + h * shape_.key * shape_.key, shape_.key, shape_.key) = m;
    block_map(out.data() + shape_.heads * shape_.key * shape_.key + h * shape_.value * shape_.key,
              shape_.value, shape_.key) = u;
  }
  return out;
}

matrix token_run::forward(std::span<const double> state) {
  matrix out(tokens_, shape_.out());
  // All states are kept for the backward pass; a kernel keeps one a chunk and makes the rest again.
  states_.resize(static_cast<std::size_t>(shape_.heads * (tokens_ + 1)));
  for (Eigen::Index h = 0; h < shape_.heads; ++h) {
    state_before(h, 0) =
        const_block_map(state.data() + h * shape_.value * shape_.key, shape_.value, shape_.key);
    for (Eigen::Index t = 0; t < tokens_; ++t) {
      const head_token now = at(h, t);
      state_before(h, t + 1) = now.decay(state_before(h, t)) + now.beta * now.v * now.k.transpose();
      out.row(t).segment(h * shape_.value, shape_.value) =
          (state_before(h, t + 1) * now.q).transpose();
    }
  }
  return out;
}

std::vector<double> token_run::backward_begin(const matrix& dout) {
  dout_ = dout;
  std::vector<double> out(static_cast<std::size_t>(shape_.transition()));
  for (Eigen::Index h = 0; h < shape_.heads; ++h) {
    // From the end: the gradient of the state before a token is that behind it, decayed alike.
    matrix m = matrix::Identity(shape_.key, shape_.key);
    matrix v = matrix::Zero(shape_.value, shape_.key);
    for (Eigen::Index t = tokens_ - 1; t >= 0; --t) {
      const head_token now = at(h, t);
      const Eigen::VectorXd dy = dout_.row(t).segment(h * shape_.value, shape_.value).transpose();
      v = now.decay(v + dy * now.q.transpose());
      m = now.decay(m);
    }
    block_map(out.data() + h * shape_.key * shape_.key, shape_.key, shape_.key) = m;
    block_map(out.data() + shape_.heads * shape_.key * shape_.key + h * shape_.value * shape_.key,
              shape_.value, shape_.key) = v;
  }
  return out;
}

matrix token_run::backward(std::span<const double> dstate, matrix& dconv) {
  const Eigen::Index keys = shape_.heads * shape_.key;
  const Eigen::Index width = shape_.mixed();
  matrix dmixed = matrix::Zero(tokens_, width);
  matrix dgates(tokens_, 2 * shape_.heads);
  for (Eigen::Index h = 0; h < shape_.heads; ++h) {
    matrix ds =
        const_block_map(dstate.data() + h * shape_.value * shape_.key, shape_.value, shape_.key);
    for (Eigen::Index t = tokens_ - 1; t >= 0; --t) {
      const head_token now = at(h, t);
      const matrix& before = state_before(h, t);
      const Eigen::VectorXd dy = dout_.row(t).segment(h * shape_.value, shape_.value).transpose();
      ds += dy * now.q.transpose();
      const Eigen::VectorXd seen = before * now.k;  // S_(t-1) k
      const Eigen::VectorXd along = ds * now.k;
      const Eigen::VectorXd dseen = -now.alpha * now.beta * along;
      dmixed.row(t).segment(h * shape_.key, shape_.key) =
          (state_before(h, t + 1).transpose() * dy).transpose();
      dmixed.row(t).segment(keys + h * shape_.key, shape_.key) =
          (ds.transpose() * (now.beta * now.v - now.alpha * now.beta * seen) +
           before.transpose() * dseen)
              .transpose();
      dmixed.row(t).segment(2 * keys + h * shape_.value, shape_.value) =
          now.beta * along.transpose();
      dgates(t, h) = (now.v - now.alpha * seen).dot(along);
      dgates(t, shape_.heads + h) =
          (ds.array() * before.array()).sum() - now.beta * seen.dot(along);
      ds = now.decay(ds);
    }
  }
  // Norms, silu, gates.
  for (Eigen::Index t = 0; t < tokens_; ++t) {
    for (Eigen::Index h = 0; h < 2 * shape_.heads; ++h) {
      auto d = dmixed.row(t).segment(h * shape_.key, shape_.key);
      const auto unit = mixed_.row(t).segment(h * shape_.key, shape_.key);
      d = ((d - unit * d.dot(unit)) / norms_(t, h)).eval();
    }
  }
  dmixed.array() *= convolved_
                        .unaryExpr([](double x) {
                          const double s = sigmoid(x);
                          return s * (1.0 + x * (1.0 - s));
                        })
                        .array();

  matrix dz = matrix::Zero(halo_ + tokens_, shape_.width());
  dz.bottomRows(tokens_).rightCols(2 * shape_.heads) =
      dgates.array() * gates_.array() * (1.0 - gates_.array());
  for (Eigen::Index t = 0; t < tokens_; ++t) {
    for (Eigen::Index j = 0; j < shape_.taps && j <= t + halo_; ++j) {
      dconv.row(j).array() += dmixed.row(t).array() * z_.row(halo_ + t - j).head(width).array();
      dz.row(halo_ + t - j).head(width).array() += dmixed.row(t).array() * conv_->row(j).array();
    }
  }
  return dz;
}

}  // namespace gdn
