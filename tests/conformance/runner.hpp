// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/try.hpp>
#include <dyncp/runtime/backend.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

// A runner starts the ranks of one backend: `ranks()`, `run(f)` with f(backend&) -> result<void> on
// every rank, which checks that all succeed, and `run_collect(f)`, which returns the results of the
// ranks of this process; `meet()` is a barrier beside the fabric, `provider_type` the attention
// provider, `element_type` what it computes exact tests in, double if absent. The suites of this
// folder are templates over it.

namespace dyncp_test {

using dyncp::errc;
using dyncp::error;
using dyncp::make_error;
using dyncp::result;

/// The stream that a suite works on, as a trainer's would come from outside: a device under test
/// has one to lend.
template <dyncp::backend B>
typename B::device_type::stream caller_stream(B& backend) {
  return backend.device().main_stream();
}

/// Lets other ranks go on while this one waits for them beside the fabric.
template <dyncp::backend B>
void let_others_run(B&) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// Elements of the tests that compare with numbers, not with another run.
template <class Runner>
struct element_of_runner {
  using type = double;
};
template <class Runner>
  requires requires { typename Runner::element_type; }
struct element_of_runner<Runner> {
  using type = typename Runner::element_type;
};
template <class Runner>
using element_t = typename element_of_runner<Runner>::type;

/// What a result may be off, relative to the largest: some thousand units in the last place.
template <class T>
inline constexpr double tolerance = std::is_same_v<T, double> ? 1e-12 : 5e-4;

/// An array in device memory, copied in and out through staging memory.
template <dyncp::backend B, class T>
class device_array {
 public:
  using stream = typename B::device_type::stream;

  static result<device_array> make(B& backend, std::int64_t elements) {
    device_array out;
    out.elements_ = elements;
    const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(T));
    auto memory = backend.device().allocate(bytes);
    if (!memory) return std::move(memory).error();
    auto host = backend.device().allocate_staging(bytes);
    if (!host) return std::move(host).error();
    out.memory_ = std::move(*memory);
    out.host_ = std::move(*host);
    return out;
  }
  static result<device_array> of(B& backend, const std::vector<T>& values, stream s) {
    auto out = make(backend, static_cast<std::int64_t>(values.size()));
    if (!out) return out;
    if (!values.empty()) {
      std::memcpy(out->host_.data(), values.data(), values.size() * sizeof(T));
      DYNCP_TRY(
          backend.device().upload(out->memory_.data(), out->host_.data(), out->memory_.bytes(), s));
    }
    return out;
  }

  [[nodiscard]] T* data() { return static_cast<T*>(memory_.data()); }
  [[nodiscard]] std::int64_t size() const { return elements_; }
  [[nodiscard]] std::int64_t bytes() const {
    return elements_ * static_cast<std::int64_t>(sizeof(T));
  }

  result<std::vector<T>> read(B& backend, stream s) {
    std::vector<T> values(static_cast<std::size_t>(elements_));
    if (elements_ > 0) {
      DYNCP_TRY(backend.device().download(host_.data(), memory_.data(), memory_.bytes(), s));
    }
    DYNCP_TRY(backend.fabric().synchronize(s));
    if (elements_ > 0) std::memcpy(values.data(), host_.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  typename B::device_type::buffer memory_;
  typename B::device_type::staging host_;
  std::int64_t elements_ = 0;
};

/// A failed check on a rank, with the place and the numbers in its text.
inline error failed(const std::string& what) {
  return make_error(errc::invalid_plan, what);
}

}  // namespace dyncp_test
