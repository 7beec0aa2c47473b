// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/plan/plan.hpp>
#include <dyncp/planner/planner.hpp>
#include <dyncp/planner/statistics.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/trainer/step_metadata.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// Which part of the model a process runs: stage of the pipeline, chunk of the interleaving, place
/// among the tensor ranks.
struct pipeline_place {
  std::int32_t stage = 0;
  std::int32_t stages = 1;
  std::int32_t chunk = 0;
  std::int32_t chunks = 1;
  std::int32_t tensor_rank = 0;

  [[nodiscard]] constexpr bool first() const noexcept { return stage == 0 && chunk == 0; }
  [[nodiscard]] constexpr bool last() const noexcept {
    return stage == stages - 1 && chunk == chunks - 1;
  }
  /// Only these need tokens (the embedding) or labels (the loss); others get the metadata.
  [[nodiscard]] constexpr bool holds_data() const noexcept {
    return tensor_rank == 0 && (first() || last());
  }
};

/// One micro-batch as one chunk of one stage gets it. Views into the step.
template <class Sample>
struct micro_batch_data {
  std::int32_t index = 0;
  const packed_seq_params* params = nullptr;  ///< nullptr: this rank is idle in this micro-batch
  std::span<const Sample> samples;            ///< whole, in THD order; empty where none are held
  /// What probing found of each sample besides its tokens, in THD order; empty for known lengths.
  std::span<const std::vector<std::int64_t>> shapes;

  [[nodiscard]] bool idle() const noexcept { return params == nullptr; }
};

/// What one step moved and waited, on this rank.
struct step_costs {
  double plan_wait_s = 0;            ///< how long the trainer waited for the plan
  std::int64_t probe_bytes = 0;      ///< sent to gather ids, lengths and shapes
  std::int64_t rerouted_bytes = 0;   ///< of samples, sent to other ranks
  std::int64_t received_bytes = 0;   ///< of samples, from other ranks
};

namespace detail {

/// All of a step, never changed after it was made, so that views on many threads can share it.
template <class Sample>
struct step_data {
  step_metadata metadata;
  dyncp::planned planned;
  plan_layout layout;
  std::vector<std::optional<packed_seq_params>> params;  // (micro-batches)
  std::shared_ptr<const std::vector<Sample>> samples;    // by micro-batch, in THD order
  std::vector<std::vector<std::int64_t>> shapes;         // as samples; empty for known lengths
  std::vector<std::size_t> sample_begin;                 // (micro-batches + 1)
  std::vector<sequence> dropped;
  step_costs costs;

  explicit step_data(plan_layout l) : layout(std::move(l)) {}

  [[nodiscard]] micro_batch_data<Sample> micro_batch(std::int32_t m, bool with_samples) const {
    DYNCP_ASSERT(m >= 0 && m < metadata.num_micro_batches());
    const auto i = static_cast<std::size_t>(m);
    micro_batch_data<Sample> out;
    out.index = m;
    out.params = params[i].has_value() ? &*params[i] : nullptr;
    const std::size_t count = sample_begin[i + 1] - sample_begin[i];
    if (with_samples && samples != nullptr) {
      out.samples = std::span<const Sample>(*samples).subspan(sample_begin[i], count);
    }
    if (!shapes.empty()) out.shapes = std::span(shapes).subspan(sample_begin[i], count);
    return out;
  }
};

}  // namespace detail

/// The micro-batches of a step for one chunk of one stage, one after the other: what a trainer's
/// `next(data_iterator)` returns. Each view counts for itself and changes nothing that another one
/// sees, so a chunk that runs ahead or lets go of its labels harms no other (Megatron-LM#5109).
///
/// Keeps the step alive. Thread safety: a view belongs to one thread; views of one step may be used
/// concurrently.
template <class Sample>
class stage_view {
 public:
  /// The next micro-batch; nothing behind the last one. Schedules that number their micro-batches
  /// use `at`.
  [[nodiscard]] std::optional<micro_batch_data<Sample>> next() {
    if (next_ >= num_micro_batches()) return std::nullopt;
    return at(next_++);
  }
  /// Requires 0 <= m < num_micro_batches().
  [[nodiscard]] micro_batch_data<Sample> at(std::int32_t m) const {
    return data_->micro_batch(m, place_.holds_data());
  }
  /// Begins again, for a second pass over the same micro-batches.
  void rewind() noexcept { next_ = 0; }

  [[nodiscard]] std::int32_t num_micro_batches() const noexcept {
    return data_->metadata.num_micro_batches();
  }
  [[nodiscard]] const pipeline_place& place() const noexcept { return place_; }

 private:
  template <class>
  friend class training_step;
  stage_view(std::shared_ptr<const detail::step_data<Sample>> data, const pipeline_place& place)
      : data_(std::move(data)), place_(place) {}

  std::shared_ptr<const detail::step_data<Sample>> data_;
  pipeline_place place_;
  std::int32_t next_ = 0;
};

/// One iteration: the micro-batches of this rank, their parameters and samples, and the plan.
///
/// A handle; copies share the step, which never changes. Const members may be called concurrently.
template <class Sample>
class training_step {
 public:
  using sample_type = Sample;

  explicit training_step(std::shared_ptr<const detail::step_data<Sample>> data)
      : data_(std::move(data)) {}

  [[nodiscard]] std::int64_t iteration() const noexcept { return data_->metadata.iteration; }
  /// The effective number of micro-batches, the same on all ranks: what the schedule is given.
  [[nodiscard]] std::int32_t num_micro_batches() const noexcept {
    return data_->metadata.num_micro_batches();
  }
  /// Micro-batch `m` with its samples. Requires 0 <= m < num_micro_batches().
  [[nodiscard]] micro_batch_data<Sample> micro_batch(std::int32_t m) const {
    return data_->micro_batch(m, true);
  }
  /// The micro-batches for one chunk of one stage, independent of all other views.
  [[nodiscard]] stage_view<Sample> view(const pipeline_place& place = {}) const {
    return stage_view<Sample>(data_, place);
  }

  /// What the stages and tensor ranks without data are sent: see `share_step`.
  [[nodiscard]] const step_metadata& metadata() const noexcept { return data_->metadata; }
  [[nodiscard]] const dyncp::plan& plan() const noexcept { return data_->planned.plan; }
  [[nodiscard]] const plan_statistics& statistics() const noexcept {
    return data_->planned.statistics;
  }
  /// Where every row of the plan lies, for plan_split, plan_merge and plan_reroute.
  [[nodiscard]] const plan_layout& layout() const noexcept { return data_->layout; }
  /// Sequences that no plan can hold, left out because the options say so.
  [[nodiscard]] std::span<const sequence> dropped() const noexcept { return data_->dropped; }
  [[nodiscard]] const step_costs& costs() const noexcept { return data_->costs; }

 private:
  std::shared_ptr<const detail::step_data<Sample>> data_;
};

/// `share_step`'s argument from what `data_iterator::next` returned.
template <class Sample>
[[nodiscard]] result<std::optional<step_metadata>> metadata_of(
    const result<std::optional<training_step<Sample>>>& step) {
  if (!step) return step.error();
  if (!*step) return std::optional<step_metadata>{};
  return std::optional<step_metadata>((*step)->metadata());
}

}  // namespace v0
}  // namespace dyncp
