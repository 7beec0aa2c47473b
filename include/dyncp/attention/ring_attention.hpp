// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/attention/attention_provider.hpp>
#include <dyncp/attention/attention_step.hpp>
#include <dyncp/attention/ring_context.hpp>
#include <dyncp/attention/ring_workspace.hpp>
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/plan/digest.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/message.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// Arrays of a forward pass, all of them the caller's, valid until the stream passes the call.
template <class T>
struct ring_forward_tensors {
  thd_view<const T> q;             ///< (rows, q_heads, qk_dim)
  thd_view<const T> k;             ///< (kv rows, kv_heads, qk_dim)
  thd_view<const T> v;             ///< (kv rows, kv_heads, v_dim); dense right behind a dense k
                                   ///< it saves a copy
  thd_view<T> out;                 ///< (rows, q_heads, v_dim)
  thd_view<accumulator_t<T>> lse;  ///< (rows, q_heads), natural logarithm, -inf for padding
  /// Optional, `kept_kv_elements`: gets the keys and values of the next rank, which the last hop
  /// brings, to spare the backward pass its first hop.
  T* kept_kv = nullptr;
};

/// Arrays of a backward pass. q, k, v, out, lse and kept_kv as the forward pass took and left them.
template <class T>
struct ring_backward_tensors {
  thd_view<const T> q;                   ///< (rows, q_heads, qk_dim)
  thd_view<const T> k;                   ///< (kv rows, kv_heads, qk_dim)
  thd_view<const T> v;                   ///< (kv rows, kv_heads, v_dim)
  thd_view<const T> out;                 ///< (rows, q_heads, v_dim)
  thd_view<const accumulator_t<T>> lse;  ///< (rows, q_heads)
  thd_view<const T> dout;                ///< (rows, q_heads, v_dim)
  thd_view<T> dq;                        ///< (rows, q_heads, qk_dim)
  thd_view<T> dk;                        ///< (kv rows, kv_heads, qk_dim)
  thd_view<T> dv;                        ///< (kv rows, kv_heads, v_dim)
  const T* kept_kv = nullptr;            ///< optional, from the forward pass
};

struct ring_options {
  /// Before a micro-batch is used, its ranks compare what they think it is: a plan that differs
  /// is a typed error on all of them instead of a wrong result. Costs a small host collective.
  bool verify = false;
};

/// Attention over packs of sequences that lie on a group of ranks, forward and backward.
///
/// Forward: keys and values travel around the ring of the group towards the next rank, one message
/// a hop, cp - 1 hops. While a rank works on one block the next arrives in the other of two slots;
/// one event says that a block arrived, one that it was consumed. Each step yields a partial output
/// with its log-sum-exp, folded into the running ones in the accumulator type.
///
/// Backward: the ring turns the other way, so that a block visits its owner last. Step i works on
/// the keys of rank + 1 + i; the sums of dk and dv for a block follow it one step behind in the
/// same message and are home after cp - 1 hops. Why this order:
///  - it moves (cp - 1) * (kv + dkv) bytes; starting with the own keys needs a further hop of dkv,
///    which at cp = 2, the size that dynamic CP uses most, is 5/3 of the bytes (dkv is wider);
///  - the last hop runs beside the diagonal step, the first beside nothing: of the two the first
///    is the smaller, and `kept_kv` removes it;
///  - nothing has to be kept per layer for it unless the caller offers `kept_kv`.
///
/// Ranks without tokens take part in every hop; message sizes follow from the pack and are the same
/// on all ranks of a group. Padding rows of out, dq, dk and dv are exactly zero and lse there is
/// -infinity, whatever they held. A group of one rank makes the same calls with no hop.
///
/// Memory: nothing is allocated after `create` and `make_context`; `workspace_bytes` follows from
/// the limits. Determinism: merges and sums run in ring order, so results repeat bit for bit; they
/// differ in rounding between group sizes. Streams: all work runs on the caller's stream and the
/// device's communication stream, joined before the caller's stream goes on; nothing waits on the
/// host but `prepare` of a context that was filled before. Calls on one object use one stream.
/// Thread safety: belongs to the thread of its rank. Errors: mismatch for a context of another
/// pool, invalid_argument for one of larger limits, both before anything is queued; those of the
/// fabric.
/// An error in a group of several ranks poisons the pool, since its peers may have begun.
///
/// Source: ring attention (Liu et al. 2023) with the balanced chunk order of "zigzag" rings and
/// the log-sum-exp merge of FlashAttention; the schedule of the backward pass as in
/// TransformerEngine's, with dk/dv one step behind.
template <class T, backend B, attention_provider<typename B::device_type, T> P>
class ring_attention {
 public:
  using device_type = typename B::device_type;
  using stream = typename device_type::stream;
  using sum_type = accumulator_t<T>;
  using context = ring_context<device_type>;

  [[nodiscard]] static constexpr std::int64_t workspace_bytes(const attention_shape& shape,
                                                              const ring_limits& limits) noexcept {
    return detail::ring_workspace<T>(shape, limits.tokens_per_rank).bytes;
  }
  /// Elements of `kept_kv` for a pack with so many local rows of keys.
  [[nodiscard]] static constexpr std::int64_t kept_kv_elements(const attention_shape& shape,
                                                               std::int64_t kv_rows) noexcept {
    return detail::ring_sizes(shape, 0, kv_rows).kv();
  }

  /// A ring for layers of this shape. `workspace`, if given, is device memory of at least
  /// workspace_bytes(), aligned to device_alignment_bytes; it serves one call at a time and may be
  /// shared by rings that use the same stream. Otherwise the ring allocates its own.
  ///
  /// The pool outlives the ring, unmoved.
  [[nodiscard]] static result<ring_attention> create(group_pool<B>& pool, P provider,
                                                     const attention_shape& shape,
                                                     const ring_limits& limits,
                                                     ring_options options = {},
                                                     void* workspace = nullptr) {
    DYNCP_TRY(validate(shape));
    DYNCP_TRY(provider.supports(shape));
    if (limits.tokens_per_rank < 0 || limits.sequences_per_pack < 0 || limits.max_cp < 1) {
      return make_error(errc::invalid_argument, "ring_limits below zero, or groups below one rank",
                        "derive them from the limits of the planner");
    }
    if (reinterpret_cast<std::uintptr_t>(workspace) % device_alignment_bytes != 0) {
      return error{errc::invalid_argument, "the workspace of the ring is not aligned",
                   static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(workspace) %
                                             device_alignment_bytes),
                   0, "align it to device_alignment_bytes"};
    }
    ring_attention ring(pool, std::move(provider), shape, limits, options);
    device_type& device = pool.owner().device();
    if (workspace == nullptr) {
      auto memory = device.allocate(workspace_bytes(shape, limits));
      if (!memory) return std::move(memory).error();
      ring.memory_ = std::move(*memory);
      workspace = ring.memory_->data();
    }
    ring.workspace_ = static_cast<std::byte*>(workspace);
    for (std::optional<event>* e :
         {&ring.ready_, &ring.arrived_[0], &ring.arrived_[1], &ring.consumed_}) {
      auto made = device.make_event();
      if (!made) return std::move(made).error();
      e->emplace(std::move(*made));
    }
    return ring;
  }

  /// A context for the micro-batches within the limits.
  [[nodiscard]] result<context> make_context() {
    return context::make(pool_->owner().device(), limits_);
  }

  /// Fills `c` for a micro-batch; its tables are uploaded on `s`. If `c` was filled before, waits
  /// until the stream of that upload is idle, bounded by the fabric's deadline: calls for the last
  /// micro-batch that are queued keep its tables. Collective with ring_options::verify, else local.
  [[nodiscard]] result<void> prepare(context& c, const packed_seq_params& params,
                                     attention_mask mask, stream s) {
    return prepare(c, params, params, mask, s);
  }
  /// The same for cross-attention: keys in a pack of their own, on the same group, full mask.
  [[nodiscard]] result<void> prepare(context& c, const packed_seq_params& q,
                                     const packed_seq_params& kv, attention_mask mask, stream s) {
    auto filled = c.fill(pool_->owner().device(), q, kv, mask, s,
                         [this](stream last) { return pool_->synchronize(last); });
    if (options_.verify && q.group.size() > 1) {
      auto group = pool_->channel(q.group);
      // 0 says that this rank refused the micro-batch.
      DYNCP_TRY(agree(group, filled ? digest(q, kv, mask) : 0,
                      "micro-batch " + std::to_string(q.micro_batch)));
    }
    return filled;
  }

  [[nodiscard]] result<void> forward(const context& c, const ring_forward_tensors<T>& t, stream s) {
    DYNCP_TRY(check_context(c));
    auto done = run_forward(c, t, s);
    if (!done && c.cp_size() > 1) pool_->fail(done.error());
    return done;
  }

  [[nodiscard]] result<void> backward(const context& c, const ring_backward_tensors<T>& t,
                                      stream s) {
    DYNCP_TRY(check_context(c));
    auto done = run_backward(c, t, s);
    if (!done && c.cp_size() > 1) pool_->fail(done.error());
    return done;
  }

  /// Bytes that this rank sends in a forward and a backward pass over the micro-batch of `c`.
  [[nodiscard]] std::int64_t forward_bytes(const context& c) const noexcept {
    return (c.cp_size() - 1) * kv_message(detail::ring_sizes(shape_, 0, c.kv_rows()));
  }
  [[nodiscard]] std::int64_t backward_bytes(const context& c, bool kept_kv = false) const noexcept {
    const detail::ring_sizes n(shape_, 0, c.kv_rows());
    const std::int64_t hops = c.cp_size() - 1;
    std::int64_t bytes = 0;
    for (std::int32_t i = 0; i <= c.cp_size(); ++i) {
      if (hops > 0 && !(i == 0 && kept_kv)) bytes += message(n, i, c.cp_size()).bytes();
    }
    return bytes;
  }

 private:
  using event = typename device_type::event;
  using sizes = detail::ring_sizes;

  ring_attention(group_pool<B>& pool, P provider, const attention_shape& shape,
                 const ring_limits& limits, ring_options options)
      : pool_(&pool),
        provider_(std::move(provider)),
        shape_(shape),
        limits_(limits),
        options_(options),
        layout_(shape, limits.tokens_per_rank) {}

  /// What one hop of the backward pass carries: bytes from `begin` to `end` of a slot.
  struct slot_range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    [[nodiscard]] constexpr std::int64_t bytes() const noexcept { return end - begin; }
  };
  [[nodiscard]] static std::int64_t kv_message(const sizes& n) noexcept {
    return static_cast<std::int64_t>(sizeof(T)) * n.kv();
  }
  /// Hop i of 0..cp: keys leave in the first cp - 1, sums of their gradients in the last cp - 1.
  [[nodiscard]] static slot_range message(const sizes& n, std::int32_t i,
                                          std::int32_t cp) noexcept {
    const bool kv = i <= cp - 2;
    const bool dkv = i >= 2;
    const std::int64_t border = detail::ring_workspace<T>::kv_bytes(n);
    const std::int64_t sums = static_cast<std::int64_t>(sizeof(sum_type)) * n.kv();
    if (kv && dkv) return {0, border + sums};
    if (kv) return {0, kv_message(n)};
    if (dkv) return {border, border + sums};
    return {};
  }

  [[nodiscard]] static std::uint64_t digest(const packed_seq_params& q, const packed_seq_params& kv,
                                            attention_mask mask) {
    word_digest d;
    d.add(static_cast<std::int32_t>(mask));
    for (const packed_seq_params* p : {&q, &kv}) {
      d.add(static_cast<std::int32_t>(p->layout.layout()));
      d.add(p->total_tokens());
      d.add(p->micro_batch);
      d.add(p->group.ranks.begin);
      d.add(p->group.ranks.size);
      for (std::int32_t entry : p->cu().real) d.add(entry);
      for (std::int32_t entry : p->cu().padded) d.add(entry);
      for (std::int64_t id : p->sequence_ids) d.add(id);
    }
    return d.value();
  }

  [[nodiscard]] std::byte* slot(std::int32_t i) const noexcept {
    return workspace_ + layout_.slot[i & 1];
  }
  [[nodiscard]] sum_type* sums(std::int64_t offset) const noexcept {
    return reinterpret_cast<sum_type*>(workspace_ + offset);
  }
  [[nodiscard]] static sum_type* slot_dkv(std::byte* begin, const sizes& n) noexcept {
    return reinterpret_cast<sum_type*>(begin + detail::ring_workspace<T>::kv_bytes(n));
  }

  [[nodiscard]] result<void> check_context(const context& c) const {
    const std::int32_t rows = std::max(c.rows(), c.kv_rows());
    if (rows > limits_.tokens_per_rank) {
      return error{errc::invalid_argument,
                   "a context of " + std::to_string(rows) + " tokens a rank on a ring made for " +
                       std::to_string(limits_.tokens_per_rank),
                   rows, limits_.tokens_per_rank, "make both with the same ring_limits"};
    }
    if (c.group().generation == pool_->generation()) return {};
    return error{errc::mismatch,
                 "a context of pool generation " + std::to_string(c.group().generation) +
                     " used with generation " + std::to_string(pool_->generation()),
                 static_cast<std::int64_t>(c.group().generation),
                 static_cast<std::int64_t>(pool_->generation()),
                 "prepare it again with a group of the new pool, and repeat the forward pass"};
  }

  [[nodiscard]] thd_view<sum_type> view(sum_type* data, std::int64_t width) const noexcept {
    return {data, width};
  }
  [[nodiscard]] std::int64_t k_width() const noexcept {
    return std::int64_t{shape_.kv_heads} * shape_.qk_dim;
  }
  [[nodiscard]] std::int64_t v_width() const noexcept {
    return std::int64_t{shape_.kv_heads} * shape_.v_dim;
  }
  [[nodiscard]] std::int64_t q_width() const noexcept {
    return std::int64_t{shape_.q_heads} * shape_.qk_dim;
  }
  [[nodiscard]] std::int64_t out_width() const noexcept {
    return std::int64_t{shape_.q_heads} * shape_.v_dim;
  }

  /// The own keys and values as one message: the caller's memory if v follows k, else a copy in
  /// `to`, queued on s.
  [[nodiscard]] result<const std::byte*> own_kv(thd_view<const T> k, thd_view<const T> v,
                                                const sizes& n, std::byte* to, stream s) {
    constexpr std::int64_t element = sizeof(T);
    if (k.row_stride == k_width() && v.row_stride == v_width() && k.data + n.k == v.data) {
      return reinterpret_cast<const std::byte*>(k.data);
    }
    device_type& device = pool_->owner().device();
    const std::int64_t rows = n.kv() / (k_width() + v_width());
    T* const packed = reinterpret_cast<T*>(to);
    DYNCP_TRY(device.copy_strided(packed, element * k_width(), k.data, element * k.row_stride,
                                  element * k_width(), rows, s));
    DYNCP_TRY(device.copy_strided(packed + n.k, element * v_width(), v.data, element * v.row_stride,
                                  element * v_width(), rows, s));
    return static_cast<const std::byte*>(to);
  }

  [[nodiscard]] result<void> hop(const context& c, std::int32_t to, const std::byte* out,
                                 std::int32_t from, std::byte* in, std::int64_t bytes) {
    const outgoing sent{to, out, bytes};
    const incoming received{from, in, bytes};
    return pool_->exchange(c.group(), {&sent, 1}, {&received, 1},
                           pool_->owner().device().comm_stream());
  }

  [[nodiscard]] result<void> run_forward(const context& c, const ring_forward_tensors<T>& t,
                                         stream s) {
    device_type& device = pool_->owner().device();
    const stream comm = device.comm_stream();
    const std::int32_t cp = c.cp_size();
    const std::int32_t rank = c.cp_rank();
    const sizes n(shape_, c.rows(), c.kv_rows());
    const std::int64_t kv_bytes = kv_message(n);

    attention_partial<T> total{{}, t.lse};
    if constexpr (std::is_same_v<T, sum_type>) {
      total.out = t.out;
    } else {
      total.out = view(sums(layout_.out), out_width());
    }
    const attention_operands<T> own{t.q, t.k, t.v};
    const attention_partial<T> part{view(sums(layout_.step_out), out_width()),
                                    view(sums(layout_.step_lse), shape_.q_heads)};
    // Padding is no kernel's business: it keeps these values.
    DYNCP_TRY(provider_.clear(device, s, shape_, c.rows(), total));

    const std::byte* source = nullptr;
    if (cp > 1) {
      // Hop 0 receives into slot 0; slot 1 is free for the own keys until hop 1.
      auto packed = own_kv(t.k, t.v, n, slot(1), s);
      if (!packed) return std::move(packed).error();
      source = *packed;
      DYNCP_TRY(device.record(*ready_, s));
      DYNCP_TRY(device.wait(comm, *ready_));
    }
    for (std::int32_t step = 0; step < cp; ++step) {
      const std::byte* const block = source;
      if (step < cp - 1) {
        // Into the slot that the step before worked on: it must be done with it.
        if (step >= 2) DYNCP_TRY(device.wait(comm, *consumed_));
        std::byte* const into = step == cp - 2 && t.kept_kv != nullptr
                                    ? reinterpret_cast<std::byte*>(t.kept_kv)
                                    : slot(step);
        DYNCP_TRY(hop(c, (rank + 1) % cp, source, (rank + cp - 1) % cp, into, kv_bytes));
        DYNCP_TRY(device.record(*arrived_[step & 1], comm));
        source = into;
      }
      const std::int32_t owner = ring_owner(rank, step, cp);
      const attention_step work = c.step(owner);
      if (step == 0) {
        if (c.pairs(owner) > 0) {
          DYNCP_TRY(provider_.forward(device, s, shape_, work, own, total));
        }
        continue;
      }
      DYNCP_TRY(device.wait(s, *arrived_[(step - 1) & 1]));
      if (c.pairs(owner) > 0) {
        const T* const k = reinterpret_cast<const T*>(block);
        const attention_operands<T> in{t.q, {k, k_width()}, {k + n.k, v_width()}};
        DYNCP_TRY(provider_.forward(device, s, shape_, work, in, part));
        DYNCP_TRY(provider_.merge(device, s, shape_, work, part, total));
      }
      DYNCP_TRY(device.record(*consumed_, s));
    }
    // The last step waited for the last hop, and with it for all that the communication stream did.
    if constexpr (!std::is_same_v<T, sum_type>) {
      DYNCP_TRY(round(c.rows(), out_width(), total.out, t.out, s));
    }
    return {};
  }

  [[nodiscard]] result<void> run_backward(const context& c, const ring_backward_tensors<T>& t,
                                          stream s) {
    device_type& device = pool_->owner().device();
    const stream comm = device.comm_stream();
    const std::int32_t cp = c.cp_size();
    const std::int32_t rank = c.cp_rank();
    const std::int32_t next = (rank + 1) % cp;
    const std::int32_t previous = (rank + cp - 1) % cp;
    const sizes n(shape_, c.rows(), c.kv_rows());

    constexpr std::int64_t sum_bytes = sizeof(sum_type);
    const thd_view<sum_type> dq = view(sums(layout_.dq), q_width());
    DYNCP_TRY(device.fill_zero(dq.data, sum_bytes * n.dq, s));
    const thd_view<sum_type> delta = view(sums(layout_.delta), shape_.q_heads);
    sum_type* const step_dkv = sums(layout_.step_dkv);
    const auto differentiate = [&](std::int32_t owner, thd_view<const T> k,
                                   thd_view<const T> v) -> result<void> {
      // Zero first: a step adds to the keys that it meets, often only their first halves.
      DYNCP_TRY(device.fill_zero(step_dkv, sum_bytes * n.kv(), s));
      if (c.pairs(owner) == 0) return {};
      return provider_.backward(
          device, s, shape_, c.step(owner),
          attention_gradients<T>{t.q, k, v, t.dout, t.lse, delta, dq, view(step_dkv, k_width()),
                                 view(step_dkv + n.k, v_width())});
    };
    // The segments of the diagonal name all rows with tokens.
    DYNCP_TRY(provider_.delta(device, s, shape_, c.step(rank), t.out, t.dout, delta));
    const std::byte* block = reinterpret_cast<const std::byte*>(t.kept_kv);
    if (cp > 1) {
      const std::byte* source = nullptr;
      if (block == nullptr) {
        auto packed = own_kv(t.k, t.v, n, slot(1), s);
        if (!packed) return std::move(packed).error();
        source = *packed;
      }
      DYNCP_TRY(device.record(*ready_, s));
      DYNCP_TRY(device.wait(comm, *ready_));
      if (block == nullptr) {
        DYNCP_TRY(hop(c, previous, source, next, slot(0), message(n, 0, cp).bytes()));
        block = slot(0);
      }
      DYNCP_TRY(device.record(*arrived_[0], comm));
    }
    for (std::int32_t i = 1; i < cp; ++i) {
      // Hop i takes on the keys of this step, and the sums that the step before finished, while
      // this step computes; slot i gets the keys of the next step and the sums of this one's.
      std::byte* const into = slot(i);
      const slot_range range = message(n, i, cp);
      if (i >= 2) DYNCP_TRY(device.wait(comm, *consumed_));
      if (range.bytes() > 0) {
        DYNCP_TRY(hop(c, previous, block + range.begin, next, into + range.begin, range.bytes()));
      }
      DYNCP_TRY(device.record(*arrived_[i & 1], comm));

      DYNCP_TRY(device.wait(s, *arrived_[(i - 1) & 1]));
      const T* const k = reinterpret_cast<const T*>(block);
      DYNCP_TRY(
          differentiate(ring_owner_back(rank, i - 1, cp), {k, k_width()}, {k + n.k, v_width()}));
      if (i == 1) {  // the first visitor of its keys: nothing to add to
        DYNCP_TRY(device.copy(slot_dkv(into, n), step_dkv, sum_bytes * n.kv(), s));
      } else {
        DYNCP_TRY(device.wait(s, *arrived_[i & 1]));
        DYNCP_TRY(provider_.add(device, s, slot_dkv(into, n), step_dkv, n.kv()));
      }
      DYNCP_TRY(device.record(*consumed_, s));
      block = into;
    }
    sum_type* dkv = step_dkv;
    if (cp > 1) {
      const slot_range range = message(n, cp, cp);
      DYNCP_TRY(device.wait(comm, *consumed_));
      DYNCP_TRY(hop(c, previous, block + range.begin, next, slot(cp) + range.begin, range.bytes()));
      DYNCP_TRY(device.record(*arrived_[cp & 1], comm));
    }
    DYNCP_TRY(differentiate(rank, t.k, t.v));
    if (cp > 1) {
      sum_type* const home = slot_dkv(slot(cp), n);
      DYNCP_TRY(device.wait(s, *arrived_[cp & 1]));
      DYNCP_TRY(provider_.add(device, s, home, step_dkv, n.kv()));
      dkv = home;
    }
    DYNCP_TRY(round(c.kv_rows(), k_width(), view(dkv, k_width()), t.dk, s));
    DYNCP_TRY(round(c.kv_rows(), v_width(), view(dkv + n.k, v_width()), t.dv, s));
    return round(c.rows(), q_width(), dq, t.dq, s);
  }

  [[nodiscard]] result<void> round(std::int64_t rows, std::int64_t width,
                                   thd_view<const sum_type> from, thd_view<T> to, stream s) {
    return provider_.convert(pool_->owner().device(), s, rows, width, from, to);
  }

  group_pool<B>* pool_;
  P provider_;
  attention_shape shape_;
  ring_limits limits_;
  ring_options options_;
  detail::ring_workspace<T> layout_;
  std::optional<typename device_type::buffer> memory_;
  std::byte* workspace_ = nullptr;
  std::optional<event> ready_;                   // the caller's stream has made what hop 0 sends
  std::array<std::optional<event>, 2> arrived_;  // a hop has filled this slot
  std::optional<event> consumed_;                // the caller's stream is done with a slot
};

}  // namespace v0
}  // namespace dyncp
