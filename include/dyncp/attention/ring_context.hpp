// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/attention/attention_step.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/device.hpp>
#include <dyncp/runtime/group_handle.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/layout_kind.hpp>
#include <dyncp/thd/pack_view.hpp>
#include <dyncp/thd/ring_steps.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

/// What the largest micro-batch may need; memory of the ring follows from it, not from one plan.
struct ring_limits {
  std::int32_t tokens_per_rank = 0;     ///< local rows of a pack, padding and tail included
  std::int32_t sequences_per_pack = 0;  ///< placeholders of bucketed packs included
  std::int32_t max_cp = 1;
};

/// All that ring attention needs to know of one micro-batch on one rank: which rows meet which in
/// each step, on the device. Filled by `ring_attention::prepare`, then used by the forward and
/// backward passes of all layers. Its memory comes from the limits.
///
/// It can be filled again as soon as all calls for its micro-batch are queued. The last upload may
/// still read the tables on the host, so filling it again waits until the stream of that upload is
/// idle, and costs nothing if it is. A host that is to run ahead of the device makes a context for
/// each micro-batch under way. Whoever frees one has waited for its last use.
///
/// It holds the group by handle, with the pool's generation: a backward pass after the pool was
/// rebuilt is an error, not a hang. Thread safety: belongs to the thread of its rank.
template <device D>
class ring_context {
 public:
  [[nodiscard]] static result<ring_context> make(D& device, const ring_limits& limits) {
    const std::int64_t entries = std::int64_t{limits.sequences_per_pack} * limits.max_cp;
    const std::int64_t bytes = entries * static_cast<std::int64_t>(sizeof(attention_segment));
    auto table = device.allocate(bytes);
    if (!table) return std::move(table).error();
    auto host = device.allocate_staging(bytes);
    if (!host) return std::move(host).error();
    ring_context out;
    out.limits_ = limits;
    out.table_ = std::move(*table);
    out.host_ = std::move(*host);
    out.table_begin_ = static_cast<const attention_segment*>(out.table_.data());
    out.pairs_.reserve(static_cast<std::size_t>(limits.max_cp));
    return out;
  }

  /// The step tables of queries laid out as `q` and keys as `kv`, queued for upload on `s`. Before
  /// they are written, wait(stream) -> result<void> waits for the stream of the last upload.
  template <class Wait>
  [[nodiscard]] result<void> fill(D& device, const packed_seq_params& q,
                                  const packed_seq_params& kv, attention_mask mask,
                                  typename D::stream s, Wait wait) {
    DYNCP_TRY(check(q, kv, mask));
    if (uploading_) DYNCP_TRY(wait(*uploading_));
    const pack_view pack = q.view();
    const pack_view kv_pack = kv.view();
    group_ = q.group;
    layout_ = pack.layout;
    mask_ = mask;
    rows_ = pack.local_rows();
    kv_rows_ = kv_pack.local_rows();
    sequences_ = pack.sequences;
    micro_batch_ = q.micro_batch;
    pairs_.clear();
    auto* next = static_cast<attention_segment*>(host_.data());
    for (std::int32_t owner = 0; owner < pack.cp; ++owner) {
      const ring_step step = ring_step_of(layout_, mask, group_.index, owner);
      std::int64_t pairs = 0;
      for (std::int32_t i = 0; i < sequences_; ++i) {
        *next = segment_of(pack, kv_pack, step, i, group_.index, owner);
        pairs += attended_pairs(*next, step.mask);
        ++next;
      }
      pairs_.push_back(pairs);
    }
    const std::int64_t bytes =
        std::int64_t{sequences_} * pack.cp * static_cast<std::int64_t>(sizeof(attention_segment));
    uploading_ = s;
    return device.upload(table_.data(), host_.data(), bytes, s);
  }

  [[nodiscard]] const group_handle& group() const noexcept { return group_; }
  [[nodiscard]] std::int32_t cp_size() const noexcept { return group_.size(); }
  [[nodiscard]] std::int32_t cp_rank() const noexcept { return group_.index; }
  [[nodiscard]] std::int32_t rows() const noexcept { return rows_; }        ///< local, of q
  [[nodiscard]] std::int32_t kv_rows() const noexcept { return kv_rows_; }  ///< local, of k and v
  [[nodiscard]] std::int32_t sequences() const noexcept { return sequences_; }
  [[nodiscard]] std::int32_t micro_batch() const noexcept { return micro_batch_; }

  /// The step against the keys of `owner`, a segment per sequence.
  [[nodiscard]] attention_step step(std::int32_t owner) const noexcept {
    return {
        {table_begin_ + std::ptrdiff_t{owner} * sequences_, static_cast<std::size_t>(sequences_)},
        ring_step_of(layout_, mask_, group_.index, owner).mask,
        rows_,
        kv_rows_};
  }
  /// Pairs of query and key that this rank computes against the keys of `owner`.
  [[nodiscard]] std::int64_t pairs(std::int32_t owner) const noexcept {
    return pairs_[static_cast<std::size_t>(owner)];
  }

 private:
  ring_context() = default;

  [[nodiscard]] result<void> check(const packed_seq_params& q, const packed_seq_params& kv,
                                   attention_mask mask) const {
    const auto over = [](const char* what, std::int64_t value, std::int64_t limit,
                         const char* field) {
      return error{errc::invalid_argument,
                   std::to_string(value) + " " + what + " exceed the " + std::to_string(limit) +
                       " that the ring was made for",
                   value, limit, std::string("raise ring_limits::") + field};
    };
    for (const packed_seq_params* p : {&q, &kv}) {
      const pack_view pack = p->view();
      if (pack.cp != p->group.size()) {
        return error{errc::mismatch,
                     "a pack laid out for " + std::to_string(pack.cp) + " ranks on a group of " +
                         std::to_string(p->group.size()),
                     pack.cp, p->group.size(), "lay it out for its group"};
      }
      if (pack.cp > limits_.max_cp)
        return over("ranks of a group", pack.cp, limits_.max_cp, "max_cp");
      if (pack.sequences > limits_.sequences_per_pack) {
        return over("sequences of a pack", pack.sequences, limits_.sequences_per_pack,
                    "sequences_per_pack");
      }
      if (pack.local_rows() > limits_.tokens_per_rank) {
        return over("tokens on a rank", pack.local_rows(), limits_.tokens_per_rank,
                    "tokens_per_rank");
      }
    }
    if (&q == &kv) return {};
    if (q.group != kv.group || q.view().sequences != kv.view().sequences ||
        q.view().layout != kv.view().layout) {
      return make_error(errc::mismatch,
                        "queries and keys have other groups, layouts or numbers of "
                        "sequences",
                        "pack both with the same sequences, in the same order");
    }
    if (mask != attention_mask::full) {
      return make_error(errc::unsupported,
                        "cross-attention under a causal mask has no meaning when "
                        "lengths differ",
                        "use the full mask");
    }
    return {};
  }

  ring_limits limits_;
  typename D::buffer table_;  // (owners, sequences)
  const attention_segment* table_begin_ = nullptr;
  typename D::staging host_;         // the same, until the upload has passed
  std::optional<typename D::stream> uploading_;  // of the last upload
  std::vector<std::int64_t> pairs_;  // (owners)
  group_handle group_;
  layout_kind layout_ = layout_kind::zigzag;
  attention_mask mask_ = attention_mask::causal;
  std::int32_t rows_ = 0;
  std::int32_t kv_rows_ = 0;
  std::int32_t sequences_ = 0;
  std::int32_t micro_batch_ = 0;
};

}  // namespace v0
}  // namespace dyncp
