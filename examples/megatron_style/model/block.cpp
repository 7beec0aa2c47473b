// SPDX-License-Identifier: Apache-2.0
#include "block.hpp"

#include "layers.hpp"

#include <utility>

namespace megatron_style {

template <class T>
matrix<T> block<T>::forward(matrix<T> x, const model_batch<T>& batch, block_context<T>& c) const {
  const parameter_set<T>& p = *parameters_;
  const double epsilon = config_.norm_epsilon;
  const Eigen::Index rows = x.rows();
  c.input = std::move(x);

  matrix<T> normal = rms_norm(c.input, p.value(where_.attention_norm), epsilon, c.inverse);
  c.q.noalias() = normal * p.value(where_.wq);
  c.kv.resize(2 * rows, p.value(where_.wk).cols());
  c.kv.topRows(rows).noalias() = normal * p.value(where_.wk);
  c.kv.bottomRows(rows).noalias() = normal * p.value(where_.wv);
  batch.attend->forward(c.q, c.kv, c.attended, c.lse);
  matrix<T> out(rows, c.input.cols());
  out.noalias() = c.attended * p.value(where_.wo);
  tp_->sum(out);
  c.middle = c.input + out;

  normal = rms_norm(c.middle, p.value(where_.ffn_norm), epsilon, c.middle_inverse);
  c.gate.noalias() = normal * p.value(where_.gate);
  c.up.noalias() = normal * p.value(where_.up);
  out.noalias() = swiglu(c.gate, c.up) * p.value(where_.down);
  tp_->sum(out);
  return c.middle + out;
}

template <class T>
matrix<T> block<T>::backward(const matrix<T>& dy, const model_batch<T>& batch,
                             block_context<T>& c) const {
  parameter_set<T>& p = *parameters_;
  const double epsilon = config_.norm_epsilon;
  const Eigen::Index rows = dy.rows();

  matrix<T> normal = rms_norm(c.middle, p.value(where_.ffn_norm), epsilon, c.middle_inverse);
  p.gradient(where_.down).noalias() += swiglu(c.gate, c.up).transpose() * dy;
  swiglu_backward<T>(dy * p.value(where_.down).transpose(), c.gate, c.up);
  p.gradient(where_.gate).noalias() += normal.transpose() * c.gate;
  p.gradient(where_.up).noalias() += normal.transpose() * c.up;
  matrix<T> dnormal(rows, dy.cols());
  dnormal.noalias() = c.gate * p.value(where_.gate).transpose();
  dnormal.noalias() += c.up * p.value(where_.up).transpose();
  tp_->sum(dnormal);
  const matrix<T> dmiddle = dy + rms_norm_backward(dnormal, c.middle, p.value(where_.ffn_norm),
                                                   c.middle_inverse, p.gradient(where_.ffn_norm));

  p.gradient(where_.wo).noalias() += c.attended.transpose() * dmiddle;
  const matrix<T> dattended = dmiddle * p.value(where_.wo).transpose();
  matrix<T> dq(rows, c.q.cols());
  matrix<T> dkv(2 * rows, c.kv.cols());
  batch.attend->backward(c.q, c.kv, c.attended, c.lse, dattended, dq, dkv);

  normal = rms_norm(c.input, p.value(where_.attention_norm), epsilon, c.inverse);
  p.gradient(where_.wq).noalias() += normal.transpose() * dq;
  p.gradient(where_.wk).noalias() += normal.transpose() * dkv.topRows(rows);
  p.gradient(where_.wv).noalias() += normal.transpose() * dkv.bottomRows(rows);
  dnormal.noalias() = dq * p.value(where_.wq).transpose();
  dnormal.noalias() += dkv.topRows(rows) * p.value(where_.wk).transpose();
  dnormal.noalias() += dkv.bottomRows(rows) * p.value(where_.wv).transpose();
  tp_->sum(dnormal);
  return dmiddle + rms_norm_backward(dnormal, c.input, p.value(where_.attention_norm), c.inverse,
                                     p.gradient(where_.attention_norm));
}

template class block<float>;
template class block<double>;

}  // namespace megatron_style
