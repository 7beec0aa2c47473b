// SPDX-License-Identifier: Apache-2.0
#include "formulas.hpp"
#include "policy.hpp"
#include "rollouts.hpp"
#include "run.hpp"

#include "megatron_style/model/dense_attention.hpp"

#include <cstddef>
#include <utility>

namespace rl_style {
namespace {

policy_rows rows_of(const rollout& r, std::int32_t vocabulary) {
  policy_rows rows;
  rows.tokens = tokens_of(r, vocabulary);
  rows.labels = labels_of(r, rows.tokens);
  rows.patches = centred(pixels_of(r), r.patches);
  return rows;
}

std::vector<double> log_probs_of(policy& model, const policy_rows& rows,
                                 attention<double>& attend) {
  stage_context<double> context;
  std::vector<double> out = model.forward(rows, attend, context);
  for (double& x : out) x = -x;
  return out;
}

/// One update: the loss, and the gradients in `model`.
double update(policy& model, const std::vector<rollout>& batch, const run_options& o,
              const reference_iteration& known, attention<double>& attend) {
  model.clear_gradients();
  double sum = 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const policy_rows rows = rows_of(batch[i], o.model.vocabulary);
    stage_context<double> context;
    const std::vector<double>& losses = model.forward(rows, attend, context);
    std::vector<double> weights(losses.size(), 0.0);
    for (std::size_t row = 0; row < losses.size(); ++row) {
      if (rows.labels[row] < 0) continue;
      const token_loss t =
          policy_loss(-losses[row], known.log_probs[i][row], known.advantages[i][row], o.rules);
      sum += t.loss;
      weights[row] = t.weight;
      ++count;
    }
    model.backward(rows, weights, attend, context);
  }
  return sum / static_cast<double>(count);
}

}  // namespace

std::vector<reference_iteration> run_alone(const run_options& o) {
  policy model(o.model, 1);
  policy frozen(o.model, 2);
  megatron_style::dense_attention<double> attend(o.model);
  std::vector<reference_iteration> out;
  for (std::int32_t k = 0; k < o.iterations; ++k) {
    const std::vector<rollout> batch = make_rollouts(o.rollouts, k);
    reference_iteration now;
    std::vector<double> scores;
    for (const rollout& r : batch) scores.push_back(score_of(r, tokens_of(r, o.model.vocabulary)));
    scores = normalized_scores(batch, scores);
    moments all;
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const policy_rows rows = rows_of(batch[i], o.model.vocabulary);
      now.log_probs.push_back(log_probs_of(model, rows, attend));
      const std::vector<double> frozen_log_probs = log_probs_of(frozen, rows, attend);
      std::vector<double> returns =
          token_rewards(batch[i], scores[i], now.log_probs[i], frozen_log_probs, o.rules);
      to_returns(batch[i], returns, o.rules);
      all.add(batch[i], returns);
      tokens += batch[i].response;
      now.advantages.push_back(std::move(returns));
    }
    for (std::size_t i = 0; i < batch.size(); ++i) whiten(batch[i], now.advantages[i], all);
    for (std::int32_t u = 0; u < o.updates; ++u) {
      now.losses.push_back(update(model, batch, o, now, attend));
      std::vector<double> gradients = model.gradients();
      for (double& g : gradients) g /= static_cast<double>(tokens);
      model.descend(gradients, o.learning_rate);
      now.gradients.push_back(std::move(gradients));
    }
    out.push_back(std::move(now));
  }
  return out;
}

}  // namespace rl_style
