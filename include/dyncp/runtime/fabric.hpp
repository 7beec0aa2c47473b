// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/runtime/message.hpp>

#include <concepts>
#include <cstdint>
#include <span>

namespace dyncp {
inline namespace v0 {

/// What connects the ranks of a DPxCP domain.
///
/// | member                      | what it does                                                  |
/// | --------------------------- | ------------------------------------------------------------- |
/// | open()                      | collective over all ranks: a fresh communicator of all        |
/// | split(comm, color, key)     | collective over comm: one communicator per color, by key      |
/// | close(comm)                 | frees it; children before parents, each rank in the same order|
/// | exchange(comm, out, in, s)  | queues one grouped exchange of device memory on stream s      |
/// | exchange_host(comm, out, in)| the same with host memory; returns when it is done            |
/// | synchronize(s)              | waits for stream s, bounded by the deadline of the fabric     |
/// | fail(comm, why)             | poisons the family of comm (its opening and all splits) on    |
/// |                             | every rank and aborts what waits; the first reason stays      |
/// | health(comm)                | success, or why the family of comm is poisoned                |
///
/// `exchange` is the only point-to-point operation: there is no lone send or receive, so ranks
/// cannot wait for each other's second half. An exchange holds at most one message per peer and
/// direction; both ends give the same bytes; messages of 0 bytes are not sent, by both ends alike.
/// Messages between two ranks of a communicator arrive in the order of the calls.
///
/// Waiting is never unbounded: an exchange that is not done within the fabric's deadline after it
/// began, a peer that died, sizes that differ and a loop of ranks that wait for each other are
/// typed errors. The first failure poisons the family: from then on each of its calls on every
/// rank returns `aborted` with the first reason. A new `open` starts a new family.
///
/// Thread safety: an object belongs to the thread of its rank.
template <class F>
concept fabric = std::copyable<typename F::stream> && std::movable<typename F::communicator> &&
    requires(F& f, const F& cf, typename F::communicator& comm,
             const typename F::communicator& ccomm, typename F::stream stream,
             std::span<const outgoing> out, std::span<const incoming> in, std::int32_t number,
             error why) {
  { cf.rank() } -> std::same_as<std::int32_t>;
  { cf.ranks() } -> std::same_as<std::int32_t>;
  { ccomm.rank() } -> std::same_as<std::int32_t>;
  { ccomm.size() } -> std::same_as<std::int32_t>;
  { ccomm.family() } -> std::same_as<std::uint64_t>;  // of its opening: 1, 2, ...
  { f.open() } -> std::same_as<result<typename F::communicator>>;
  { f.split(comm, number, number) } -> std::same_as<result<typename F::communicator>>;
  {f.close(comm)};
  { f.exchange(comm, out, in, stream) } -> std::same_as<result<void>>;
  { f.exchange_host(comm, out, in) } -> std::same_as<result<void>>;
  { f.synchronize(stream) } -> std::same_as<result<void>>;
  {f.fail(comm, why)};
  { f.health(comm) } -> std::same_as<result<void>>;
  { cf.memory_in_use() } -> std::same_as<std::int64_t>;  // bytes, of buffers of the fabric
};

}  // namespace v0
}  // namespace dyncp
