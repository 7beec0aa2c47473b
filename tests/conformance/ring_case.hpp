// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/dense_attention.hpp"
#include "conformance/runner.hpp"
#include "support/bf16_attention.hpp"

#include <dyncp/attention/ring_attention.hpp>
#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/bfloat16.hpp>
#include <dyncp/core/padding.hpp>
#include <dyncp/core/rank_range.hpp>
#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/index_map.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dyncp_test {

enum class tensor : std::int32_t { q, k, v, dout };

/// Uniform in [-1, 1), a pure function of where the number stands: every rank makes its own rows.
inline double hashed(tensor which, std::int64_t id, std::int64_t position, std::int64_t head,
                     std::int64_t c) {
  std::uint64_t z = 0x9e3779b97f4a7c15ULL;
  for (std::int64_t word : {static_cast<std::int64_t>(which), id, position, head, c}) {
    z ^= static_cast<std::uint64_t>(word) + 0x9e3779b97f4a7c15ULL + (z << 6) + (z >> 2);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
  }
  return static_cast<double>(z >> 11) * 0x1.0p-52 - 1.0;
}

struct pack_case {
  dyncp::rank_range ranks;
  std::vector<std::int64_t> lengths;
};

/// One batch of attention: its micro-batches with their packs, and how the numbers are made.
/// Sequences are numbered 0, 1, ... through micro-batches, packs and lengths.
struct ring_case {
  dyncp::attention_shape shape{2, 1, 4, 4, 0.5};
  dyncp::attention_mask mask = dyncp::attention_mask::causal;
  dyncp::layout_kind layout = dyncp::layout_kind::zigzag;
  dyncp::padding_rule padding{.zigzag = true};
  std::vector<std::vector<pack_case>> micro_batches;
  double (*value)(tensor, std::int64_t, std::int64_t, std::int64_t, std::int64_t) = hashed;
  bool kept_kv = false;        ///< keep what the last forward hop brings for the backward pass
  bool strided = false;        ///< rows of the caller's arrays lie apart
  bool adjacent_kv = false;    ///< v right behind k: no copy before the first hop
  bool own_workspace = false;  ///< the caller's memory as workspace
  dyncp::pool_options pool = {};
  dyncp::ring_options ring = {};
  bool one_context = false;  ///< filled for one micro-batch after the other, in one go
  std::int32_t repeats = 1;  ///< results must be the same bits each time
};

/// Sums of squares of differences and of references, and the largest relative difference.
struct deviation {
  double difference2 = 0;
  double reference2 = 0;
  double worst = 0;

  void add(double got, double want, double scale) {
    // NaN must not slip through a comparison.
    const double d =
        std::isfinite(got) ? std::fabs(got - want) : std::numeric_limits<double>::infinity();
    difference2 += d * d;
    reference2 += want * want;
    worst = std::max(worst, d / scale);
  }
  [[nodiscard]] double rms() const {
    return reference2 > 0 ? std::sqrt(difference2 / reference2) : std::sqrt(difference2);
  }
};

inline constexpr std::array<const char*, 5> result_names = {"out", "lse", "dq", "dk", "dv"};
using deviations = std::array<deviation, 5>;  // of result_names

template <class T>
double as_double(T x) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<double>(static_cast<float>(x));
  } else {
    return static_cast<double>(x);
  }
}
template <class T>
T as_element(double x) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// Dense results of all sequences, computed from inputs rounded to T.
template <class T>
class ring_oracle {
 public:
  explicit ring_oracle(const ring_case& c) {
    std::int64_t id = 0;
    for (const auto& micro_batch : c.micro_batches) {
      for (const pack_case& pack : micro_batch) {
        for (std::int64_t length : pack.lengths) {
          dense_attention d;
          const auto fill = [&](std::vector<double>& to, tensor which, std::int64_t heads,
                                std::int64_t dim) {
            for (std::int64_t p = 0; p < length; ++p) {
              for (std::int64_t h = 0; h < heads; ++h) {
                for (std::int64_t x = 0; x < dim; ++x) {
                  to.push_back(as_double(as_element<T>(c.value(which, id, p, h, x))));
                }
              }
            }
          };
          fill(d.q, tensor::q, c.shape.q_heads, c.shape.qk_dim);
          fill(d.k, tensor::k, c.shape.kv_heads, c.shape.qk_dim);
          fill(d.v, tensor::v, c.shape.kv_heads, c.shape.v_dim);
          fill(d.dout, tensor::dout, c.shape.q_heads, c.shape.v_dim);
          d.run(c.shape, c.mask, length, length);
          const auto raise = [](double& scale, const std::vector<double>& values) {
            for (double x : values) {
              if (std::isfinite(x)) scale = std::max(scale, std::fabs(x));
            }
          };
          const std::array<const std::vector<double>*, 5> results = {&d.out, &d.lse, &d.dq, &d.dk,
                                                                     &d.dv};
          for (std::size_t i = 0; i < results.size(); ++i) raise(scales_[i], *results[i]);
          const std::array<double, 5> sizes = {d.out_size, scales_[1], d.dq_size, d.dk_size,
                                               d.dv_size};
          for (std::size_t i = 0; i < sizes.size(); ++i) sizes_[i] = std::max(sizes_[i], sizes[i]);
          largest_score_ = std::max(largest_score_, d.largest_score);
          sequences_.push_back(std::move(d));
          ++id;
        }
      }
    }
  }
  [[nodiscard]] const dense_attention& of(std::int64_t id) const {
    return sequences_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] std::int64_t sequences() const {
    return static_cast<std::int64_t>(sequences_.size());
  }
  /// What differences are related to: the largest result of that name in the batch. Where the sums
  /// cancel (one token: dq = dk = 0; scores far from 0, keys nearly equal) the size of what
  /// cancels; scores of thousands lose that many units in the last place of their exponentials.
  [[nodiscard]] double scale(std::size_t result) const {
    if (largest_score_ > 30) {
      return std::max(sizes_[result], 1e-300) * std::max(1.0, largest_score_ / 100);
    }
    return scales_[result] > 0 ? scales_[result] : std::max(sizes_[result], 1e-300);
  }

 private:
  std::vector<dense_attention> sequences_;
  std::array<double, 5> scales_ = {};  // of result_names
  std::array<double, 5> sizes_ = {};
  double largest_score_ = 0;
};

/// Deviations of a plain bfloat16 computation on whole sequences, which shares nothing with the
/// library: the ring may have at most twice of them.
inline deviations plain_bfloat16(const ring_case& c, const ring_oracle<dyncp::bfloat16>& oracle) {
  deviations sums;
  for (std::int64_t id = 0; id < oracle.sequences(); ++id) {
    const dense_attention& d = oracle.of(id);
    const auto tensor_of = [&](const std::vector<double>& values, std::int32_t heads,
                               std::int32_t dim) {
      const auto h = static_cast<std::size_t>(heads);
      const auto w = static_cast<std::size_t>(dim);
      dense_tensor t(values.size() / (h * w), h, w);
      t.values = values;
      return t;
    };
    const auto plain = bf16_attention(tensor_of(d.q, c.shape.q_heads, c.shape.qk_dim),
                                      tensor_of(d.k, c.shape.kv_heads, c.shape.qk_dim),
                                      tensor_of(d.v, c.shape.kv_heads, c.shape.v_dim),
                                      tensor_of(d.dout, c.shape.q_heads, c.shape.v_dim),
                                      c.shape.scale, c.mask == dyncp::attention_mask::causal);
    const std::array<const dense_tensor*, 5> got = {&plain.out, &plain.lse, &plain.dq, &plain.dk,
                                                    &plain.dv};
    const std::array<const std::vector<double>*, 5> want = {&d.out, &d.lse, &d.dq, &d.dk, &d.dv};
    for (std::size_t i = 0; i < got.size(); ++i) {
      for (std::size_t x = 0; x < want[i]->size(); ++x) {
        sums[i].add(got[i]->values[x], (*want[i])[x], oracle.scale(i));
      }
    }
  }
  return sums;
}

/// What a rank works on in one micro-batch.
struct rank_work {
  std::int32_t micro_batch = 0;
  dyncp::rank_range ranks;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> ids;
};

inline std::vector<rank_work> work_of(const ring_case& c, std::int32_t rank) {
  std::vector<rank_work> work;
  std::int64_t id = 0;
  for (std::size_t m = 0; m < c.micro_batches.size(); ++m) {
    for (const pack_case& pack : c.micro_batches[m]) {
      rank_work w{static_cast<std::int32_t>(m), pack.ranks, pack.lengths, {}};
      for (std::size_t i = 0; i < pack.lengths.size(); ++i) w.ids.push_back(id++);
      if (pack.ranks.contains(rank)) work.push_back(std::move(w));
    }
  }
  return work;
}

/// The limits that hold every pack of the case.
inline dyncp::ring_limits limits_of(const ring_case& c) {
  dyncp::ring_limits limits{0, 0, 1};
  for (const auto& micro_batch : c.micro_batches) {
    for (const pack_case& pack : micro_batch) {
      const std::int32_t cp = pack.ranks.size;
      std::int64_t tokens = 0;
      for (std::int64_t length : pack.lengths) {
        tokens += dyncp::padded_length(length, dyncp::alignment(c.padding, cp));
      }
      tokens = dyncp::padded_pack_tokens(c.padding, cp, tokens) / cp;
      limits.tokens_per_rank = std::max(limits.tokens_per_rank, static_cast<std::int32_t>(tokens));
      limits.sequences_per_pack =
          std::max(limits.sequences_per_pack, static_cast<std::int32_t>(pack.lengths.size()));
      limits.max_cp = std::max(limits.max_cp, cp);
    }
  }
  return limits;
}

/// The arrays of one micro-batch on one rank.
template <class B, class T>
struct rank_tensors {
  using sums = dyncp::accumulator_t<T>;
  std::int64_t gap = 0;                     ///< elements between rows
  std::vector<device_array<B, T>> in;       // q, kv (k then v), dout
  std::vector<device_array<B, T>> results;  // out, dq, dk, dv
  std::vector<device_array<B, sums>> lse;   // one
  std::vector<device_array<B, T>> kept;     // one, if asked for
  dyncp::ring_forward_tensors<T> forward;
  dyncp::ring_backward_tensors<T> backward;
};

/// Rows of `which` in the local layout; padding rows and gaps are NaN, which no kernel may touch.
template <class T>
std::vector<T> local_rows(const ring_case& c, const dyncp::packed_seq_params& params, tensor which,
                          std::int64_t heads, std::int64_t dim, std::int64_t gap) {
  const dyncp::pack_view pack = params.view();
  const T nan = as_element<T>(std::numeric_limits<double>::quiet_NaN());
  const std::int64_t stride = heads * dim + gap;
  std::vector<T> rows(static_cast<std::size_t>(pack.local_rows() * stride), nan);
  for (std::int32_t row = 0; row < pack.local_rows(); ++row) {
    const dyncp::token_ref token = dyncp::token_at(pack, params.cp_rank(), row);
    if (!token.valid) continue;
    const std::int64_t id = params.sequence_ids[static_cast<std::size_t>(token.sequence)];
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t x = 0; x < dim; ++x) {
        rows[static_cast<std::size_t>(row * stride + h * dim + x)] =
            as_element<T>(c.value(which, id, token.position, h, x));
      }
    }
  }
  return rows;
}

template <class B, class T>
result<rank_tensors<B, T>> make_tensors(B& backend, const ring_case& c,
                                        const dyncp::packed_seq_params& params) {
  using arrays = rank_tensors<B, T>;
  const auto s = caller_stream(backend);
  const dyncp::attention_shape& shape = c.shape;
  const std::int64_t rows = params.local_tokens();
  arrays t;
  t.gap = c.strided ? 3 : 0;
  const std::int64_t q_width = std::int64_t{shape.q_heads} * shape.qk_dim + t.gap;
  const std::int64_t k_width = std::int64_t{shape.kv_heads} * shape.qk_dim + t.gap;
  const std::int64_t v_width = std::int64_t{shape.kv_heads} * shape.v_dim + t.gap;
  const std::int64_t o_width = std::int64_t{shape.q_heads} * shape.v_dim + t.gap;
  auto q = local_rows<T>(c, params, tensor::q, shape.q_heads, shape.qk_dim, t.gap);
  auto kv = local_rows<T>(c, params, tensor::k, shape.kv_heads, shape.qk_dim, t.gap);
  const auto v = local_rows<T>(c, params, tensor::v, shape.kv_heads, shape.v_dim, t.gap);
  // Something between the two keeps the ring from sending them as they lie; kernels want rows at
  // multiples of 16 bytes.
  if (!c.adjacent_kv) kv.resize(kv.size() + 16 / sizeof(T));
  const std::int64_t v_offset = static_cast<std::int64_t>(kv.size());
  kv.insert(kv.end(), v.begin(), v.end());
  auto dout = local_rows<T>(c, params, tensor::dout, shape.q_heads, shape.v_dim, t.gap);
  for (const std::vector<T>* values : {&q, &kv, &dout}) {
    auto array = device_array<B, T>::of(backend, *values, s);
    if (!array) return std::move(array).error();
    t.in.push_back(std::move(*array));
  }
  for (std::int64_t width : {o_width, q_width, k_width, v_width}) {
    auto array = device_array<B, T>::make(backend, rows * width);
    if (!array) return std::move(array).error();
    t.results.push_back(std::move(*array));
  }
  auto lse = device_array<B, typename arrays::sums>::make(backend, rows * shape.q_heads);
  if (!lse) return std::move(lse).error();
  t.lse.push_back(std::move(*lse));
  T* kept = nullptr;
  if (c.kept_kv) {
    auto array = device_array<B, T>::make(
        backend, rows * shape.kv_heads * (std::int64_t{shape.qk_dim} + shape.v_dim));
    if (!array) return std::move(array).error();
    t.kept.push_back(std::move(*array));
    kept = t.kept[0].data();
  }
  T* const k = t.in[1].data();
  t.forward = {{t.in[0].data(), q_width},        {k, k_width},
               {k + v_offset, v_width},          {t.results[0].data(), o_width},
               {t.lse[0].data(), shape.q_heads}, kept};
  t.backward = {{t.in[0].data(), q_width},        {k, k_width},
                {k + v_offset, v_width},          {t.results[0].data(), o_width},
                {t.lse[0].data(), shape.q_heads}, {t.in[2].data(), o_width},
                {t.results[1].data(), q_width},   {t.results[2].data(), k_width},
                {t.results[3].data(), v_width},   kept};
  return t;
}

/// Compares the rows of one rank with the oracle and adds them to `sums`; padding must be zero.
template <class B, class T>
result<void> compare(B& backend, const ring_case& c, const ring_oracle<T>& oracle,
                     const dyncp::packed_seq_params& params, rank_tensors<B, T>& t,
                     deviations& sums, std::uint64_t& fingerprint) {
  const auto s = caller_stream(backend);
  const dyncp::pack_view pack = params.view();
  const std::int32_t rank = params.cp_rank();
  const auto mix = [&fingerprint](double x) {
    fingerprint = (fingerprint ^ __builtin_bit_cast(std::uint64_t, x)) * 0x100000001b3ULL;
  };
  const auto visit = [&](const auto& values, std::size_t index, std::int64_t heads,
                         std::int64_t dim, std::int64_t gap, double padding,
                         std::vector<double> dense_attention::*reference) -> result<void> {
    for (std::int32_t row = 0; row < pack.local_rows(); ++row) {
      const dyncp::token_ref token = dyncp::token_at(pack, rank, row);
      const std::vector<double>* want = nullptr;
      if (token.valid) {
        want =
            &(oracle.of(params.sequence_ids[static_cast<std::size_t>(token.sequence)]).*reference);
      }
      for (std::int64_t x = 0; x < heads * dim; ++x) {
        const double got =
            as_double(values[static_cast<std::size_t>(row * (heads * dim + gap) + x)]);
        mix(got);
        if (token.valid) {
          sums[index].add(got, (*want)[static_cast<std::size_t>(token.position * heads * dim + x)],
                          oracle.scale(index));
        } else if (got != padding) {
          return failed(std::string("padding row ") + std::to_string(row) + " of " +
                        result_names[index] + " holds " + std::to_string(got));
        }
      }
    }
    return {};
  };
  const dyncp::attention_shape& shape = c.shape;
  auto out = t.results[0].read(backend, s);
  if (!out) return std::move(out).error();
  DYNCP_TRY(visit(*out, 0, shape.q_heads, shape.v_dim, t.gap, 0.0, &dense_attention::out));
  auto lse = t.lse[0].read(backend, s);
  if (!lse) return std::move(lse).error();
  DYNCP_TRY(visit(*lse, 1, shape.q_heads, 1, 0, -std::numeric_limits<double>::infinity(),
                  &dense_attention::lse));
  auto dq = t.results[1].read(backend, s);
  if (!dq) return std::move(dq).error();
  DYNCP_TRY(visit(*dq, 2, shape.q_heads, shape.qk_dim, t.gap, 0.0, &dense_attention::dq));
  auto dk = t.results[2].read(backend, s);
  if (!dk) return std::move(dk).error();
  DYNCP_TRY(visit(*dk, 3, shape.kv_heads, shape.qk_dim, t.gap, 0.0, &dense_attention::dk));
  auto dv = t.results[3].read(backend, s);
  if (!dv) return std::move(dv).error();
  return visit(*dv, 4, shape.kv_heads, shape.v_dim, t.gap, 0.0, &dense_attention::dv);
}

/// Runs the case on one rank: forward passes of all micro-batches, then backward passes in the
/// reverse order, as a pipeline would, or with one context both passes of one after the other;
/// returns the deviations of all ranks together.
template <class T, class Provider, class B>
result<deviations> run_ring(B& backend, const ring_case& c, const ring_oracle<T>& oracle) {
  using ring_type = dyncp::ring_attention<T, B, Provider>;
  const auto s = caller_stream(backend);
  auto pool = dyncp::group_pool<B>::create(backend, c.pool);
  if (!pool) return std::move(pool).error();
  auto workspace = backend.device().allocate(
      c.own_workspace ? ring_type::workspace_bytes(c.shape, limits_of(c)) : 0);
  if (!workspace) return std::move(workspace).error();
  auto ring = ring_type::create(*pool, Provider{}, c.shape, limits_of(c), c.ring,
                                c.own_workspace ? workspace->data() : nullptr);
  if (!ring) return std::move(ring).error();
  deviations sums;
  std::uint64_t first_fingerprint = 0;
  for (std::int32_t repeat = 0; repeat < c.repeats; ++repeat) {
    sums = {};
    std::uint64_t fingerprint = 0xcbf29ce484222325ULL;
    std::vector<dyncp::packed_seq_params> params;
    std::vector<rank_tensors<B, T>> tensors;
    std::vector<typename ring_type::context> contexts;
    const auto differentiate = [&](const auto& context, rank_tensors<B, T>& t) -> result<void> {
      DYNCP_TRY(ring->backward(context, t.backward, s));
      // The caller's memory is free behind the call, in stream order, whatever hops there were.
      for (auto& array : t.in) {
        DYNCP_TRY(backend.device().fill_zero(array.data(), array.bytes(), s));
      }
      return {};
    };
    for (const rank_work& work : work_of(c, pool->rank())) {
      auto group = pool->group(work.ranks);
      if (!group) return std::move(group).error();
      auto p = dyncp::make_packed_seq_params(work.ids, work.lengths, *group, c.layout, c.padding,
                                             work.micro_batch);
      if (!p) return std::move(p).error();
      auto t = make_tensors<B, T>(backend, c, *p);
      if (!t) return std::move(t).error();
      if (contexts.empty() || !c.one_context) {
        auto context = ring->make_context();
        if (!context) return std::move(context).error();
        contexts.push_back(std::move(*context));
      }
      DYNCP_TRY(ring->prepare(contexts.back(), *p, c.mask, s));
      DYNCP_TRY(ring->forward(contexts.back(), t->forward, s));
      if (c.one_context) DYNCP_TRY(differentiate(contexts.back(), *t));
      params.push_back(std::move(*p));
      tensors.push_back(std::move(*t));
    }
    for (std::size_t i = c.one_context ? 0 : contexts.size(); i-- > 0;) {
      DYNCP_TRY(differentiate(contexts[i], tensors[i]));
    }
    DYNCP_TRY(pool->synchronize(s));
    for (std::size_t i = 0; i < params.size(); ++i) {
      DYNCP_TRY((compare<B, T>(backend, c, oracle, params[i], tensors[i], sums, fingerprint)));
    }
    if (repeat == 0) first_fingerprint = fingerprint;
    if (fingerprint != first_fingerprint) return failed("a repeated run gives other bits");
  }
  auto everyone = pool->channel(pool->everyone());
  for (deviation& d : sums) {
    std::array<double, 2> squares = {d.difference2, d.reference2};
    DYNCP_TRY(dyncp::all_reduce(everyone, std::span<double>(squares), dyncp::reduction::sum));
    DYNCP_TRY(
        dyncp::all_reduce(everyone, std::span<double>(&d.worst, 1), dyncp::reduction::maximum));
    d.difference2 = squares[0];
    d.reference2 = squares[1];
  }
  return sums;
}

/// Runs the case on all ranks, in double where the runner can: every result is within 1e-12 of
/// dense attention, in float within 5e-4.
template <class Runner>
void check_ring(Runner& runner, const ring_case& c) {
  using B = typename Runner::backend_type;
  using T = element_t<Runner>;
  const ring_oracle<T> oracle(c);
  runner.run([&](B& backend) -> result<void> {
    auto sums = run_ring<T, typename Runner::provider_type>(backend, c, oracle);
    if (!sums) return std::move(sums).error();
    for (std::size_t i = 0; i < sums->size(); ++i) {
      if (!((*sums)[i].worst <= tolerance<T>)) {
        return failed(std::string("relative error of ") + result_names[i] + " is " +
                      std::to_string((*sums)[i].worst * 1e12) + "e-12");
      }
    }
    return {};
  });
}

}  // namespace dyncp_test
