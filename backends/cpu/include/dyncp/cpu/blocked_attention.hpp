// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/accumulator.hpp>
#include <dyncp/core/attention_mask.hpp>
#include <dyncp/core/attention_shape.hpp>
#include <dyncp/core/config.hpp>
#include <dyncp/thd/attention_operands.hpp>
#include <dyncp/thd/ring_steps.hpp>
#include <dyncp/thd/thd_view.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cpu {

/// Attention in tiles of queries and keys: matrix products of tiles, with a running maximum and
/// sum for each query row (Milakov and Gimelshein 2018; Dao et al. 2022).
///
/// Same contract as `plain_attention`. Masked pairs are never multiplied: the triangle under the
/// causal diagonal is done in strips and rows, so that nothing in a masked row, NaN included, can
/// reach an output. Determinism: bit for bit for one build; sums are taken in the order of tiles.
/// Memory: one scratch of at most scratch_bytes(shape), kept between calls; nothing else is
/// allocated. Thread safety: an object belongs to one thread at a time.
class blocked_attention {
 public:
  /// As `plain_attention::forward`.
  template <class T>
  void forward(const attention_shape& shape, attention_mask mask,
               std::span<const attention_segment> segments, const attention_operands<T>& in,
               const attention_partial<T>& out) {
    using acc = accumulator_t<T>;
    constexpr acc none = -std::numeric_limits<acc>::infinity();
    forward_tiles<T> tiles(*this, shape);
    for (const attention_segment& segment : segments) {
      DYNCP_ASSERT(mask == attention_mask::full || segment.q_rows == segment.kv_rows);
      const bool causal = mask == attention_mask::causal;
      for (std::int32_t head = 0; head < shape.q_heads; ++head) {
        const std::int32_t kv_head = head / shape.group();
        for (std::int32_t i = 0; i < segment.q_rows; i += q_tile) {
          const std::int32_t rows = std::min(q_tile, segment.q_rows - i);
          const std::int64_t q_row = segment.q_row + i;
          tiles.begin(load(in.q, q_row, rows, head, shape.qk_dim, tiles.q), rows);
          const std::int32_t visible = causal ? i : segment.kv_rows;
          for (std::int32_t j = 0; j < visible; j += kv_tile) {
            const std::int32_t keys = std::min(kv_tile, visible - j);
            const std::int64_t kv_row = segment.kv_row + j;
            tiles.add(0, rows, load(in.k, kv_row, keys, kv_head, shape.qk_dim, tiles.k),
                      load(in.v, kv_row, keys, kv_head, shape.v_dim, tiles.v));
          }
          if (causal) {
            const std::int64_t kv_row = segment.kv_row + i;
            const auto k = load(in.k, kv_row, rows, kv_head, shape.qk_dim, tiles.k);
            const auto v = load(in.v, kv_row, rows, kv_head, shape.v_dim, tiles.v);
            for (std::int32_t strip = 0; strip < rows; strip += strip_rows) {
              const std::int32_t n = std::min(strip_rows, rows - strip);
              if (strip > 0) tiles.add(strip, n, k.topRows(strip), v.topRows(strip));
              for (std::int32_t r = 0; r < n; ++r) {
                tiles.add_row(strip + r, k.middleRows(strip, r + 1), v.middleRows(strip, r + 1));
              }
            }
          }
          for (std::int32_t r = 0; r < rows; ++r) {
            acc* const o = out.out.at(q_row + r, head, shape.v_dim);
            acc* const lse = out.lse.at(q_row + r, head, 1);
            const acc sum = tiles.sum[r];
            if (tiles.largest[r] == none) {
              std::fill_n(o, shape.v_dim, acc(0));
              *lse = none;
            } else {
              row_map<acc>(o, shape.v_dim) = tiles.out.row(r) / sum;
              *lse = tiles.largest[r] + std::log(sum);
            }
          }
        }
      }
    }
  }

  /// As `plain_attention::backward`.
  template <class T>
  void backward(const attention_shape& shape, attention_mask mask,
                std::span<const attention_segment> segments, const attention_gradients<T>& io) {
    backward_tiles<T> tiles(*this, shape);
    for (const attention_segment& segment : segments) {
      DYNCP_ASSERT(mask == attention_mask::full || segment.q_rows == segment.kv_rows);
      const bool causal = mask == attention_mask::causal;
      for (std::int32_t head = 0; head < shape.q_heads; ++head) {
        const std::int32_t kv_head = head / shape.group();
        for (std::int32_t j = 0; j < segment.kv_rows; j += kv_tile) {
          const std::int32_t keys = std::min(kv_tile, segment.kv_rows - j);
          const std::int64_t kv_row = segment.kv_row + j;
          const auto k = load(io.k, kv_row, keys, kv_head, shape.qk_dim, tiles.k);
          const auto v = load(io.v, kv_row, keys, kv_head, shape.v_dim, tiles.v);
          auto dk = map(io.dk, kv_row, keys, kv_head, shape.qk_dim);
          auto dv = map(io.dv, kv_row, keys, kv_head, shape.v_dim);
          // kv_tile is a multiple of q_tile: a query tile on the diagonal meets one key tile there.
          for (std::int32_t i = causal ? j : 0; i < segment.q_rows; i += q_tile) {
            const std::int32_t rows = std::min(q_tile, segment.q_rows - i);
            const std::int64_t q_row = segment.q_row + i;
            const auto q = load(io.q, q_row, rows, head, shape.qk_dim, tiles.q);
            const auto dout = load(io.dout, q_row, rows, head, shape.v_dim, tiles.dout);
            auto dq = map(io.dq, q_row, rows, head, shape.qk_dim);
            tiles.begin(io, q_row, rows, head);
            const std::int32_t visible = causal ? std::min(keys, i - j) : keys;
            if (visible > 0) {
              tiles.add(0, q, dout, k.topRows(visible), v.topRows(visible), dq, dk.topRows(visible),
                        dv.topRows(visible));
            }
            if (visible == keys) continue;
            for (std::int32_t strip = 0; strip < rows; strip += strip_rows) {
              const std::int32_t n = std::min(strip_rows, rows - strip);
              if (strip > 0) {
                tiles.add(strip, q.middleRows(strip, n), dout.middleRows(strip, n),
                          k.middleRows(visible, strip), v.middleRows(visible, strip),
                          dq.middleRows(strip, n), dk.middleRows(visible, strip),
                          dv.middleRows(visible, strip));
              }
              for (std::int32_t r = strip; r < strip + n; ++r) {
                const std::int32_t first = visible + strip;
                const std::int32_t seen = r - strip + 1;
                tiles.add_row(r, q.row(r), dout.row(r), k.middleRows(first, seen),
                              v.middleRows(first, seen), dq.row(r), dk.middleRows(first, seen),
                              dv.middleRows(first, seen));
              }
            }
          }
        }
      }
    }
  }

  /// What an object holds once it has seen `shape` forward and backward, in bytes.
  [[nodiscard]] static std::int64_t scratch_bytes(const attention_shape& shape) noexcept {
    return alignment_bytes + static_cast<std::int64_t>(sizeof(double)) *
                                 std::max(forward_tiles<double>::elements(shape),
                                          backward_tiles<double>::elements(shape));
  }

 private:
  static constexpr std::int32_t q_tile = 64;
  static constexpr std::int32_t kv_tile = 128;
  static constexpr std::int32_t strip_rows = 16;  // of the triangle under the diagonal
  static constexpr std::int64_t alignment_bytes = 64;
  static_assert(kv_tile % q_tile == 0);

  template <class Acc>
  using matrix = Eigen::Matrix<Acc, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  template <class Acc>
  using row_vector = Eigen::Matrix<Acc, 1, Eigen::Dynamic>;
  template <class Acc>
  using tile_map = Eigen::Map<matrix<Acc>, Eigen::Unaligned, Eigen::OuterStride<>>;
  template <class Acc>
  using const_tile_map = Eigen::Map<const matrix<Acc>, Eigen::Unaligned, Eigen::OuterStride<>>;
  template <class Acc>
  using row_map = Eigen::Map<row_vector<Acc>>;
  template <class Acc>
  using tile_ref = Eigen::Ref<const matrix<Acc>, 0, Eigen::OuterStride<>>;
  template <class Acc>
  using mutable_tile_ref = Eigen::Ref<matrix<Acc>, 0, Eigen::OuterStride<>>;
  template <class Acc>
  using row_ref = Eigen::Ref<const row_vector<Acc>>;
  template <class Acc>
  using mutable_row_ref = Eigen::Ref<row_vector<Acc>>;

  /// `rows` rows of one head, as a matrix of accumulators: in place, or converted into `space`.
  template <class T>
  [[nodiscard]] static const_tile_map<accumulator_t<T>> load(thd_view<const T> view,
                                                             std::int64_t row, std::int32_t rows,
                                                             std::int32_t head, std::int32_t dim,
                                                             accumulator_t<T>* space) {
    using acc = accumulator_t<T>;
    if constexpr (std::is_same_v<T, acc>) {
      // Eigen takes a stride of 0, one row for all, for "no gap"; such a view is written out.
      if (view.row_stride != 0) {
        return {view.at(row, head, dim), rows, dim, Eigen::OuterStride<>(view.row_stride)};
      }
    }
    for (std::int32_t r = 0; r < rows; ++r) {
      const T* const from = view.at(row + r, head, dim);
      acc* const to = space + std::int64_t{r} * dim;
      for (std::int32_t c = 0; c < dim; ++c) to[c] = static_cast<acc>(from[c]);
    }
    return {space, rows, dim, Eigen::OuterStride<>(dim)};
  }

  template <class Acc>
  [[nodiscard]] static tile_map<Acc> map(thd_view<Acc> view, std::int64_t row, std::int32_t rows,
                                         std::int32_t head, std::int32_t dim) {
    return {view.at(row, head, dim), rows, dim, Eigen::OuterStride<>(view.row_stride)};
  }

  /// Aligned room for `elements` accumulators; grows, never shrinks.
  template <class Acc>
  [[nodiscard]] Acc* room(std::int64_t elements) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(Acc);
    if (scratch_.size() < bytes + alignment_bytes) scratch_.resize(bytes + alignment_bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(scratch_.data());
    const std::uintptr_t past = address % alignment_bytes;
    return reinterpret_cast<Acc*>(scratch_.data() + (past == 0 ? 0 : alignment_bytes - past));
  }

  /// The running state of one tile of queries.
  template <class T>
  struct forward_tiles {
    using acc = accumulator_t<T>;

    [[nodiscard]] static std::int64_t elements(const attention_shape& shape) noexcept {
      return std::int64_t{q_tile} * (shape.qk_dim + shape.v_dim + kv_tile + 2) +
             std::int64_t{kv_tile} * (shape.qk_dim + shape.v_dim);
    }

    forward_tiles(blocked_attention& owner, const attention_shape& shape)
        : scale(static_cast<acc>(shape.scale)),
          q(owner.room<acc>(elements(shape))),
          k(q + q_tile * shape.qk_dim),
          v(k + kv_tile * shape.qk_dim),
          scores(v + kv_tile * shape.v_dim),
          largest(scores + q_tile * kv_tile),
          sum(largest + q_tile),
          out(sum + q_tile, q_tile, shape.v_dim, Eigen::OuterStride<>(shape.v_dim)),
          queries(nullptr, 0, 0, Eigen::OuterStride<>(0)) {}

    void begin(const const_tile_map<acc>& tile, std::int32_t rows) {
      new (&queries) const_tile_map<acc>(tile);  // how Eigen lets a map point elsewhere
      std::fill_n(largest, rows, -std::numeric_limits<acc>::infinity());
      std::fill_n(sum, rows, acc(0));
      out.topRows(rows).setZero();
    }

    /// Rows [first, first + rows) meet `keys`, all of which they see.
    void add(std::int32_t first, std::int32_t rows, const tile_ref<acc>& keys,
             const tile_ref<acc>& values) {
      tile_map<acc> p(scores, rows, keys.rows(), Eigen::OuterStride<>(keys.rows()));
      p.noalias() = scale * (queries.middleRows(first, rows) * keys.transpose());
      for (std::int32_t r = 0; r < rows; ++r) {
        soften(first + r, row_map<acc>(&p(r, 0), keys.rows()));
      }
      out.middleRows(first, rows).noalias() += p * values;
    }

    void add_row(std::int32_t row, const tile_ref<acc>& keys, const tile_ref<acc>& values) {
      row_map<acc> p(scores, keys.rows());
      p.noalias() = scale * (queries.row(row) * keys.transpose());
      soften(row, p);
      out.row(row).noalias() += p * values;
    }

    /// Turns scores into weights relative to the row's new maximum, and rescales what was summed.
    void soften(std::int32_t row, row_map<acc> p) {
      constexpr acc none = -std::numeric_limits<acc>::infinity();
      const acc highest = p.maxCoeff();
      if (highest == none) {  // no score above -inf; exp(-inf - -inf) would be NaN
        p.setZero();
        return;
      }
      const acc before = largest[row];
      const acc now = highest > before || std::isnan(highest) ? highest : before;
      p.array() = (p.array() - now).exp();
      if (now != before) {
        const acc weight = std::exp(before - now);  // 0 at the first keys
        sum[row] *= weight;
        out.row(row) *= weight;
        largest[row] = now;
      }
      sum[row] += p.sum();
    }

    acc scale;
    acc* q;
    acc* k;
    acc* v;
    acc* scores;
    acc* largest;
    acc* sum;
    tile_map<acc> out;
    const_tile_map<acc> queries;
  };

  template <class T>
  struct backward_tiles {
    using acc = accumulator_t<T>;

    [[nodiscard]] static std::int64_t elements(const attention_shape& shape) noexcept {
      return std::int64_t{q_tile} * (shape.qk_dim + shape.v_dim + 2 * kv_tile + 2) +
             std::int64_t{kv_tile} * (shape.qk_dim + shape.v_dim);
    }

    backward_tiles(blocked_attention& owner, const attention_shape& shape)
        : scale(static_cast<acc>(shape.scale)),
          q(owner.room<acc>(elements(shape))),
          dout(q + q_tile * shape.qk_dim),
          k(dout + q_tile * shape.v_dim),
          v(k + kv_tile * shape.qk_dim),
          weights(v + kv_tile * shape.v_dim),
          slopes(weights + q_tile * kv_tile),
          lse(slopes + q_tile * kv_tile),
          delta(lse + q_tile) {}

    void begin(const attention_gradients<T>& io, std::int64_t q_row, std::int32_t rows,
               std::int32_t head) {
      for (std::int32_t r = 0; r < rows; ++r) {
        lse[r] = *io.lse.at(q_row + r, head, 1);
        delta[r] = *io.delta.at(q_row + r, head, 1);
      }
    }

    /// Query rows, the first of which is row `first` of the tile, meet keys that they all see.
    void add(std::int32_t first, const tile_ref<acc>& queries, const tile_ref<acc>& grads,
             const tile_ref<acc>& keys, const tile_ref<acc>& values, mutable_tile_ref<acc> dq,
             mutable_tile_ref<acc> dk, mutable_tile_ref<acc> dv) {
      const Eigen::Index n = keys.rows();
      tile_map<acc> p(weights, queries.rows(), n, Eigen::OuterStride<>(n));
      tile_map<acc> ds(slopes, queries.rows(), n, Eigen::OuterStride<>(n));
      p.noalias() = scale * (queries * keys.transpose());
      ds.noalias() = grads * values.transpose();
      for (Eigen::Index r = 0; r < queries.rows(); ++r) {
        differentiate(first + static_cast<std::int32_t>(r), row_map<acc>(&p(r, 0), n),
                      row_map<acc>(&ds(r, 0), n));
      }
      dv.noalias() += p.transpose() * grads;
      dq.noalias() += ds * keys;
      dk.noalias() += ds.transpose() * queries;
    }

    void add_row(std::int32_t row, const row_ref<acc>& query, const row_ref<acc>& grad,
                 const tile_ref<acc>& keys, const tile_ref<acc>& values, mutable_row_ref<acc> dq,
                 mutable_tile_ref<acc> dk, mutable_tile_ref<acc> dv) {
      row_map<acc> p(weights, keys.rows());
      row_map<acc> ds(slopes, keys.rows());
      p.noalias() = scale * (query * keys.transpose());
      ds.noalias() = grad * values.transpose();
      differentiate(row, p, ds);
      dv.noalias() += p.transpose() * grad;
      dq.noalias() += ds * keys;
      dk.noalias() += ds.transpose() * query;
    }

    /// Scores and dP of a row become P and scale * P * (dP - delta).
    void differentiate(std::int32_t row, row_map<acc> p, row_map<acc> ds) {
      if (lse[row] == -std::numeric_limits<acc>::infinity()) {
        p.setZero();
        ds.setZero();
        return;
      }
      p.array() = (p.array() - lse[row]).exp();
      ds.array() = scale * p.array() * (ds.array() - delta[row]);
    }

    acc scale;
    acc* q;
    acc* dout;
    acc* k;
    acc* v;
    acc* weights;
    acc* slopes;
    acc* lse;
    acc* delta;
  };

  std::vector<std::byte> scratch_;
};

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
