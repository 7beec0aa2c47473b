// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// What a failing rank tells the others. Plain bytes on every wire.
struct failure_notice {
  std::uint64_t family = 0;  ///< of communicators, as communicator::family() has it
  std::int32_t rank = 0;
  std::int32_t reserved = 0;
  std::array<char, 496> text = {};  ///< zero-terminated
};

/// How ranks that have no NCCL communicator yet find each other, and how they tell each other of
/// failures, which NCCL does not: without `tell` and `hear` a rank learns of another one's failure
/// by its own deadline, or when NCCL's connection breaks.
///
/// | made by             | ranks are                        | tells of failures |
/// | ------------------- | -------------------------------- | ----------------- |
/// | `file_bootstrap`    | processes with a common folder   | yes               |
/// | `mpi_bootstrap`     | processes of an MPI communicator | yes               |
/// | `process_bootstrap` | threads of one process           | yes               |
/// | by hand             | what the caller has a broadcast  | if it gives the   |
/// |                     | for, such as a trainer's store   | two functions     |
///
/// The functions are called on the thread of the rank, by all ranks in one order; what they throw
/// becomes callback_failed. Thread safety: an object belongs to the thread of its rank.
struct bootstrap {
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  /// Collective: copies `data` of rank 0 to all. It bounds its own waiting.
  std::function<result<void>(std::span<std::byte> data)> broadcast = {};
  /// Sends one notice to all other ranks, without waiting for them. May be empty.
  std::function<void(const failure_notice& notice)> tell = {};
  /// Takes one notice of another rank, without waiting; false if there is none. May be empty.
  std::function<bool(failure_notice& notice)> hear = {};
};

namespace detail {

/// The result of f(), or callback_failed for what it throws.
template <class F>
[[nodiscard]] result<void> call_back(std::int32_t rank, const char* name, F f) {
#if defined(__cpp_exceptions)
  try {
    return f();
  } catch (const std::exception& e) {
    return make_error(errc::callback_failed, "rank " + std::to_string(rank) + ": bootstrap::" +
                                                 name + " threw: " + e.what());
  } catch (...) {
    return make_error(errc::callback_failed,
                      "rank " + std::to_string(rank) + ": bootstrap::" + name + " threw");
  }
#else
  static_cast<void>(rank);
  static_cast<void>(name);
  return f();
#endif
}

}  // namespace detail

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
