// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config.hpp"
#include "interfaces.hpp"
#include "rope.hpp"
#include "tensor.hpp"

#include <cmath>
#include <limits>

namespace megatron_style {

/// Rotary embedding and causal attention over one sequence that is alone on one rank, from the
/// definition: the reference that packs, rings and plans are compared with. It knows nothing of any
/// of them.
template <class T>
class dense_attention final : public attention<T> {
 public:
  explicit dense_attention(const model_config& config)
      : base_(config.rope_base),
        dim_(config.head_dim),
        heads_(config.q_heads),
        group_(config.q_heads / config.kv_heads),
        scale_(static_cast<T>(1.0 / std::sqrt(static_cast<double>(config.head_dim)))) {}

  void forward(matrix<T>& q, matrix<T>& kv, matrix<T>& out, matrix<T>& lse) override {
    turn_sequence<T>(q, dim_, base_, false);
    turn_sequence<T>(kv.topRows(q.rows()), dim_, base_, false);
    out.resize(q.rows(), q.cols());
    lse.resize(q.rows(), heads_);
    for (Eigen::Index h = 0; h < heads_; ++h) {
      const matrix<T> weights = softmax(q, kv, h, lse);
      out.middleCols(h * dim_, dim_).noalias() = weights * values(kv, h);
    }
  }

  void backward(const matrix<T>& q, const matrix<T>& kv, const matrix<T>&, const matrix<T>&,
                const matrix<T>& dout, matrix<T>& dq, matrix<T>& dkv) override {
    const Eigen::Index rows = q.rows();
    matrix<T> lse(rows, heads_);
    dkv.setZero();
    for (Eigen::Index h = 0; h < heads_; ++h) {
      const matrix<T> weights = softmax(q, kv, h, lse);
      const auto dout_h = dout.middleCols(h * dim_, dim_);
      dkv.block(rows, h / group_ * dim_, rows, dim_).noalias() += weights.transpose() * dout_h;
      matrix<T> dscores = dout_h * values(kv, h).transpose();
      const column<T> along = (dscores.array() * weights.array()).matrix().rowwise().sum();
      dscores = (dscores.array().colwise() - along.array()) * weights.array() * scale_;
      dq.middleCols(h * dim_, dim_).noalias() = dscores * keys(kv, h);
      dkv.block(0, h / group_ * dim_, rows, dim_).noalias() +=
          dscores.transpose() * q.middleCols(h * dim_, dim_);
    }
    turn_sequence<T>(dq, dim_, base_, true);
    turn_sequence<T>(dkv.topRows(rows), dim_, base_, true);
  }

 private:
  [[nodiscard]] auto keys(const matrix<T>& kv, Eigen::Index h) const {
    return kv.block(0, h / group_ * dim_, kv.rows() / 2, dim_);
  }
  [[nodiscard]] auto values(const matrix<T>& kv, Eigen::Index h) const {
    return kv.block(kv.rows() / 2, h / group_ * dim_, kv.rows() / 2, dim_);
  }
  [[nodiscard]] matrix<T> softmax(const matrix<T>& q, const matrix<T>& kv, Eigen::Index h,
                                  matrix<T>& lse) const {
    matrix<T> scores = scale_ * q.middleCols(h * dim_, dim_) * keys(kv, h).transpose();
    for (Eigen::Index row = 0; row < scores.rows(); ++row) {
      for (Eigen::Index later = row + 1; later < scores.cols(); ++later) {
        scores(row, later) = -std::numeric_limits<T>::infinity();
      }
      const T highest = scores.row(row).maxCoeff();
      scores.row(row) = (scores.row(row).array() - highest).exp();
      const T sum = scores.row(row).sum();
      scores.row(row) /= sum;
      lse(row, h) = highest + std::log(sum);
    }
    return scores;
  }

  double base_;
  Eigen::Index dim_;
  Eigen::Index heads_;
  Eigen::Index group_;
  T scale_;
};

}  // namespace megatron_style
