// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/contain.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/planner/async_planner.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/problem/problem.hpp>
#include <dyncp/problem/sequence.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_handle.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/trainer/data_options.hpp>
#include <dyncp/trainer/length_probe.hpp>
#include <dyncp/trainer/listed_source.hpp>
#include <dyncp/trainer/lone_channel.hpp>
#include <dyncp/trainer/micro_batch_log.hpp>
#include <dyncp/trainer/plan_source.hpp>
#include <dyncp/trainer/sample_codec.hpp>
#include <dyncp/trainer/step_metadata.hpp>
#include <dyncp/trainer/step_terms.hpp>
#include <dyncp/trainer/step_vote.hpp>
#include <dyncp/trainer/training_step.hpp>
#include <dyncp/trainer/unfit.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Turns a range of samples into iterations of packed micro-batches, one plan for each.
///
///   auto batches = dyncp::make_data_iterator(lengths, planner, problem, {.global_batch_size = 64},
///                                            load);
///   for (;;) {
///     auto step = batches.next(pool);
///     if (!step) return step.error();       // the same error on every rank
///     if (!*step) break;                    // the end of the data
///     run_schedule((*step)->num_micro_batches(), [&](int m) {
///       const auto micro_batch = (*step)->micro_batch(m);
///       if (!micro_batch.idle()) forward(*micro_batch.params, micro_batch.samples);
///     });
///   }
///
/// The schedule gets a number of micro-batches that differs from step to step and is the same on
/// all ranks; nothing else in it changes. `problem` is a template: model, cluster, parallel,
/// limits, padding; its sequences are replaced.
///
/// | call                                           | lengths            | loading                |
/// | ---------------------------------------------- | ------------------ | ---------------------- |
/// | make_data_iterator(range, ..., load, length)   | in the range       | by the ranks that work |
/// | make_data_iterator(range, planner, ..., opts)  | in the range       | none: parameters only  |
/// | make_probed_iterator(shard, ..., probe, codec) | probed, once       | by their owner, once   |
///
/// `next` is collective over the channel, or the pool: every member calls it equally often. Before
/// a step is yielded its members compare iteration and digest of problem, cost and plan, in one
/// small all-gather (four where lengths are probed); so plans that differ, a range or loader that
/// throws, a length that lies, and a member that is late or dead give every member the same error,
/// and no step. What was read stays: the next call goes on where this one failed, with a new pool
/// if the old one is poisoned, and yields each sample once. A step is done when the call after it
/// succeeds; `again` yields it once more, after a failure in training.
///
/// Which processes need an iterator: one per DPxCP rank where samples are read (tensor rank 0 of
/// the first stage). Others are told by `share_step`, or run one without loader on a channel that
/// connects them all. Evaluation uses an iterator of its own, with its own limits.
///
/// Determinism: steps depend on range, options and planner alone, not on timing. Thread safety:
/// belongs to the thread of its rank; planning runs on a thread of its own.
template <class Source, batch_planner Planner>
class data_iterator {
 public:
  using sample_type = typename Source::sample_type;
  using step_type = training_step<sample_type>;

  data_iterator(Source source, Planner planner, problem base, data_iterator_options options)
      : source_(std::move(source)), base_(std::move(base)), options_(std::move(options)),
        plans_(std::move(planner), std::min(options_.ahead, max_iterations_ahead),
               options_.warm_start),
        position_(options_.start) {
    base_.sequences.clear();
    source_.skip(options_.start.taken);
  }

  /// The next step, or nothing when the data has ended. `group_of(rank_range) ->
  /// result<group_handle>` gives this rank's groups. Collective.
  ///
  /// Errors, the same on every member: invalid_argument for options; those of the planner, of
  /// `group_of`; callback_failed; invalid_length for a sample that is not as long as announced;
  /// mismatch for plans or iterations that differ; aborted for members that cannot be heard.
  template <host_channel C, class GroupOf>
  [[nodiscard]] result<std::optional<step_type>> next(C& channel, GroupOf&& group_of) {
    auto out = advance(channel, group_of);
    if (!out) {
      ++report_.failures;
      in_step_ = false;
      unknown_.reset();
      fresh_ = true;  // so that all forget at their meeting what plans have learned
    }
    return out;
  }

  /// The same over all ranks of a pool, with its groups.
  template <backend B>
  [[nodiscard]] result<std::optional<step_type>> next(group_pool<B>& pool) {
    auto channel = pool.channel(pool.everyone());
    return next(channel, [&](rank_range ranks) { return pool.group(ranks); });
  }

  /// Makes the next call yield the last step once more, with the groups of the pool that it is
  /// given then. False if there is none. Call it on every rank; those that never got the step are
  /// waited for anyway.
  bool again() {
    if (!previous_) return false;
    roll_back();
    in_step_ = false;
    return true;
  }

  /// Takes a sequence out of the step that the next call yields: one that cannot be planned or
  /// read. Call it on every rank. If that step has no such sequence, the next call is
  /// invalid_argument, once, and the id is forgotten.
  void discard(std::int64_t id) { discarded_.push_back(id); }

  /// Gives up the element of this rank's shard that the last call failed to read or to probe, for
  /// good; the batch takes the one behind it. Returns its place in the shard, which the error names
  /// too; nothing on ranks whose shard is not at fault, so all may call it.
  std::optional<std::int64_t> skip_unreadable()
    requires Source::collective
  {
    if (pending_.empty() || pending_.front().complete || pending_.front().fill_error) return {};
    return source_.skip_stuck(pending_.front().batch);
  }

  /// Before the step that the next call yields.
  [[nodiscard]] data_position position() const noexcept { return position_; }

  [[nodiscard]] data_iterator_report report() const {
    data_iterator_report out = report_;
    out.plan_wait_s = plans_.waited_s();
    out.last_plan_wait_s = plans_.last_wait_s();
    out.planning_s = plans_.planning_s();
    return out;
  }

 private:
  using batch_type = typename Source::batch;
  using sample_list = std::vector<sample_type>;

  struct pending {
    std::int64_t iteration = 0;
    batch_type batch;
    bool complete = false;
    bool checked = false;              // sequences that do not fit were looked for
    std::optional<error> fill_error;   // of reading ahead: belongs to this iteration
    std::optional<planned> plan;
    double wait_s = 0;                 // for the plan
    std::vector<std::int64_t> discards;  // ids that `discard` named for it
    std::vector<sequence> dropped;
    bool counted = false;                // in the report
    std::int64_t counted_dropped = 0;
    std::shared_ptr<const detail::step_data<sample_type>> made;  // of a step to yield again
  };

  /// What a step is made of, once this rank has all of its part.
  struct prepared {
    std::shared_ptr<detail::step_data<sample_type>> data;
    std::uint64_t digest = 0;
  };

  template <class C, class GroupOf>
  [[nodiscard]] result<std::optional<step_type>> advance(C& channel, GroupOf&& group_of) {
    const std::int32_t rank = options_.rank < 0 ? channel.rank() : options_.rank;
    for (;;) {
      // Sources that exchange something to read must know that all are at the same place.
      if (!in_step_ || Source::collective) DYNCP_TRY(meet(channel, rank));
      in_step_ = true;
      result<void> local = fill_ahead(channel);
      if (!local && Source::collective) return local.error();  // each member has it
      if (local && unknown_) local = unknown_discard();

      prepared step;
      length_correction correction;
      const bool ended = local && at_end();
      if (local && !ended) local = prepare(rank, group_of, step, correction);
      auto together = decide(channel, rank, local, my_vote(step.digest, ended, correction));
      if (!together) return std::move(together).error();
      if (!*together) continue;  // someone asked where we are, and now all know
      if (ended) return std::optional<step_type>{};

      if constexpr (Source::collective) {
        pending& p = pending_.front();
        correction = {};
        local = source_.deliver(channel, p.batch, step.data->layout, p.iteration, correction);
        together = decide(channel, rank, local, my_vote(step.digest, false, correction));
        if (!together) return std::move(together).error();
      }
      return std::optional<step_type>(commit(rank, std::move(step)));
    }
  }

  [[nodiscard]] step_vote my_vote(std::uint64_t digest, bool ended,
                                  const length_correction& correction) const {
    step_vote v = my_place();
    v.digest = digest;
    v.ended = ended ? 1 : 0;
    v.correction = correction;
    return v;
  }

  [[nodiscard]] step_vote my_place() const {
    step_vote v;
    v.iteration = position_.iteration;
    v.lowest = position_.iteration - (previous_ ? 1 : 0);
    v.unread = position_.iteration;
    for (const pending& p : pending_) {
      if (p.complete && p.iteration == v.unread) ++v.unread;
    }
    v.fresh = fresh_ ? 1 : 0;
    v.terms = my_terms();
    return v;
  }

  [[nodiscard]] step_terms my_terms() const {
    step_terms t;
    t.batch_size = options_.global_batch_size;
    t.layout = static_cast<std::int64_t>(options_.layout);
    t.drop_last = options_.drop_last ? 1 : 0;
    t.drop_unfit = options_.drop_unfit ? 1 : 0;
    t.warm_start = options_.warm_start ? 1 : 0;
    if constexpr (Source::collective) {
      t.probing = 1;
      t.shape_words = source_.shape_words();
      t.ahead = std::max(0, options_.ahead);
    }
    return t;
  }

  template <class C>
  [[nodiscard]] result<void> meet(C& channel, std::int32_t rank) {
    const result<void> options = check_options(channel, rank);
    step_vote mine = my_place();
    mine.meets = 1;
    mine.failed = options ? 0 : 1;
    auto votes = gather_votes(channel, mine);
    if (!votes) return std::move(votes).error();
    return settle(channel, *votes, options);
  }

  /// Brings members together that failed at different places: the earliest iteration that one of
  /// them still needs is the next for all. Ranks that are one ahead go back. Where plans learn from
  /// each other, all begin anew if one does.
  template <class C>
  [[nodiscard]] result<void> settle(C& channel, const std::vector<step_vote>& votes,
                                    const result<void>& options) {
    for (std::size_t m = 0; m < votes.size(); ++m) {
      if (votes[m].meets == 0 || votes[m].failed == 0) continue;
      // A start below 0 is one of the things that are complained of.
      const std::int64_t iteration = std::max<std::int64_t>(position_.iteration, 0);
      return first_failure(channel, iteration, static_cast<std::int32_t>(m),
                           options ? nullptr : &options.error());
    }
    auto place = meeting_place(votes);
    if (!place) return std::move(place).error();
    if (position_.iteration > place->iteration) {
      if (!pending_.empty()) return_discards(pending_.front());
      roll_back();
    }
    if constexpr (Source::collective) {
      for (pending& p : pending_) {
        if (p.iteration >= place->unread && p.complete) begin_anew(p);
      }
    }
    for (const step_vote& v : votes) {
      if (options_.warm_start && v.fresh != 0) forget_plans();
    }
    fresh_ = false;
    return {};
  }

  template <class C>
  [[nodiscard]] result<void> check_options(const C& channel, std::int32_t rank) const {
    const std::int32_t ranks = channel.size();
    const std::int64_t batch_size = options_.global_batch_size;
    if (batch_size < 1 || batch_size > max_global_batch_size) {
      return error{errc::invalid_argument, "the global batch size is " +
                   std::to_string(batch_size), batch_size,
                   batch_size < 1 ? 1 : max_global_batch_size,
                   "set data_iterator_options::global_batch_size to a number in 1 .. 2^22"};
    }
    if (options_.ahead > max_iterations_ahead) {
      return error{errc::invalid_argument, std::to_string(options_.ahead) +
                   " iterations are to be planned ahead", options_.ahead, max_iterations_ahead,
                   "one or two are enough: their samples' lengths are kept in memory"};
    }
    if (options_.start.iteration < 0 || options_.start.taken < 0) {
      return error{errc::invalid_argument, "the start is iteration " +
                   std::to_string(options_.start.iteration) + " after " +
                   std::to_string(options_.start.taken) + " elements", options_.start.taken, 0,
                   "give what `position()` of an iterator over the same data returned"};
    }
    if (rank < 0 || rank >= base_.parallel.ranks) {
      return error{errc::invalid_argument, "rank " + std::to_string(rank) + " of a domain of " +
                   std::to_string(base_.parallel.ranks), rank, base_.parallel.ranks - 1,
                   "set problem.parallel.ranks to dp * cp, and the rank's place in it"};
    }
    if (Source::collective && ranks != base_.parallel.ranks) {
      return error{errc::invalid_argument, "a channel of " + std::to_string(ranks) +
                   " members for " + std::to_string(base_.parallel.ranks) + " ranks", ranks,
                   base_.parallel.ranks, "probe over a channel of the DPxCP domain"};
    }
    if (Source::collective && rank != channel.rank()) {
      return error{errc::invalid_argument, "rank " + std::to_string(rank) + " is member " +
                   std::to_string(channel.rank()) + " of the channel", rank, channel.rank(),
                   "leave data_iterator_options::rank at -1 where lengths are probed"};
    }
    const std::int64_t shape_words = my_terms().shape_words;
    if (shape_words < 0 || shape_words > max_shape_words) {
      return error{errc::invalid_argument, "a shape of " + std::to_string(shape_words) + " words",
                   shape_words, shape_words < 0 ? 0 : max_shape_words,
                   "set probe_options::shape_words to a number in 0 .. 1024"};
    }
    return {};
  }

  /// Reads this iteration and as many ahead as are planned ahead. Only an error of this iteration
  /// is returned; later ones keep theirs.
  template <class C>
  [[nodiscard]] result<void> fill_ahead(C& channel) {
    for (std::int32_t i = 0; i <= std::max(0, options_.ahead); ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (at == pending_.size()) {
        if (i > 0 && pending_.back().batch.last) break;
        pending_.emplace_back();
        pending_.back().iteration = position_.iteration + i;
      }
      pending& p = pending_[at];
      if (i == 0 && p.fill_error) {
        error e = std::move(*p.fill_error);
        p.fill_error.reset();
        return e;
      }
      if (p.fill_error) break;
      if (!p.complete) {
        auto filled = source_.fill(channel, p.batch, p.iteration, options_.global_batch_size);
        if (!filled) {
          if (i == 0 || filled.error().code == errc::aborted) return filled;
          p.fill_error = std::move(filled).error();
          break;
        }
        p.complete = true;
      }
      leave_out(p);
      if (nothing_in(p)) break;
      if (!p.plan && !p.made && !p.batch.sequences.empty()) {
        plans_.prepare(p.iteration, problem_of(p));
      }
    }
    return {};
  }

  /// The range has ended, with nothing or with a short batch that is not wanted.
  [[nodiscard]] bool nothing_in(const pending& p) const {
    if (!p.batch.last) return false;
    const auto found = static_cast<std::int64_t>(p.batch.sequences.size() + p.dropped.size());
    return found == 0 || (options_.drop_last && found < options_.global_batch_size);
  }
  [[nodiscard]] bool at_end() const { return nothing_in(pending_.front()); }

  [[nodiscard]] problem problem_of(const pending& p) const {
    problem prob = base_;
    prob.sequences = p.batch.sequences;
    return prob;
  }

  void leave_out(pending& p) {
    if (p.iteration == position_.iteration && !discarded_.empty()) {
      p.discards.insert(p.discards.end(), discarded_.begin(), discarded_.end());
      discarded_.clear();
      p.checked = false;
    }
    if (p.checked) return;
    p.checked = true;
    const std::vector<sequence>& batch = p.batch.sequences;
    std::vector<bool> gone(batch.size(), false);
    std::erase_if(p.discards, [&](std::int64_t id) {
      const auto has_id = [&](const sequence& s) { return s.id == id; };
      const auto found = std::find_if(batch.begin(), batch.end(), has_id);
      if (found != batch.end()) {
        gone[static_cast<std::size_t>(found - batch.begin())] = true;
        return false;
      }
      if (std::any_of(p.dropped.begin(), p.dropped.end(), has_id)) return false;
      if (!unknown_) unknown_ = id;
      return true;
    });
    if (options_.drop_unfit) {
      const std::vector<bool> unfit = unfit_sequences(base_, batch);
      for (std::size_t i = 0; i < batch.size(); ++i) gone[i] = gone[i] || unfit[i];
    }
    if (std::find(gone.begin(), gone.end(), true) != gone.end()) take_out(p, gone);
  }

  [[nodiscard]] error unknown_discard() const {
    return error{errc::invalid_argument, "sequence " + std::to_string(*unknown_) +
                 " was to be discarded and is not in iteration " +
                 std::to_string(position_.iteration), *unknown_, position_.iteration,
                 "discard sequences of the step that the next call yields, on every rank"};
  }

  /// For the step that takes the place of `p` as the next one.
  void return_discards(pending& p) {
    if (p.discards.empty()) return;
    discarded_.insert(discarded_.begin(), p.discards.begin(), p.discards.end());
    p.discards.clear();
    begin_anew(p);
  }

  /// Makes `p` what it was when it was read; what was discarded stays so.
  void begin_anew(pending& p) {
    reset_plan(p);
    p.checked = false;
    p.dropped.clear();
    if constexpr (Source::collective) {
      p.complete = false;  // its owners tell once more
    } else {
      Source::restore(p.batch);
    }
  }

  void take_out(pending& p, const std::vector<bool>& gone) {
    reset_plan(p);
    for (std::size_t i = 0; i < gone.size(); ++i) {
      if (gone[i]) p.dropped.push_back(p.batch.sequences[i]);
    }
    Source::remove(p.batch, gone);
  }

  /// Forgets the plan of `p`, and those behind it where they learn from each other.
  void reset_plan(pending& p) {
    const bool taught = options_.warm_start && p.plan;
    drop_plan(p);
    if (taught || plans_.asked(p.iteration)) forget_plans();
  }
  void forget_plans() {
    plans_.cancel();
    if (!options_.warm_start) return;
    for (pending& p : pending_) drop_plan(p);
  }
  /// What was made of a plan goes with it: its samples lie in the order of that plan.
  static void drop_plan(pending& p) {
    p.plan.reset();
    p.made.reset();
  }

  [[nodiscard]] result<void> make_plan(pending& p) {
    p.wait_s = 0;
    if (p.plan) return {};
    if (p.batch.sequences.empty()) {
      // All of it was left out: a step without micro-batches.
      p.plan.emplace();
      p.plan->plan.num_ranks = base_.parallel.ranks;
      p.plan->plan.max_tokens_per_rank = base_.limits.max_tokens_per_rank;
      p.plan->plan.padding = base_.padding;
      return {};
    }
    auto made = plans_.get(p.iteration, problem_of(p));
    if (!made) return std::move(made).error();
    p.plan = std::move(*made);
    p.wait_s = plans_.last_wait_s();
    return {};
  }

  [[nodiscard]] std::uint64_t digest_of(const problem& prob, const plan& p) const {
    const auto& cost = plans_.planner().cost();
    if constexpr (digestible_cost<std::remove_cvref_t<decltype(cost)>>) {
      return digest(prob, cost, p);
    } else {
      return digest(prob, p);
    }
  }

  template <class GroupOf>
  [[nodiscard]] result<void> prepare(std::int32_t rank, GroupOf&& group_of, prepared& out,
                                     length_correction& correction) {
    pending& p = pending_.front();
    DYNCP_TRY(make_plan(p));
    const problem prob = problem_of(p);
    auto layout = plan_layout::make(p.plan->plan, prob.sequences, options_.layout);
    if (!layout) return std::move(layout).error();
    out.digest = digest_of(prob, p.plan->plan);
    out.data = std::make_shared<detail::step_data<sample_type>>(std::move(*layout));
    detail::step_data<sample_type>& data = *out.data;
    data.metadata = make_step_metadata(data.layout, rank, p.iteration, out.digest);
    data.dropped = p.dropped;
    data.costs.plan_wait_s = p.wait_s;
    data.sample_begin.push_back(0);
    for (std::int32_t m = 0; m < data.metadata.num_micro_batches(); ++m) {
      auto params = contain("the function that gives groups",
                            [&] { return bind(data.metadata, m, group_of); });
      if (!params) return std::move(params).error();
      DYNCP_TRY(log_micro_batch(data.metadata, m, options_.log));
      data.sample_begin.push_back(data.sample_begin.back() +
                                  (*params ? (*params)->sequence_ids.size() : 0));
      data.params.push_back(std::move(*params));
    }
    if (p.made && !Source::collective) return {};
    return source_.load(p.batch, data.layout, rank, correction);
  }

  /// The members' vote: true if all do the same now, false if they only met. On a failure applies
  /// what they learned, the same on all of them.
  template <class C>
  [[nodiscard]] result<bool> decide(C& channel, std::int32_t rank, const result<void>& local,
                                    step_vote mine) {
    mine.failed = local ? 0 : 1;
    auto votes = gather_votes(channel, mine);
    if (!votes) return std::move(votes).error();
    for (const step_vote& v : *votes) {
      if (v.meets == 0) continue;
      DYNCP_TRY(settle(channel, *votes, check_options(channel, rank)));
      return false;
    }
    auto agreed = judge_votes(channel, *votes, local ? nullptr : &local.error());
    if (agreed) return true;
    if (!pending_.empty()) learn(channel.rank(), mine, *votes);
    return agreed.error();
  }

  /// From votes that were not alike: the lengths that members found. If none failed and plans
  /// differ all the same, one may have missed a correction or begun anew: all forget theirs, and
  /// find them again together.
  void learn(std::int32_t member, const step_vote& mine, const std::vector<step_vote>& votes) {
    pending& p = pending_.front();
    bool failed = false;
    for (const step_vote& v : votes) {
      failed = failed || v.failed != 0;
      // The index is one into the batch of who found it: of the same digest.
      if (v.failed == 0 || v.correction.sequence < 0 || v.digest != mine.digest) continue;
      const auto i = static_cast<std::size_t>(v.correction.sequence);
      if (v.iteration != p.iteration || i >= p.batch.sequences.size()) continue;
      reset_plan(p);
      p.checked = false;
      p.batch.sequences[i].length = v.correction.length;
      if constexpr (Source::collective) {
        if (p.batch.owners[i] == member) {
          p.batch.found[static_cast<std::size_t>(p.batch.slots[i])].what.length =
              v.correction.length;
        }
      }
    }
    if (!failed) begin_anew(p);
  }

  [[nodiscard]] step_type commit(std::int32_t rank, prepared step) {
    pending& p = pending_.front();
    detail::step_data<sample_type>& data = *step.data;
    if constexpr (Source::loads) {
      if (p.made && !Source::collective) {
        data.samples = p.made->samples;
      } else {
        data.samples = std::make_shared<const sample_list>(
            source_.samples(p.batch, data.layout, rank));
      }
    }
    if constexpr (Source::collective) {
      data.shapes = source_.shapes(p.batch, data.layout, rank);
      data.costs.probe_bytes = p.batch.probe_bytes;
      data.costs.rerouted_bytes = p.batch.sent_bytes;
      data.costs.received_bytes = p.batch.received_bytes;
    }
    data.planned = *p.plan;
    count(p, data.costs);
    p.made = step.data;
    position_.iteration += 1;
    position_.taken += p.batch.taken;
    previous_ = std::move(p);
    pending_.pop_front();
    return step_type(std::move(step.data));
  }

  /// A step that is yielded again adds what was not counted before.
  void count(pending& p, const step_costs& costs) {
    report_.steps += p.counted ? 0 : 1;
    report_.probe_bytes += p.counted ? 0 : costs.probe_bytes;
    report_.rerouted_bytes += costs.rerouted_bytes;
    const auto dropped = static_cast<std::int64_t>(p.dropped.size());
    report_.dropped += dropped - p.counted_dropped;
    p.counted = true;
    p.counted_dropped = dropped;
  }

  void roll_back() {
    position_.iteration -= 1;
    position_.taken -= previous_->batch.taken;
    pending_.push_front(std::move(*previous_));
    previous_.reset();
  }

  Source source_;
  problem base_;
  data_iterator_options options_;
  plan_source<Planner> plans_;
  std::deque<pending> pending_;      // from position_.iteration on
  std::optional<pending> previous_;  // the last step that was yielded
  data_position position_;
  std::vector<std::int64_t> discarded_;   // for the next step, before it is known
  std::optional<std::int64_t> unknown_;  // of them, what it does not have
  bool in_step_ = false;             // all members are known to be at the same place
  bool fresh_ = true;                // nothing was learned since the start, or a failure
  data_iterator_report report_;
};

/// Iterations over a range of `sequence`, or of lengths, that is the same on every rank.
///
/// `load(const sequence&)` returns a sample or a `result` of one; `length(const Sample&)` its
/// tokens. Only the samples of this rank's packs are loaded, after the plan is made.
template <std::ranges::input_range Range, batch_planner Planner, class Load,
          class Length = sample_length>
[[nodiscard]] auto make_data_iterator(Range&& range, Planner planner, problem base,
                                      data_iterator_options options, Load load,
                                      Length length = {}) {
  using source = listed_source<Range, Load, Length>;
  return data_iterator<source, Planner>(
      source(std::forward<Range>(range), std::move(load), std::move(length)), std::move(planner),
      std::move(base), std::move(options));
}

/// The same for a process that holds no samples: it plans, votes, and gets parameters.
template <std::ranges::input_range Range, batch_planner Planner>
[[nodiscard]] auto make_data_iterator(Range&& range, Planner planner, problem base,
                                      data_iterator_options options) {
  const auto no_length = [](const std::monostate&) { return std::int64_t{0}; };
  return make_data_iterator(std::forward<Range>(range), std::move(planner), std::move(base),
                            std::move(options), no_loader{}, no_length);
}

/// Iterations over samples whose lengths are unknown: `shard` is this rank's own range.
///
/// `probe(const Sample&)` returns a `sequence` or a `probed_sample`. The channel of `next` is that
/// of the DPxCP domain.
template <std::ranges::input_range Range, batch_planner Planner, class Probe,
          class Codec = plain_codec, class Length = sample_length>
[[nodiscard]] auto make_probed_iterator(Range&& shard, Planner planner, problem base,
                                        data_iterator_options options, Probe probe,
                                        Codec codec = {}, Length length = {},
                                        probe_options probing = {}) {
  using source = probed_source<Range, Probe, Codec, Length>;
  return data_iterator<source, Planner>(
      source(std::forward<Range>(shard), std::move(probe), std::move(codec), std::move(length),
             probing),
      std::move(planner), std::move(base), std::move(options));
}

}  // namespace v0
}  // namespace dyncp
