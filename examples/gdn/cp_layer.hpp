// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gdn_layer.hpp"

#include <dyncp/cpu/attention.hpp>
#include <dyncp/cpu/thread_backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/runtime/row_route.hpp>
#include <dyncp/runtime/row_router.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/owner.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/thd/slot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace gdn {

using backend = dyncp::cpu::thread_backend;
using pool_type = dyncp::group_pool<backend>;

/// The layer on a rank's zigzag share of a pack, for the attention layers around it.
///
/// The recurrence wants consecutive tokens: rows go from zigzag to contiguous, each run of a
/// sequence with the few tokens before it that the convolution needs, in one exchange, and come
/// back in another; gradients take the same ways backwards. A run is affine in the state that
/// enters it, so ranks tell each other what their runs do, S -> S M + U, which does not grow with
/// the run, and each computes its own entry state: nobody waits for a neighbour's recurrence.
/// States begin at zero in every sequence. CP size and group are those of the micro-batch.
class cp_layer {
 public:
  cp_layer(pool_type& pool, const layer_shape& shape, const layer_weights& weights)
      : pool_(&pool), shape_(shape), weights_(&weights), gradients_(layer_weights::zeros(shape)) {}

  /// What one micro-batch keeps between its forward and its backward pass.
  struct context {
    std::optional<dyncp::packed_seq_params> params;
    std::optional<dyncp::row_router<backend>> there;  // z to runs
    std::optional<dyncp::row_router<backend>> back;   // o to the share
    std::vector<token_run> runs;                      // (sequences)
    std::vector<Eigen::Index> tokens;                 // (sequences), of this rank's run
    std::vector<Eigen::Index> halos;                  // (sequences)
    matrix x;                                         // (local rows, hidden)
    matrix attended;                                  // (local rows, heads * value)
  };

  /// y (local rows, hidden) from x; padding rows become 0. Collective over the group of `params`.
  [[nodiscard]] matrix forward(context& c, const dyncp::packed_seq_params& params, matrix x) {
    c.params = params;
    c.x = std::move(x);
    find_runs(c);
    const matrix z = c.x * weights_->in;
    const matrix with_halos = routed(*c.there, z, sum_of(c.halos) + sum_of(c.tokens));

    c.runs.clear();
    std::vector<double> mine;
    Eigen::Index row = 0;
    for (std::size_t s = 0; s < c.tokens.size(); ++s) {
      const Eigen::Index rows = c.halos[s] + c.tokens[s];
      const std::vector<double> does = c.runs.emplace_back(shape_, weights_->conv)
                                           .begin(with_halos.middleRows(row, rows), c.halos[s]);
      mine.insert(mine.end(), does.begin(), does.end());
      row += rows;
    }
    const std::vector<double> all = gathered(c, mine);
    matrix out(sum_of(c.tokens), shape_.out());
    row = 0;
    for (std::size_t s = 0; s < c.runs.size(); ++s) {
      std::vector<double> state(static_cast<std::size_t>(shape_.state()), 0.0);
      for (std::int32_t r = 0; r < params.cp_rank(); ++r) apply(shape_, part(c, all, r, s), state);
      out.middleRows(row, c.tokens[s]) = c.runs[s].forward(state);
      row += c.tokens[s];
    }
    c.attended = routed(*c.back, out, params.local_tokens());
    return c.attended * weights_->out;
  }

  /// dx from dy; gradients of the weights are added up. Rows of padding are 0.
  [[nodiscard]] matrix backward(context& c, const matrix& dy) {
    gradients_.out += c.attended.transpose() * dy;
    const matrix dattended = dy * weights_->out.transpose();
    const matrix dout = routed_back(*c.back, dattended, sum_of(c.tokens));

    std::vector<double> mine;
    Eigen::Index row = 0;
    for (std::size_t s = 0; s < c.runs.size(); ++s) {
      const std::vector<double> does = c.runs[s].backward_begin(dout.middleRows(row, c.tokens[s]));
      mine.insert(mine.end(), does.begin(), does.end());
      row += c.tokens[s];
    }
    const std::vector<double> all = gathered(c, mine);
    matrix dz(sum_of(c.halos) + sum_of(c.tokens), shape_.width());
    row = 0;
    for (std::size_t s = 0; s < c.runs.size(); ++s) {
      std::vector<double> dstate(static_cast<std::size_t>(shape_.state()), 0.0);
      for (std::int32_t r = c.params->cp_size() - 1; r > c.params->cp_rank(); --r) {
        apply(shape_, part(c, all, r, s), dstate);
      }
      const Eigen::Index rows = c.halos[s] + c.tokens[s];
      dz.middleRows(row, rows) = c.runs[s].backward(dstate, gradients_.conv);
      row += rows;
    }
    const matrix dz_share = routed_back(*c.there, dz, c.params->local_tokens());
    gradients_.in += c.x.transpose() * dz_share;
    return dz_share * weights_->in.transpose();
  }

  [[nodiscard]] layer_weights& gradients() noexcept { return gradients_; }
  /// Sent by this rank: rows between layouts, and what runs do to states.
  [[nodiscard]] std::int64_t row_bytes() const noexcept { return row_bytes_; }
  [[nodiscard]] std::int64_t state_bytes() const noexcept { return state_bytes_; }

 private:
  using stream = backend::device_type::stream;

  [[nodiscard]] static Eigen::Index sum_of(const std::vector<Eigen::Index>& counts) {
    Eigen::Index sum = 0;
    for (const Eigen::Index n : counts) sum += n;
    return sum;
  }

  /// Builds the two ways of the micro-batch: who has the tokens, and who needs them.
  void find_runs(context& c) const {
    const dyncp::packed_seq_params& params = *c.params;
    const dyncp::pack_view zigzag = params.view();
    const dyncp::pack_layout contiguous =
        params.layout.with_layout(dyncp::layout_kind::contiguous).value();
    const std::int32_t first = params.group.ranks.begin;
    c.tokens.clear();
    c.halos.clear();
    dyncp::row_route there;
    dyncp::row_route back;
    there.src_rows = back.dst_rows = params.local_tokens();
    for (std::int32_t rank = 0; rank < params.cp_size(); ++rank) {
      std::int64_t row_there = 0;
      std::int64_t row_back = 0;
      for (std::int32_t s = 0; s < zigzag.sequences; ++s) {
        const dyncp::row_run run = dyncp::slot_of(contiguous.view(), s, rank).front;
        const auto taps = static_cast<std::int32_t>(shape_.taps);
        const std::int32_t halo = run.valid > 0 ? std::min(run.position, taps - 1) : 0;
        for (std::int32_t i = -halo; i < run.valid; ++i) {
          const dyncp::rank_row at = dyncp::owner_of_token(zigzag, s, run.position + i);
          add(there, {first + at.rank, first + rank, at.row, row_there++, 1});
          if (i >= 0) add(back, {first + rank, first + at.rank, row_back++, at.row, 1});
        }
        if (rank != params.cp_rank()) continue;
        c.tokens.push_back(run.valid);
        c.halos.push_back(halo);
      }
    }
    there.dst_rows = sum_of(c.halos) + sum_of(c.tokens);
    back.src_rows = sum_of(c.tokens);
    c.there.emplace(router(there, shape_.width()));
    c.back.emplace(router(back, shape_.out()));
  }

  /// Keeps the transfers of this rank, consecutive rows as one.
  void add(dyncp::row_route& route, const dyncp::row_transfer& t) const {
    if (t.from != pool_->rank() && t.to != pool_->rank()) return;
    if (!route.transfers.empty()) {
      dyncp::row_transfer& last = route.transfers.back();
      if (last.from == t.from && last.to == t.to && last.src + last.rows == t.src &&
          last.dst + last.rows == t.dst) {
        ++last.rows;
        return;
      }
    }
    route.transfers.push_back(t);
  }

  [[nodiscard]] dyncp::row_router<backend> router(const dyncp::row_route& route,
                                                  Eigen::Index width) const {
    auto made = dyncp::row_router<backend>::make(
        *pool_, route, {width * static_cast<Eigen::Index>(sizeof(double)), true}, main_stream());
    return std::move(made.value());
  }

  [[nodiscard]] matrix routed(dyncp::row_router<backend>& way, const matrix& from,
                              Eigen::Index rows) {
    matrix to(rows, from.cols());
    const std::int64_t bytes = from.cols() * static_cast<Eigen::Index>(sizeof(double));
    way.run(from.data(), to.data(), bytes, main_stream()).value();
    pool_->synchronize(main_stream()).value();
    row_bytes_ += way.bytes_sent(bytes);
    return to;
  }
  [[nodiscard]] matrix routed_back(dyncp::row_router<backend>& way, const matrix& gradient,
                                   Eigen::Index rows) {
    matrix to(rows, gradient.cols());
    way.run_adjoint(
           gradient.data(), to.data(), gradient.cols(),
           [this](auto& device, stream s, double* sum, const double* x, std::int64_t n) {
             return kernels_.add(device, s, sum, x, n);
           },
           main_stream())
        .value();
    pool_->synchronize(main_stream()).value();
    row_bytes_ += way.bytes_received(gradient.cols() * static_cast<Eigen::Index>(sizeof(double)));
    return to;
  }

  /// What the runs of all ranks of the group do, (ranks, sequences, transition).
  [[nodiscard]] std::vector<double> gathered(const context& c, const std::vector<double>& mine) {
    std::vector<double> all(mine.size() * static_cast<std::size_t>(c.params->cp_size()));
    auto group = pool_->channel(c.params->group);
    dyncp::all_gather(group, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)))
        .value();
    state_bytes_ +=
        static_cast<std::int64_t>(mine.size() * sizeof(double)) * (c.params->cp_size() - 1);
    return all;
  }
  [[nodiscard]] std::span<const double> part(const context& c, const std::vector<double>& all,
                                             std::int32_t rank, std::size_t sequence) const {
    const auto size = static_cast<std::size_t>(shape_.transition());
    const std::size_t block = static_cast<std::size_t>(rank) * c.tokens.size() + sequence;
    return std::span(all).subspan(block * size, size);
  }

  [[nodiscard]] stream main_stream() const { return pool_->owner().device().main_stream(); }

  pool_type* pool_;
  layer_shape shape_;
  const layer_weights* weights_;
  layer_weights gradients_;
  dyncp::cpu::attention<> kernels_;
  std::int64_t row_bytes_ = 0;
  std::int64_t state_bytes_ = 0;
};

}  // namespace gdn
