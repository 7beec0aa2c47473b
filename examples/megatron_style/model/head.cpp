// SPDX-License-Identifier: Apache-2.0
#include "head.hpp"

#include "layers.hpp"

#include <cmath>
#include <cstddef>
#include <utility>

namespace megatron_style {

template <class T>
head<T>::head(const model_config& config, const model_part& part, parameter_set<T>& parameters,
              tensor_parallel<T>& tp)
    : config_(config),
      parameters_(&parameters),
      tp_(&tp),
      first_(part.tp_rank * (config.vocabulary / part.tp)),
      size_(config.vocabulary / part.tp) {}

template <class T>
matrix<T> head<T>::embed(const model_batch<T>& batch) const {
  const const_matrix_map<T> table = parameters_->value(parameters_->embedding());
  matrix<T> x = matrix<T>::Zero(batch.rows, config_.hidden);
  for (Eigen::Index row = 0; row < batch.rows; ++row) {
    const Eigen::Index token = batch.tokens[static_cast<std::size_t>(row)] - first_;
    if (token >= 0 && token < size_) x.row(row) = table.row(token);
  }
  tp_->sum(x);
  if (batch.extra != nullptr) x += *batch.extra;
  return x;
}

template <class T>
void head<T>::embed_backward(const matrix<T>& dx, const model_batch<T>& batch) const {
  matrix_map<T> gradient = parameters_->gradient(parameters_->embedding());
  for (Eigen::Index row = 0; row < batch.rows; ++row) {
    const Eigen::Index token = batch.tokens[static_cast<std::size_t>(row)] - first_;
    if (token >= 0 && token < size_) gradient.row(token) += dx.row(row);
  }
}

template <class T>
void head<T>::forward(matrix<T> x, const model_batch<T>& batch, head_context<T>& c) const {
  const const_matrix_map<T> table = parameters_->value(parameters_->embedding());
  c.input = std::move(x);
  c.normal = rms_norm(c.input, parameters_->value(parameters_->final_norm()), config_.norm_epsilon,
                      c.inverse);
  const Eigen::Index rows = c.input.rows();
  c.dlogits.noalias() = c.normal * table.transpose();

  column<T> highest = c.dlogits.rowwise().maxCoeff();
  tp_->maximum({highest.data(), static_cast<std::size_t>(rows)});
  matrix<T> sums = matrix<T>::Zero(2, rows);  // of exponentials; logits of the labels
  for (Eigen::Index row = 0; row < rows; ++row) {
    const Eigen::Index label = batch.labels[static_cast<std::size_t>(row)] - first_;
    if (label >= 0 && label < size_) sums(1, row) = c.dlogits(row, label) - highest(row);
    c.dlogits.row(row) = (c.dlogits.row(row).array() - highest(row)).exp();
    sums(0, row) = c.dlogits.row(row).sum();
  }
  tp_->sum(sums);

  c.losses.assign(static_cast<std::size_t>(rows), T{0});
  for (Eigen::Index row = 0; row < rows; ++row) {
    const auto i = static_cast<std::size_t>(row);
    if (batch.labels[i] < 0) {
      c.dlogits.row(row).setZero();
      continue;
    }
    c.losses[i] = std::log(sums(0, row)) - sums(1, row);
    c.dlogits.row(row) /= sums(0, row);
    const Eigen::Index label = batch.labels[i] - first_;
    if (label >= 0 && label < size_) c.dlogits(row, label) -= T{1};
  }
}

template <class T>
matrix<T> head<T>::backward(head_context<T>& c) const {
  parameter_set<T>& p = *parameters_;
  p.gradient(p.embedding()).noalias() += c.dlogits.transpose() * c.normal;
  matrix<T> dnormal(c.input.rows(), c.input.cols());
  dnormal.noalias() = c.dlogits * p.value(p.embedding());
  tp_->sum(dnormal);
  return rms_norm_backward(dnormal, c.input, p.value(p.final_norm()), c.inverse,
                           p.gradient(p.final_norm()));
}

template class head<float>;
template class head<double>;

}  // namespace megatron_style
