// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/exchange_suite.hpp"
#include "conformance/runner.hpp"

#include <dyncp/runtime/collectives.hpp>
#include <dyncp/runtime/group_pool.hpp>
#include <dyncp/runtime/message.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

// What every fabric does when a rank goes wrong: nobody hangs, everybody gets a typed error, and a
// new pool works. Needs a runner in wall time with a short deadline.

namespace dyncp_test {

/// True for the errors that say what went wrong; the others get `aborted`, with the first reason.
inline bool is_cause(errc code) {
  return code == errc::timeout || code == errc::deadlock || code == errc::peer_failed ||
         code == errc::mismatch;
}

/// Waits until this rank has heard that the pool failed; bounded, for the tests' sake.
template <class Pool>
result<void> wait_for_failure(Pool& pool) {
  for (int i = 0; i < 20'000; ++i) {
    const auto health = pool.health();
    if (!health) {
      return health.error().code == errc::aborted ? result<void>()
                                                  : failed("a poisoned pool does not say aborted");
    }
    let_others_run(pool.owner());
  }
  return failed("a failure never reached this rank");
}

/// After a failure: every call is `aborted`, old and new ranks build a pool that works.
template <class B>
result<void> check_recovery(B& backend, dyncp::group_pool<B>& pool) {
  DYNCP_TRY(wait_for_failure(pool));
  auto channel = pool.channel(pool.everyone());
  const auto refused = dyncp::barrier(channel);
  if (refused || refused.error().code != errc::aborted ||
      refused.error().what.find("failed first") == std::string::npos) {
    return failed("a poisoned pool let a call through");
  }
  auto next = dyncp::group_pool<B>::create(backend, {.strategy = dyncp::pool_strategy::split});
  if (!next) return std::move(next).error();
  if (next->generation() != pool.generation() + 1) return failed("the new pool is no new one");
  return check_shift(backend, *next, next->everyone(), 1, 1000, 5);
}

/// Runs `wrong(pool)` on every rank of a fresh pool; each rank that fails says why.
template <class Runner, class F>
void check_failure(Runner& runner, F wrong) {
  using B = typename Runner::backend_type;
  if (runner.ranks() == 1) return;
  runner.run([&](B& backend) -> result<void> {
    auto pool = dyncp::group_pool<B>::create(backend, {.strategy = dyncp::pool_strategy::split});
    runner.meet();  // a failure must not reach a rank that is still making its pool
    if (!pool) return std::move(pool).error();
    DYNCP_TRY(wrong(backend, *pool));
    return check_recovery(backend, *pool);
  });
}

/// Success for a typed error, the caller's own mistake otherwise.
inline result<void> expect_failure(const result<void>& outcome, const char* what) {
  if (outcome) return failed(std::string(what) + " went unnoticed");
  if (outcome.error().code != errc::aborted && !is_cause(outcome.error().code)) {
    return outcome.error();
  }
  if (outcome.error().what.empty()) return failed("an error without a reason");
  return {};
}

/// One rank does not come (pytorch#134314, NCCL#2042): the others are told within the deadline.
template <class Runner>
void check_missing_rank(Runner& runner) {
  for (std::int32_t missing : {0, runner.ranks() - 1}) {
    check_failure(runner, [&](auto&, auto& pool) -> result<void> {
      if (pool.rank() == missing) return {};
      auto channel = pool.channel(pool.everyone());
      return expect_failure(dyncp::barrier(channel), "a missing rank");
    });
  }
}

/// Sizes that differ at the two ends, either way (NCCL#1279: undefined there).
template <class Runner>
void check_wrong_size(Runner& runner) {
  for (std::int64_t more : {-4, 4}) {
    check_failure(runner, [&](auto&, auto& pool) -> result<void> {
      std::array<std::int64_t, 4> data = {};
      const auto everyone = pool.everyone();
      if (pool.rank() == 0) {
        const dyncp::outgoing out{1, data.data(), 16};
        // The message may have left before the other end complains.
        static_cast<void>(pool.exchange_host(everyone, {&out, 1}, {}));
      } else if (pool.rank() == 1) {
        const dyncp::incoming in{0, data.data(), 16 + more};
        const auto outcome = pool.exchange_host(everyone, {}, {&in, 1});
        DYNCP_TRY(expect_failure(outcome, "a wrong size"));
        if (outcome.error().code != errc::mismatch || outcome.error().limit != 16 + more) {
          return failed("a wrong size was called something else: " + outcome.error().what);
        }
      }
      return {};
    });
  }
}

/// Two ranks use two groups in different orders (NCCL#195): each waits in another one.
template <class Runner>
void check_crossed_groups(Runner& runner) {
  if (runner.ranks() < 4) return;
  check_failure(runner, [&](auto&, auto& pool) -> result<void> {
    if (pool.rank() > 1) return {};
    auto pair = pool.group(2);
    if (!pair) return std::move(pair).error();
    auto four = pool.group(4);
    if (!four) return std::move(four).error();
    const std::int32_t peer = 1 - pool.rank();
    std::array<std::uint8_t, 8> data = {};
    const dyncp::outgoing out{peer, data.data(), 4};
    const dyncp::incoming in{peer, data.data() + 4, 4};
    const auto& first = pool.rank() == 0 ? *pair : *four;
    return expect_failure(pool.exchange_host(first, {&out, 1}, {&in, 1}), "a crossed order");
  });
}

/// A message that only one end knows of (NCCL#2130).
template <class Runner>
void check_one_sided(Runner& runner) {
  check_failure(runner, [&](auto& backend, auto& pool) -> result<void> {
    using B = std::remove_reference_t<decltype(backend)>;
    if (pool.rank() != 1) return {};
    const auto s = backend.device().comm_stream();
    auto memory = device_array<B, std::int32_t>::make(backend, 1);
    if (!memory) return std::move(memory).error();
    const dyncp::incoming in{0, memory->data(), 4};
    auto outcome = pool.exchange(pool.everyone(), {}, {&in, 1}, s);
    if (outcome) outcome = pool.synchronize(s);
    return expect_failure(outcome, "a one-sided message");
  });
}

/// Whoever finds a fault says so, and everybody stops.
template <class Runner>
void check_declared_failure(Runner& runner) {
  check_failure(runner, [&](auto&, auto& pool) -> result<void> {
    if (pool.rank() == 0) {
      pool.fail(dyncp::make_error(errc::callback_failed, "the data loader of rank 0 stopped"));
      return {};
    }
    auto channel = pool.channel(pool.everyone());
    const auto outcome = dyncp::barrier(channel);
    if (outcome || outcome.error().code != errc::aborted ||
        outcome.error().what.find("the data loader of rank 0 stopped") == std::string::npos) {
      return failed("a declared failure did not reach the others");
    }
    return {};
  });
}

}  // namespace dyncp_test
