// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/backend.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/plan_layout.hpp>
#include <dyncp/runtime/row_route.hpp>
#include <dyncp/runtime/row_router.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {

// Per-token data of a whole plan between the caller, who has whole sequences, and the ranks, which
// have shares of packs. All three are made once per plan on every rank of the pool, without
// communication, and used for as many fields as there are, of any row width.
//
// | what          | from                              | to                                        |
// | ------------- | --------------------------------- | ----------------------------------------- |
// | plan_split    | sequences at their owners         | shares, (layout.local_rows(rank)) rows    |
// | plan_reroute  | sequences at their owners         | whole sequences at all ranks of the group |
// | plan_merge    | shares                            | sequences at their owners                 |
//
// Whole sequences lie in the order of the batch, real tokens only: `rows_of_owner`. An owner is the
// rank that loaded a sequence, or that computes its loss, or every_rank. Bytes on the wire, rows of
// w bytes, N tokens, S_c tokens in groups of c: split at most w*N; reroute at most w*sum(c*S_c);
// merge to owners at most 2*w*N, to every rank w*N*(1 + ranks). Objects belong to the thread of
// their rank.

/// Shares of the ranks from whole sequences. See the table above.
template <backend B>
class plan_split {
 public:
  using stream = typename group_pool<B>::stream;

  [[nodiscard]] static result<plan_split> make(group_pool<B>& pool, const plan_layout& layout,
                                               std::span<const std::int32_t> owners,
                                               std::int64_t max_row_bytes, stream s) {
    DYNCP_TRY(check_owners(layout, owners));
    auto router = row_router<B>::make(pool, split_route(layout, owners, pool.rank()),
                                      {max_row_bytes, false}, s);
    if (!router) return std::move(router).error();
    return plan_split(std::move(*router));
  }
  /// shares (layout.local_rows(rank), row_bytes) from the sequences that this rank owns; padding
  /// rows become zero bytes.
  [[nodiscard]] result<void> run(const void* sequences, void* shares, std::int64_t row_bytes,
                                 stream s) {
    return router_.run(sequences, shares, row_bytes, s);
  }
  [[nodiscard]] const row_router<B>& router() const noexcept { return router_; }

 private:
  explicit plan_split(row_router<B> router) : router_(std::move(router)) {}
  row_router<B> router_;
};

/// Whole sequences from the ranks that loaded them to the ranks that work on them.
template <backend B>
class plan_reroute {
 public:
  using stream = typename group_pool<B>::stream;

  [[nodiscard]] static result<plan_reroute> make(group_pool<B>& pool, const plan_layout& layout,
                                                 std::span<const std::int32_t> owners,
                                                 std::int64_t max_row_bytes, stream s) {
    DYNCP_TRY(check_owners(layout, owners));
    auto router = row_router<B>::make(pool, reroute_route(layout, owners, pool.rank()),
                                      {max_row_bytes, false}, s);
    if (!router) return std::move(router).error();
    return plan_reroute(std::move(*router));
  }
  /// needed (rows_of_worker(rank).rows, row_bytes) from the sequences that this rank owns.
  [[nodiscard]] result<void> run(const void* owned, void* needed, std::int64_t row_bytes,
                                 stream s) {
    return router_.run(owned, needed, row_bytes, s);
  }
  /// What one run sends and receives here, in bytes: `router().bytes_sent(row_bytes)`.
  [[nodiscard]] const row_router<B>& router() const noexcept { return router_; }

 private:
  explicit plan_reroute(row_router<B> router) : router_(std::move(router)) {}
  row_router<B> router_;
};

/// How the gradient of merged rows finds its way back to the shares.
///
/// | kind      | gradient of a share                              | right when each rank ...   |
/// | --------- | ------------------------------------------------ | -------------------------- |
/// | own_slice | its rows of this rank's own gradient, no message | ... computes the same loss |
/// | summed    | the sum over all ranks that hold the merged row  | ... computes a part of it  |
///
/// The two differ by the number of ranks that hold a row; a loss scaled for the one is wrong with
/// the other. Merging without gradients needs neither.
enum class merge_gradient : std::int32_t { own_slice, summed };

/// Whole sequences from the shares: gathered in each group to its leader, then delivered from the
/// leaders to the owners, each sequence once. See the table above.
template <backend B>
class plan_merge {
 public:
  using stream = typename group_pool<B>::stream;

  /// `differentiable`: `backward` will be called.
  [[nodiscard]] static result<plan_merge> make(group_pool<B>& pool, const plan_layout& layout,
                                               std::span<const std::int32_t> owners,
                                               std::int64_t max_row_bytes, bool differentiable,
                                               stream s) {
    DYNCP_TRY(check_owners(layout, owners));
    const std::int32_t rank = pool.rank();
    const row_router_options options{max_row_bytes, differentiable};
    auto gather = row_router<B>::make(pool, gather_route(layout, rank), options, s);
    if (!gather) return std::move(gather).error();
    auto deliver = row_router<B>::make(pool, deliver_route(layout, owners, rank), options, s);
    if (!deliver) return std::move(deliver).error();
    auto space = pool.owner().device().allocate(gather->dst_rows() * max_row_bytes);
    if (!space) return std::move(space).error();
    plan_merge out(std::move(*gather), std::move(*deliver), std::move(*space));
    if (differentiable) {
      // The own slice of the gradient: what this rank would cut out of sequences that it has.
      bool everywhere = true;
      for (std::int32_t owner : owners) everywhere = everywhere && owner == every_rank;
      if (everywhere) {
        auto slice =
            row_router<B>::make(pool, split_route(layout, owners, rank), {max_row_bytes, false}, s);
        if (!slice) return std::move(slice).error();
        out.slice_.push_back(std::move(*slice));
      }
    }
    return out;
  }

  /// sequences (rows_of_owner(rank).rows, row_bytes) from shares (layout.local_rows(rank),
  /// row_bytes); padding rows of the shares are not read.
  [[nodiscard]] result<void> run(const void* shares, void* sequences, std::int64_t row_bytes,
                                 stream s) {
    DYNCP_TRY(gather_.run(shares, space_.data(), row_bytes, s));
    return deliver_.run(space_.data(), sequences, row_bytes, s);
  }

  /// The gradient of the shares, (layout.local_rows(rank), width), from that of the merged
  /// sequences; padding rows get zero. `add` as in row_router::run_adjoint.
  ///
  /// Errors: unsupported for own_slice when the owners are not every_rank.
  template <class Sum, class Add>
  [[nodiscard]] result<void> backward(merge_gradient kind, const Sum* sequences, Sum* shares,
                                      std::int64_t width, Add add, stream s) {
    if (kind == merge_gradient::own_slice) {
      if (slice_.empty()) {
        return make_error(errc::unsupported,
                          "the ranks do not hold all merged sequences, so a "
                          "share's gradient is not on its own rank",
                          "merge to every_rank with `differentiable`, or use summed");
      }
      return slice_[0].run(sequences, shares, width * static_cast<std::int64_t>(sizeof(Sum)), s);
    }
    Sum* const middle = static_cast<Sum*>(space_.data());
    DYNCP_TRY(deliver_.run_adjoint(sequences, middle, width, add, s));
    return gather_.run_adjoint(middle, shares, width, add, s);
  }

  [[nodiscard]] std::int64_t bytes_sent(std::int64_t row_bytes) const noexcept {
    return gather_.bytes_sent(row_bytes) + deliver_.bytes_sent(row_bytes);
  }

 private:
  using buffer = typename B::device_type::buffer;
  plan_merge(row_router<B> gather, row_router<B> deliver, buffer space)
      : gather_(std::move(gather)), deliver_(std::move(deliver)), space_(std::move(space)) {}

  row_router<B> gather_;
  row_router<B> deliver_;
  buffer space_;                      // whole sequences of the packs that this rank leads
  std::vector<row_router<B>> slice_;  // at most one
};

}  // namespace v0
}  // namespace dyncp
