// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ring attention over a pack in one thread, without fabric: every rank's steps in the order in
// which the ring would run them. It checks kernels and index sets together, against
// dense_attention.hpp, before messages come into it.

#include "support/dense_attention.hpp"
#include "support/random.hpp"

#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/float16.hpp>
#include <dyncp/cpu/attention_rows.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/index_map.hpp>
#include <dyncp/thd/pack_layout.hpp>
#include <dyncp/thd/ring_steps.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp_test {

/// A tensor (rows, heads, dim) of T with room between the rows.
template <class T>
struct local_tensor {
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
  std::int64_t stride = 0;
  std::vector<T> values;

  local_tensor() = default;
  local_tensor(std::int64_t r, std::int64_t h, std::int64_t d, T fill, std::int64_t gap = 0)
      : rows(r),
        heads(h),
        dim(d),
        stride(h * d + gap),
        values(static_cast<std::size_t>(r * stride + 1), fill) {}

  dyncp::thd_view<T> view() { return {values.data(), stride}; }
  dyncp::thd_view<const T> view() const { return {values.data(), stride}; }
  T& at(std::int64_t r, std::int64_t h, std::int64_t c) { return *view().at(r, h * dim + c, 1); }
  const T& at(std::int64_t r, std::int64_t h, std::int64_t c) const {
    return *view().at(r, h * dim + c, 1);
  }
};

inline double as_double(double x) {
  return x;
}
inline double as_double(float x) {
  return static_cast<double>(x);
}
inline double as_double(dyncp::bfloat16 x) {
  return static_cast<double>(static_cast<float>(x));
}
inline double as_double(dyncp::float16 x) {
  return static_cast<double>(static_cast<float>(x));
}

template <class T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return static_cast<T>(static_cast<float>(x));
  }
}

template <class T>
T not_a_number() {
  return from_double<T>(std::numeric_limits<double>::quiet_NaN());
}

/// A tensor of values in [-1, 1) that T can hold.
template <class T>
dense_tensor random_tensor(std::size_t rows, std::size_t heads, std::size_t dim, random& rng) {
  dense_tensor out(rows, heads, dim);
  for (double& x : out.values) x = as_double(from_double<T>(2.0 * rng.unit() - 1.0));
  return out;
}

/// Inputs of one sequence, and what the oracle makes of them.
struct dense_sequence {
  dense_tensor q, k, v, dout;
  dense_attention_result expected;
};

template <class T>
dense_sequence random_sequence(std::int64_t queries, std::int64_t keys,
                               const dyncp::attention_shape& shape, dyncp::attention_mask mask,
                               random& rng) {
  const auto size = [](auto x) { return static_cast<std::size_t>(x); };
  dense_sequence s;
  s.q = random_tensor<T>(size(queries), size(shape.q_heads), size(shape.qk_dim), rng);
  s.k = random_tensor<T>(size(keys), size(shape.kv_heads), size(shape.qk_dim), rng);
  s.v = random_tensor<T>(size(keys), size(shape.kv_heads), size(shape.v_dim), rng);
  s.dout = random_tensor<T>(size(queries), size(shape.q_heads), size(shape.v_dim), rng);
  s.expected =
      dense_attention(s.q, s.k, s.v, s.dout, shape.scale, mask == dyncp::attention_mask::causal);
  return s;
}

/// What a ring returned, gathered per sequence, and whether the padding came back as it must.
struct ring_outcome {
  std::vector<dense_attention_result> sequences;
  bool padding_clean = true;  ///< outputs and gradients 0, log-sum-exp -inf
};

namespace detail {

/// The share of `rank` of a field of the pack; padding and tail are NaN.
template <class T, class Field>
local_tensor<T> share_of(const dyncp::pack_view& pack, std::int32_t rank,
                         const std::vector<dense_sequence>& sequences, Field field,
                         std::int32_t heads, std::int32_t dim) {
  local_tensor<T> out(pack.local_rows(), heads, dim, not_a_number<T>(), 3);
  for (std::int32_t row = 0; row < pack.local_rows(); ++row) {
    const auto token = dyncp::token_at(pack, rank, row);
    if (!token.valid) continue;
    const dense_tensor& from = field(sequences[static_cast<std::size_t>(token.sequence)]);
    for (std::int32_t h = 0; h < heads; ++h) {
      for (std::int32_t c = 0; c < dim; ++c) {
        out.at(row, h, c) =
            from_double<T>(from.at(static_cast<std::size_t>(token.position),
                                   static_cast<std::size_t>(h), static_cast<std::size_t>(c)));
      }
    }
  }
  return out;
}

/// The inverse; false if a row of padding differs from `padding`.
template <class T, class Field>
bool gather(const dyncp::pack_view& pack, std::int32_t rank, const local_tensor<T>& share,
            double padding, Field field, std::vector<dense_attention_result>& sequences) {
  bool clean = true;
  for (std::int32_t row = 0; row < pack.local_rows(); ++row) {
    const auto token = dyncp::token_at(pack, rank, row);
    for (std::int64_t h = 0; h < share.heads; ++h) {
      for (std::int64_t c = 0; c < share.dim; ++c) {
        const double x = as_double(share.at(row, h, c));
        if (token.valid) {
          field(sequences[static_cast<std::size_t>(token.sequence)])
              .at(static_cast<std::size_t>(token.position), static_cast<std::size_t>(h),
                  static_cast<std::size_t>(c)) = x;
        } else {
          clean = clean && x == padding;
        }
      }
    }
  }
  return clean;
}

}  // namespace detail

/// Forward and backward over all ranks. The kernels see NaN in every row of padding.
template <class T, class Kernel>
ring_outcome run_local_ring(Kernel& kernel, const dyncp::pack_view& q_pack,
                            const dyncp::pack_view& kv_pack, const dyncp::attention_shape& shape,
                            dyncp::attention_mask mask,
                            const std::vector<dense_sequence>& sequences) {
  using acc = dyncp::accumulator_t<T>;
  const std::int32_t cp = q_pack.cp;
  struct rank_state {
    local_tensor<T> q, k, v, dout;
    local_tensor<acc> out, lse, part_out, part_lse, delta, dq, dk, dv;
  };
  std::vector<rank_state> ranks;
  for (std::int32_t r = 0; r < cp; ++r) {
    rank_state s;
    s.q = detail::share_of<T>(
        q_pack, r, sequences, [](auto& x) -> auto& { return x.q; }, shape.q_heads, shape.qk_dim);
    s.k = detail::share_of<T>(
        kv_pack, r, sequences, [](auto& x) -> auto& { return x.k; }, shape.kv_heads, shape.qk_dim);
    s.v = detail::share_of<T>(
        kv_pack, r, sequences, [](auto& x) -> auto& { return x.v; }, shape.kv_heads, shape.v_dim);
    s.dout = detail::share_of<T>(
        q_pack, r, sequences, [](auto& x) -> auto& { return x.dout; }, shape.q_heads, shape.v_dim);
    const acc nan = std::numeric_limits<acc>::quiet_NaN();
    const std::int64_t q_rows = q_pack.local_rows();
    const std::int64_t kv_rows = kv_pack.local_rows();
    s.out = local_tensor<acc>(q_rows, shape.q_heads, shape.v_dim, nan, 1);
    s.lse = local_tensor<acc>(q_rows, shape.q_heads, 1, nan, 2);
    s.part_out = local_tensor<acc>(q_rows, shape.q_heads, shape.v_dim, nan);
    s.part_lse = local_tensor<acc>(q_rows, shape.q_heads, 1, nan);
    s.delta = local_tensor<acc>(q_rows, shape.q_heads, 1, nan);
    s.dq = local_tensor<acc>(q_rows, shape.q_heads, shape.qk_dim, acc(0), 5);
    s.dk = local_tensor<acc>(kv_rows, shape.kv_heads, shape.qk_dim, acc(0));
    s.dv = local_tensor<acc>(kv_rows, shape.kv_heads, shape.v_dim, acc(0), 1);
    ranks.push_back(std::move(s));
  }

  for (std::int32_t r = 0; r < cp; ++r) {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    const dyncp::attention_partial<T> total{me.out.view(), me.lse.view()};
    const dyncp::attention_partial<T> part{me.part_out.view(), me.part_lse.view()};
    dyncp::cpu::clear_partial<T>(shape, q_pack.local_rows(), total);
    for (std::int32_t step = 0; step < cp; ++step) {
      const std::int32_t owner = dyncp::ring_owner(r, step, cp);
      const rank_state& other = ranks[static_cast<std::size_t>(owner)];
      const auto what = dyncp::ring_step_of(q_pack.layout, mask, r, owner);
      const auto segments = dyncp::segments_of(q_pack, kv_pack, what, r, owner);
      const dyncp::attention_operands<T> in{me.q.view(), other.k.view(), other.v.view()};
      kernel.template forward<T>(shape, what.mask, segments, in, part);
      dyncp::cpu::merge_partials<T>(shape, segments, part, total);
    }
    const auto all = dyncp::segments_of(q_pack, q_pack,
                                        {dyncp::row_part::all, dyncp::row_part::all, mask}, r, r);
    dyncp::cpu::attention_delta<T, acc>(shape, all, me.out.view(), me.dout.view(), me.delta.view());
  }
  for (std::int32_t r = 0; r < cp; ++r) {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    for (std::int32_t step = 0; step < cp; ++step) {
      const std::int32_t owner = dyncp::ring_owner_back(r, step, cp);
      rank_state& other = ranks[static_cast<std::size_t>(owner)];
      const auto what = dyncp::ring_step_of(q_pack.layout, mask, r, owner);
      const auto segments = dyncp::segments_of(q_pack, kv_pack, what, r, owner);
      const dyncp::attention_gradients<T> io{me.q.view(),    other.k.view(),  other.v.view(),
                                             me.dout.view(), me.lse.view(),   me.delta.view(),
                                             me.dq.view(),   other.dk.view(), other.dv.view()};
      kernel.template backward<T>(shape, what.mask, segments, io);
    }
  }

  ring_outcome outcome;
  for (const dense_sequence& s : sequences) {
    const auto& e = s.expected;
    outcome.sequences.push_back({dense_tensor(e.out.rows, e.out.heads, e.out.dim),
                                 dense_tensor(e.lse.rows, e.lse.heads, 1),
                                 dense_tensor(e.dq.rows, e.dq.heads, e.dq.dim),
                                 dense_tensor(e.dk.rows, e.dk.heads, e.dk.dim),
                                 dense_tensor(e.dv.rows, e.dv.heads, e.dv.dim)});
  }
  const double none = -std::numeric_limits<double>::infinity();
  for (std::int32_t r = 0; r < cp; ++r) {
    const rank_state& me = ranks[static_cast<std::size_t>(r)];
    auto& to = outcome.sequences;
    bool clean = true;
    clean &= detail::gather(
        q_pack, r, me.out, 0, [](auto& x) -> auto& { return x.out; }, to);
    clean &= detail::gather(
        q_pack, r, me.lse, none, [](auto& x) -> auto& { return x.lse; }, to);
    clean &= detail::gather(
        q_pack, r, me.dq, 0, [](auto& x) -> auto& { return x.dq; }, to);
    clean &= detail::gather(
        kv_pack, r, me.dk, 0, [](auto& x) -> auto& { return x.dk; }, to);
    clean &= detail::gather(
        kv_pack, r, me.dv, 0, [](auto& x) -> auto& { return x.dv; }, to);
    outcome.padding_clean = outcome.padding_clean && clean;
  }
  return outcome;
}

/// The largest relative error of a field over a whole pack: all its sequences as one vector.
struct ring_errors {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0;

  double worst() const {
    double x = 0;
    for (const double e : {out, lse, dq, dk, dv}) x = e > x || e != e ? e : x;
    return x;
  }
};

inline ring_errors errors_of(const ring_outcome& got,
                             const std::vector<dense_sequence>& sequences) {
  const auto error = [&](auto field) {
    std::vector<double> a;
    std::vector<double> b;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto& x = field(got.sequences[s]).values;
      const auto& y = field(sequences[s].expected).values;
      a.insert(a.end(), x.begin(), x.end());
      b.insert(b.end(), y.begin(), y.end());
    }
    return relative_error(a, b);
  };
  return {
      error([](auto& x) -> auto& { return x.out; }), error([](auto& x) -> auto& { return x.lse; }),
      error([](auto& x) -> auto& { return x.dq; }), error([](auto& x) -> auto& { return x.dk; }),
      error([](auto& x) -> auto& { return x.dv; })};
}

}  // namespace dyncp_test
