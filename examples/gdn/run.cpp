// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include "cp_layer.hpp"

#include <dyncp/core/splitmix.hpp>
#include <dyncp/cost/analytic_cost.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/presets.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/trainer/token_share.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

namespace gdn {
namespace {

/// Uniform in [-1, 1).
matrix random_rows(std::int64_t rows, Eigen::Index width, std::uint64_t seed) {
  dyncp::splitmix random(seed);
  matrix out(rows, width);
  for (Eigen::Index i = 0; i < out.size(); ++i) out.data()[i] = 2.0 * random.unit() - 1.0;
  return out;
}

/// Keeps the largest difference and the largest value.
struct comparison {
  double worst = 0;
  double most = 0;
  void add(const matrix& got, const matrix& want) {
    for (Eigen::Index i = 0; i < got.size(); ++i) {
      const double d = std::isfinite(got.data()[i]) ? std::abs(got.data()[i] - want.data()[i])
                                                    : std::numeric_limits<double>::infinity();
      worst = std::max(worst, d);
      most = std::max(most, std::abs(want.data()[i]));
    }
  }
  [[nodiscard]] double relative() const { return most > 0 ? worst / most : worst; }
};

dyncp::problem problem_of(const run_options& o) {
  dyncp::problem p;
  p.model = dyncp::find_model("reference-13b").value();
  p.cluster = dyncp::find_cluster("reference-13b").value();
  p.parallel.ranks = o.ranks;
  p.limits.max_tokens_per_rank = o.max_tokens_per_rank;
  p.padding.zigzag = true;
  p.sequences = dyncp::make_batch(o.lengths).value();
  return p;
}

/// The rows of this rank's share of whole sequences' rows.
matrix share_of(const dyncp::packed_seq_params& params, const std::vector<const matrix*>& whole,
                double padding) {
  const Eigen::Index width = whole.front()->cols();
  matrix out(params.local_tokens(), width);
  for (Eigen::Index c = 0; c < width; ++c) {
    const std::vector<double> values =
        dyncp::cut_share<double>(params, padding, [&](std::int32_t s, std::int32_t position) {
          return (*whole[static_cast<std::size_t>(s)])(position, c);
        });
    for (Eigen::Index row = 0; row < out.rows(); ++row) {
      out(row, c) = values[static_cast<std::size_t>(row)];
    }
  }
  return out;
}

}  // namespace

matrix input_of(const run_options& o, std::int64_t sequence) {
  const auto i = static_cast<std::size_t>(sequence);
  return random_rows(o.lengths[i], o.shape.hidden, o.seed * 7919 + 2 * i);
}

matrix output_gradient_of(const run_options& o, std::int64_t sequence) {
  const auto i = static_cast<std::size_t>(sequence);
  return random_rows(o.lengths[i], o.shape.hidden, o.seed * 7919 + 2 * i + 1);
}

alone run_alone(const layer_shape& shape, const layer_weights& weights, const matrix& x,
                const matrix& dy, layer_weights& gradients) {
  const std::vector<double> zero(static_cast<std::size_t>(shape.state()), 0.0);
  token_run run(shape, weights.conv);
  static_cast<void>(run.begin(x * weights.in, 0));
  const matrix out = run.forward(zero);
  static_cast<void>(run.backward_begin(dy * weights.out.transpose()));
  const matrix dz = run.backward(zero, gradients.conv);
  gradients.out += out.transpose() * dy;
  gradients.in += x.transpose() * dz;
  return {out * weights.out, dz * weights.in.transpose()};
}

run_result run_ranks(const run_options& o) {
  run_result out;
  const layer_weights weights = layer_weights::random(o.shape, o.seed);
  layer_weights want = layer_weights::zeros(o.shape);
  std::vector<matrix> inputs;
  std::vector<matrix> gradients;
  std::vector<alone> single;
  for (std::size_t i = 0; i < o.lengths.size(); ++i) {
    inputs.push_back(input_of(o, static_cast<std::int64_t>(i)));
    gradients.push_back(output_gradient_of(o, static_cast<std::int64_t>(i)));
    single.push_back(run_alone(o.shape, weights, inputs[i], gradients[i], want));
  }

  const dyncp::problem problem = problem_of(o);
  const dyncp::planner planner{
      dyncp::analytic_cost(problem.model, problem.cluster, problem.parallel)};
  const dyncp::plan plan = planner.plan(problem).value().plan;
  const dyncp::plan_layout layout =
      dyncp::plan_layout::make(plan, problem.sequences, dyncp::layout_kind::zigzag).value();
  std::set<std::int32_t> sizes;
  for (const dyncp::placed_pack& p : layout.packs()) sizes.insert(p.ranks.size);
  out.cp_sizes.assign(sizes.begin(), sizes.end());
  out.micro_batches = layout.num_micro_batches();

  std::mutex mutex;  // of `out` and the comparisons
  comparison y_error;
  comparison dx_error;
  layer_weights sums = layer_weights::zeros(o.shape);
  dyncp::cpu::thread_world world({.ranks = o.ranks});
  const auto results = dyncp::cpu::run_ranks(world, {}, [&](backend& b) -> dyncp::result<void> {
    auto pool = pool_type::create(b, {});
    if (!pool) return std::move(pool).error();
    cp_layer layer(*pool, o.shape, weights);
    const auto group_of = [&](dyncp::rank_range ranks) { return pool->group(ranks); };
    for (std::int32_t m = 0; m < layout.num_micro_batches(); ++m) {
      const auto params = layout.params(pool->rank(), m, group_of).value();
      if (!params) continue;
      std::vector<const matrix*> x;
      std::vector<const matrix*> dy;
      std::vector<const matrix*> want_y;
      std::vector<const matrix*> want_dx;
      for (const std::int32_t s : layout.pack_at(pool->rank(), m)->sequences) {
        const auto i = static_cast<std::size_t>(s);
        x.push_back(&inputs[i]);
        dy.push_back(&gradients[i]);
        want_y.push_back(&single[i].y);
        want_dx.push_back(&single[i].dx);
      }
      cp_layer::context context;
      // Whatever stands in padding rows must not matter.
      const matrix got_y = layer.forward(context, *params, share_of(*params, x, 1.0));
      const matrix got_dx = layer.backward(context, share_of(*params, dy, 0.0));
      const std::lock_guard lock(mutex);
      y_error.add(got_y, share_of(*params, want_y, 0.0));
      dx_error.add(got_dx, share_of(*params, want_dx, 0.0));
    }
    const std::lock_guard lock(mutex);
    sums.in += layer.gradients().in;
    sums.conv += layer.gradients().conv;
    sums.out += layer.gradients().out;
    out.row_bytes += layer.row_bytes();
    out.state_bytes += layer.state_bytes();
    return {};
  });
  for (const dyncp::result<void>& r : results) {
    if (!r) out.failures.push_back(r.error().message());
  }
  out.output_error = y_error.relative();
  out.input_gradient_error = dx_error.relative();
  comparison weight_error;
  weight_error.add(sums.in, want.in);
  weight_error.add(sums.conv, want.conv);
  weight_error.add(sums.out, want.out);
  out.weight_gradient_error = weight_error.relative();
  return out;
}

}  // namespace gdn
