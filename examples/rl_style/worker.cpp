// SPDX-License-Identifier: Apache-2.0
#include "worker.hpp"

#include "formulas.hpp"
#include "megatron_style/parallel.hpp"
#include "megatron_style/planning.hpp"

#include <dyncp/plan/digest.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/thd/owner.hpp>
#include <dyncp/trainer/step_vote.hpp>
#include <dyncp/trainer/token_share.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace rl_style {
namespace {

using megatron_style::batch_scheduler;
using megatron_style::operation_time;
using megatron_style::thread_seconds;

dyncp::ring_limits limits_of(const run_options& o) {
  const std::int64_t most = std::max(o.train_tokens_per_rank, o.log_prob_tokens_per_rank);
  return {static_cast<std::int32_t>(most), o.rollouts.prompts * o.rollouts.answers, o.ranks};
}

dyncp::group_pool<backend> pool_of(backend& domain) {
  auto pool = pool_type::create(domain, {});
  return std::move(pool.value());
}

double difference(double a, double b) {
  return std::isfinite(a) ? std::abs(a - b) : std::numeric_limits<double>::infinity();
}

}  // namespace

worker::worker(backend& domain, const run_options& options)
    : options_(options),
      pool_(pool_of(domain)),
      layers_(pool_, options.model, 1, limits_of(options)),
      model_(options.model, 1),
      frozen_(options.model, 2) {}

iteration_result worker::iterate(std::int64_t iteration, const reference_iteration* compare) {
  batch_ = make_rollouts(options_.rollouts, iteration);
  load_owned();
  const dyncp::pass_plans plans = plan_both(iteration);
  const std::unique_ptr<routes> train = routes_of(plans.training().plan);
  std::unique_ptr<routes> own;
  if (!plans.shared()) own = routes_of(plans.log_probs().plan);
  routes& pass = own ? *own : *train;

  iteration_result out;
  out.train_micro_batches = train->layout().num_micro_batches();
  out.log_prob_micro_batches = pass.layout().num_micro_batches();

  clock_.reset();
  {
    const std::vector<work> works = prepare(pass);
    owned_.log_probs = log_probs(model_, pass, works);
    owned_.frozen_log_probs = log_probs(frozen_, pass, works);
  }
  out.log_prob_s = largest(clock_.now_s());
  make_advantages();

  clock_.reset();
  const std::vector<work> works = prepare(*train);
  const std::vector<double> old_log_probs = train->split(owned_.log_probs);
  const std::vector<double> advantages = train->split(owned_.advantages);
  for (std::int32_t u = 0; u < options_.updates; ++u) {
    double ratio_error = 0;
    const dyncp::loss_part all = total(update(works, old_log_probs, advantages, ratio_error));
    if (u == 0) out.first_ratio_error = largest(ratio_error);
    const std::vector<double> gradients = summed_gradients(all);
    out.loss = dyncp::mean(all);
    out.loss_tokens = all.tokens;
    if (compare != nullptr) {
      const auto i = static_cast<std::size_t>(u);
      double worst = 0;
      double most = 0;
      for (std::size_t g = 0; g < gradients.size(); ++g) {
        worst = std::max(worst, difference(gradients[g], compare->gradients[i][g]));
        most = std::max(most, std::abs(compare->gradients[i][g]));
      }
      out.gradient_error = std::max(out.gradient_error, largest(worst / most));
      // The loss is a sum of advantages of both signs and may be near zero.
      out.loss_error = std::max(out.loss_error, difference(out.loss, compare->losses[i]));
    }
    model_.descend(gradients, options_.learning_rate);
  }
  out.train_s = largest(clock_.now_s());

  if (compare != nullptr) {
    out.log_prob_error = owned_error(compare->log_probs, owned_.log_probs);
    out.advantage_error = owned_error(compare->advantages, owned_.advantages);
  }
  out.terminal_rewards = terminal_rewards(*train);
  const routes* const ways[] = {train.get(), own.get()};
  for (const routes* way : ways) {
    if (way == nullptr) continue;
    out.whole_bytes += way->whole_bytes;
    out.split_bytes += way->split_bytes;
    out.merged_bytes += way->merged_bytes;
  }
  out.whole_bytes = sum(out.whole_bytes);
  out.split_bytes = sum(out.split_bytes);
  out.merged_bytes = sum(out.merged_bytes);
  return out;
}

/// Every rank plans both passes; before anything else is sent they compare what they have, or what
/// keeps one of them from planning.
dyncp::pass_plans worker::plan_both(std::int64_t iteration) {
  const auto problem_of = [&](std::int64_t tokens_per_rank) {
    dyncp::problem problem =
        megatron_style::make_problem(options_.model, {options_.ranks, 1, 1, 1}, options_.static_cp,
                                     tokens_per_rank, sizeof(double), megatron_style::one_core());
    problem.sequences = sequences_;
    return problem;
  };
  const std::int64_t budget = options_.log_prob_tokens_per_rank;
  const dyncp::problem training = problem_of(options_.train_tokens_per_rank);
  const dyncp::problem log_probs = problem_of(budget > 0 ? budget : options_.train_tokens_per_rank);
  const batch_scheduler planner(options_.plan_by, training);
  auto plans = dyncp::plan_passes(planner, training, log_probs, options_.reuse);
  dyncp::word_digest both;
  if (plans) {
    // The cost model is made of the specs of `training` alone, which its digest covers.
    both.add(dyncp::digest(training, plans->training().plan));
    both.add(dyncp::digest(log_probs, plans->log_probs().plan));
  }
  auto all = pool_.channel(pool_.everyone());
  dyncp::agree_on_step(all, iteration, both.value(), plans ? nullptr : &plans.error()).value();
  return std::move(plans).value();
}

std::unique_ptr<routes> worker::routes_of(const dyncp::plan& plan) {
  return std::make_unique<routes>(
      pool_, dyncp::plan_layout::make(plan, sequences_, dyncp::layout_kind::zigzag).value(),
      owners_);
}

template <class Visit>
void worker::for_each_owned(Visit visit) const {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    if (owners_[i] != pool_.rank()) continue;
    visit(i, begin);
    begin += static_cast<std::size_t>(batch_[i].length);
  }
}

void worker::load_owned() {
  owners_.clear();
  sequences_.clear();
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    owners_.push_back(static_cast<std::int32_t>(i) % options_.ranks);
    sequences_.push_back({batch_[i].id, batch_[i].length, -1});
  }
  owned_ = {};
  for_each_owned([&](std::size_t i, std::size_t) {
    const std::vector<std::int32_t> tokens = tokens_of(batch_[i], options_.model.vocabulary);
    const std::vector<double> pixels = pixels_of(batch_[i]);
    owned_.tokens.insert(owned_.tokens.end(), tokens.begin(), tokens.end());
    for (const std::int32_t label : labels_of(batch_[i], tokens)) {
      owned_.labels_plus_one.push_back(label + 1);
    }
    owned_.pixels.insert(owned_.pixels.end(), pixels.begin(), pixels.end());
  });
}

/// Inputs come whole to every rank of a group, for the images; the loss's fields come as shares.
std::vector<worker::work> worker::prepare(routes& way) {
  const dyncp::plan_layout& layout = way.layout();
  const std::int32_t rank = pool_.rank();
  const std::vector<std::int32_t> tokens = way.whole(owned_.tokens);
  const std::vector<double> pixels = way.whole(owned_.pixels, patch_width);
  const std::vector<std::int32_t> labels = way.split(owned_.labels_plus_one);
  const std::vector<std::int64_t> places = dyncp::rows_of_worker(layout, rank).place;

  std::vector<work> works(static_cast<std::size_t>(layout.num_micro_batches()));
  for (std::int32_t m = 0; m < layout.num_micro_batches(); ++m) {
    work& w = works[static_cast<std::size_t>(m)];
    const auto group_of = [this](dyncp::rank_range ranks) { return pool_.group(ranks); };
    w.params = layout.params(rank, m, group_of).value();
    if (!w.params) continue;
    w.begin = static_cast<std::size_t>(layout.local_begin(rank, m));
    w.attend = layers_.bind(*w.params);
    const auto rows = static_cast<std::size_t>(w.params->local_tokens());
    for (std::size_t row = 0; row < rows; ++row) w.rows.labels.push_back(labels[w.begin + row] - 1);

    std::vector<std::size_t> begins;  // of the pack's sequences, in `tokens` and `pixels`
    std::vector<matrix<double>> images;
    for (const std::int32_t s : layout.pack_at(rank, m)->sequences) {
      const auto i = static_cast<std::size_t>(s);
      begins.push_back(static_cast<std::size_t>(places[i]));
      images.push_back(centred(
          std::span(pixels).subspan(begins.back() * patch_width,
                                    static_cast<std::size_t>(batch_[i].length) * patch_width),
          batch_[i].patches));
    }
    w.rows.tokens =
        dyncp::cut_share<std::int32_t>(*w.params, 0, [&](std::int32_t s, std::int32_t position) {
          return tokens[begins[static_cast<std::size_t>(s)] + static_cast<std::size_t>(position)];
        });
    w.rows.patches.resize(static_cast<Eigen::Index>(rows), patch_width);
    for (Eigen::Index c = 0; c < patch_width; ++c) {
      const std::vector<double> share =
          dyncp::cut_share<double>(*w.params, 0.0, [&](std::int32_t s, std::int32_t position) {
            return images[static_cast<std::size_t>(s)](position, c);
          });
      for (std::size_t row = 0; row < rows; ++row) {
        w.rows.patches(static_cast<Eigen::Index>(row), c) = share[row];
      }
    }
  }
  return works;
}

std::vector<double> worker::log_probs(policy& model, routes& way, const std::vector<work>& works) {
  std::vector<double> shares(static_cast<std::size_t>(way.layout().local_rows(pool_.rank())), 0.0);
  for (const work& w : works) {
    if (!w.params) continue;
    const double before = thread_seconds();
    stage_context<double> context;
    const std::vector<double>& losses = model.forward(w.rows, *w.attend, context);
    for (std::size_t row = 0; row < losses.size(); ++row) shares[w.begin + row] = -losses[row];
    advance(w, thread_seconds() - before);
  }
  return way.merge(shares);
}

/// On whole sequences at their owners, as on one rank; sums over all of them are taken once.
void worker::make_advantages() {
  std::vector<double> scores(batch_.size(), 0.0);
  for_each_owned([&](std::size_t i, std::size_t begin) {
    const auto first = owned_.tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    scores[i] = score_of(batch_[i], {first, first + batch_[i].length});
  });
  auto all = pool_.channel(pool_.everyone());
  dyncp::all_reduce(all, std::span<double>(scores), dyncp::reduction::sum).value();
  scores = normalized_scores(batch_, scores);

  moments mine;
  for_each_owned([&](std::size_t i, std::size_t begin) {
    const auto length = static_cast<std::size_t>(batch_[i].length);
    std::vector<double> rewards =
        token_rewards(batch_[i], scores[i], std::span(owned_.log_probs).subspan(begin, length),
                      std::span(owned_.frozen_log_probs).subspan(begin, length), options_.rules);
    owned_.terminal.insert(owned_.terminal.end(), length, 0.0);
    owned_.terminal[begin + length - 2] = 1.0;
    to_returns(batch_[i], rewards, options_.rules);
    mine.add(batch_[i], rewards);
    owned_.advantages.insert(owned_.advantages.end(), rewards.begin(), rewards.end());
  });
  moments everywhere;
  const std::vector<moments> parts = dyncp::all_gather_value(all, mine).value();
  for (const moments& part : parts) everywhere += part;
  for_each_owned([&](std::size_t i, std::size_t begin) {
    whiten(batch_[i],
           std::span(owned_.advantages).subspan(begin, static_cast<std::size_t>(batch_[i].length)),
           everywhere);
  });
}

dyncp::loss_part worker::update(const std::vector<work>& works,
                                std::span<const double> old_log_probs,
                                std::span<const double> advantages, double& ratio_error) {
  model_.clear_gradients();
  dyncp::loss_part mine;
  for (const work& w : works) {
    if (!w.params) continue;
    const double before = thread_seconds();
    stage_context<double> context;
    const std::vector<double>& losses = model_.forward(w.rows, *w.attend, context);
    std::vector<double> weights(losses.size(), 0.0);
    for (std::size_t row = 0; row < losses.size(); ++row) {
      if (w.rows.labels[row] < 0) continue;
      const double log_prob = -losses[row];
      const double old = old_log_probs[w.begin + row];
      const token_loss t = policy_loss(log_prob, old, advantages[w.begin + row], options_.rules);
      mine += {t.loss, 1};
      weights[row] = t.weight;
      ratio_error = std::max(ratio_error, difference(std::exp(log_prob - old), 1.0));
    }
    model_.backward(w.rows, weights, *w.attend, context);
    advance(w, thread_seconds() - before);
  }
  return mine;
}

std::vector<double> worker::summed_gradients(const dyncp::loss_part& total) {
  std::vector<double> gradients = model_.gradients();
  auto all = pool_.channel(pool_.everyone());
  dyncp::all_reduce(all, std::span<double>(gradients), dyncp::reduction::sum).value();
  for (double& g : gradients) g *= dyncp::gradient_scale(total);
  return gradients;
}

/// Terminal rewards that lie, after the split, on the rank and row of the last response token.
std::int64_t worker::terminal_rewards(routes& way) {
  const std::vector<double> shares = way.split(owned_.terminal);
  std::int64_t found = 0;
  for (const dyncp::placed_pack& p : way.layout().packs()) {
    if (!p.ranks.contains(pool_.rank())) continue;
    for (std::int32_t s = 0; s < p.layout.sequences(); ++s) {
      const dyncp::rank_row owner = dyncp::owner_of_last_response_token(p.layout.view(), s);
      if (p.ranks.begin + owner.rank != pool_.rank()) continue;
      const std::int64_t row = way.layout().local_begin(pool_.rank(), p.micro_batch) + owner.row;
      found += shares[static_cast<std::size_t>(row)] == 1.0 ? 1 : 0;
    }
  }
  return sum(found);
}

void worker::advance(const work& w, double cpu_s) {
  const operation_time own{clock_.now_s(), cpu_s};
  operation_time group = own;
  auto members = pool_.channel(w.params->group);
  const std::vector<operation_time> all = dyncp::all_gather_value(members, own).value();
  for (const operation_time& t : all) group = megatron_style::together(group, t);
  clock_.operated(own, group);
}

dyncp::loss_part worker::total(const dyncp::loss_part& mine) {
  auto all = pool_.channel(pool_.everyone());
  const std::vector<dyncp::loss_part> parts = dyncp::all_gather_value(all, mine).value();
  dyncp::loss_part out;
  for (const dyncp::loss_part& part : parts) out += part;
  return out;
}

double worker::largest(double mine) {
  auto all = pool_.channel(pool_.everyone());
  dyncp::all_reduce(all, std::span<double>(&mine, 1), dyncp::reduction::maximum).value();
  return mine;
}

std::int64_t worker::sum(std::int64_t mine) {
  auto all = pool_.channel(pool_.everyone());
  dyncp::all_reduce(all, std::span<std::int64_t>(&mine, 1), dyncp::reduction::sum).value();
  return mine;
}

double worker::owned_error(const std::vector<std::vector<double>>& want,
                           std::span<const double> have) {
  double worst = 0;
  for_each_owned([&](std::size_t i, std::size_t begin) {
    for (std::size_t at = 0; at < want[i].size(); ++at) {
      worst = std::max(worst, difference(have[begin + at], want[i][at]));
    }
  });
  return largest(worst);
}

}  // namespace rl_style
