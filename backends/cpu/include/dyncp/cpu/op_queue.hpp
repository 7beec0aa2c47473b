// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/config.hpp>
#include <dyncp/core/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cpu {

/// What a piece of queued work says when it is tried.
enum class progress : std::int32_t { done, pending };

/// A queued piece of work: a callable that returns result<progress> and may be tried again while
/// it is pending. Small callables live inside, so that a queue in use allocates nothing.
class queued_op {
 public:
  static constexpr std::size_t capacity_bytes = 320;

  queued_op() = default;
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, queued_op>)
  explicit queued_op(F&& work) {
    using callable = std::remove_cvref_t<F>;
    static_assert(std::is_nothrow_move_constructible_v<callable>);
    static_assert(sizeof(callable) <= capacity_bytes, "raise capacity_bytes");
    static_assert(alignof(callable) <= alignof(std::max_align_t));
    new (storage_) callable(std::forward<F>(work));
    table_ = &table_of<callable>;
  }
  queued_op(queued_op&& other) noexcept { take(other); }
  queued_op& operator=(queued_op&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~queued_op() { reset(); }

  [[nodiscard]] result<progress> run() { return table_->run(storage_); }
  void reset() noexcept {
    if (table_ != nullptr) table_->destroy(storage_);
    table_ = nullptr;
  }

 private:
  struct function_table {
    result<progress> (*run)(void*);
    void (*move)(void* to, void* from) noexcept;
    void (*destroy)(void*) noexcept;
  };
  template <class F>
  static constexpr function_table table_of = {
      [](void* p) -> result<progress> { return (*static_cast<F*>(p))(); },
      [](void* to, void* from) noexcept {
        new (to) F(std::move(*static_cast<F*>(from)));
        static_cast<F*>(from)->~F();
      },
      [](void* p) noexcept { static_cast<F*>(p)->~F(); }};

  void take(queued_op& other) noexcept {
    table_ = other.table_;
    if (table_ != nullptr) table_->move(storage_, other.storage_);
    other.table_ = nullptr;
  }

  const function_table* table_ = nullptr;
  alignas(std::max_align_t) std::byte storage_[capacity_bytes];
};

/// A first-in first-out queue that keeps its memory: it allocates only to hold more than ever, and
/// has room for a forward and a backward pass over 16 ranks from the begin.
class op_queue {
 public:
  op_queue() : slots_(256) {}

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] queued_op& front() noexcept { return slots_[head_]; }

  void push(queued_op op) {
    if (size_ == slots_.size()) grow();
    slots_[(head_ + size_) % slots_.size()] = std::move(op);
    ++size_;
  }
  void pop() noexcept {
    slots_[head_].reset();
    head_ = (head_ + 1) % slots_.size();
    --size_;
  }
  void clear() noexcept {
    while (!empty()) pop();
  }

 private:
  void grow() {
    std::vector<queued_op> larger(2 * slots_.size());
    for (std::size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(slots_[(head_ + i) % slots_.size()]);
    }
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<queued_op> slots_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace cpu
}  // namespace v0
}  // namespace dyncp
