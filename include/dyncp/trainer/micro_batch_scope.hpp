// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/runtime/group_handle.hpp>
#include <dyncp/runtime/packed_seq_params.hpp>
#include <dyncp/thd/layout_kind.hpp>

#include <utility>

namespace dyncp {
inline namespace v0 {

/// Sets a variable for as long as it lives, and puts the old value back: at the end of the block,
/// on every return and on every exception. Scopes of one variable nest.
///
/// For what a trainer keeps as state of its own: its current CP group, say, that a layer reads.
/// Belongs to the thread that the variable belongs to.
template <class T>
class [[nodiscard]] scoped_value {
 public:
  scoped_value(T& variable, T value)
      : variable_(&variable), before_(std::exchange(variable, std::move(value))) {}
  scoped_value(const scoped_value&) = delete;
  scoped_value& operator=(const scoped_value&) = delete;
  ~scoped_value() { *variable_ = std::move(before_); }

 private:
  T* variable_;
  T before_;
};

/// What the layers of one chunk read of the micro-batch that they work on. A value that belongs to
/// the trainer, one per thread of execution: the library has no global one.
struct cp_context {
  group_handle group;                         ///< as `set_context_parallel_group` of a layer
  layout_kind layout = layout_kind::zigzag;
  const packed_seq_params* params = nullptr;  ///< nullptr between micro-batches
};

/// A context set to a micro-batch, and put back whatever happens: a schedule of cp 4, 1, 4 finds 4,
/// 1, 4, and what was set before it afterwards (Megatron-LM#5215 kept the last group; Relax puts
/// it back once per step, which one failure in between prevents).
///
///   const dyncp::micro_batch_scope scope(context, params);
///   return layer.forward(...);
///
/// `params` outlives the scope.
class [[nodiscard]] micro_batch_scope {
 public:
  micro_batch_scope(cp_context& context, const packed_seq_params& params)
      : saved_(context, cp_context{params.group, params.layout.layout(), &params}) {}

 private:
  scoped_value<cp_context> saved_;
};

}  // namespace v0
}  // namespace dyncp
