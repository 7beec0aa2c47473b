// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace dyncp {
inline namespace v0 {

/// What went wrong, for programs. `to_string` gives the spelling used in messages and JSON.
enum class errc : std::int32_t {
  // Input
  invalid_argument,   ///< a parameter outside its domain
  unknown_name,       ///< a preset, packer or key that does not exist
  parse_error,        ///< a file that is not of its format
  io_error,           ///< a file that cannot be read or written
  empty_input,        ///< nothing to plan
  invalid_length,     ///< a sequence length below one or above 2^40
  overflow,           ///< a number over the range of its type
  // Planning
  sequence_too_long,  ///< a sequence that no allowed CP group can hold
  infeasible,         ///< proven: no plan exists
  not_found,          ///< the search found no plan under a fixed number of micro-batches or a cap
  invalid_plan,       ///< a plan that breaks a promise; see `validate`
  cancelled,          ///< the caller asked to stop
  // Runtime
  not_created,        ///< a CP group that the pool was not asked to make
  mismatch,           ///< ranks disagree on sizes, digests or order
  timeout,            ///< a bounded wait ran out
  deadlock,           ///< every live rank is blocked
  peer_failed,        ///< another rank failed first
  aborted,            ///< the pool was poisoned by an earlier failure
  out_of_memory,      ///< a workspace or allocation limit
  callback_failed,    ///< a caller's function threw
  unsupported,        ///< a combination that this backend does not have
  backend_failure,    ///< CUDA, NCCL or MPI returned an error
};

[[nodiscard]] constexpr std::string_view to_string(errc code) noexcept {
  switch (code) {
    case errc::invalid_argument: return "invalid_argument";
    case errc::unknown_name: return "unknown_name";
    case errc::parse_error: return "parse_error";
    case errc::io_error: return "io_error";
    case errc::empty_input: return "empty_input";
    case errc::invalid_length: return "invalid_length";
    case errc::overflow: return "overflow";
    case errc::sequence_too_long: return "sequence_too_long";
    case errc::infeasible: return "infeasible";
    case errc::not_found: return "not_found";
    case errc::invalid_plan: return "invalid_plan";
    case errc::cancelled: return "cancelled";
    case errc::not_created: return "not_created";
    case errc::mismatch: return "mismatch";
    case errc::timeout: return "timeout";
    case errc::deadlock: return "deadlock";
    case errc::peer_failed: return "peer_failed";
    case errc::aborted: return "aborted";
    case errc::out_of_memory: return "out_of_memory";
    case errc::callback_failed: return "callback_failed";
    case errc::unsupported: return "unsupported";
    case errc::backend_failure: return "backend_failure";
  }
  return "unknown";
}

/// An error for people and programs: who, what, the value, the limit it broke, and what to change.
///
/// A plain value; distinct objects are independent, const members are safe to call concurrently.
struct error {
  errc code = errc::invalid_argument;
  std::string what;         ///< one sentence that names the culprit: "sequence 17 has length 0"
  std::int64_t value = 0;   ///< the offending number, where there is one
  std::int64_t limit = 0;   ///< the bound that it broke, where there is one
  std::string hint;         ///< what to change: "raise --max-tokens-per-rank to 20000 or more"

  /// "what (hint)": the text to show to a person.
  [[nodiscard]] std::string message() const {
    return hint.empty() ? what : what + "; " + hint;
  }
};

/// Shorthand for errors without numbers.
[[nodiscard]] inline error make_error(errc code, std::string what, std::string hint = {}) {
  return error{code, std::move(what), 0, 0, std::move(hint)};
}

}  // namespace v0
}  // namespace dyncp
