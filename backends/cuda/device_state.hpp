// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "status.hpp"

#include <dyncp/cuda/abi.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {

namespace abi {

struct device_state {
  device_facts facts;
  stream memory_stream = nullptr;  // allocations only, so that waiting for it costs nothing
  cudaMemPool_t pool = nullptr;    // unless the caller has an allocator
};

}  // namespace abi

/// Whether this process has a primary context on GPU `ordinal`. Asks the driver, which the library
/// does not link; true if there is no answer.
[[nodiscard]] bool has_context(int ordinal) noexcept;

/// Makes the device of `d` current while it lives.
///
/// A thread that never chose a device counts as one on GPU 0, and to choose GPU 0 makes a context
/// there, some hundred MiB for each process of the machine. So the device from before is chosen
/// again only if this process uses it: who has a context there gets it back, and nobody else can
/// tell. PyTorch's guards follow the same rule.
class device_scope {
 public:
  explicit device_scope(const abi::device_state& d) : device_scope(d.facts) {}
  explicit device_scope(const abi::device_facts& facts) {
    int current = -1;
    status_ = cuda_status(cudaGetDevice(&current), "cudaGetDevice", facts.rank);
    if (status_.failed != 0 || current == facts.ordinal) return;
    const bool used = has_context(current);
    status_ = cuda_status(cudaSetDevice(facts.ordinal), "cudaSetDevice", facts.rank);
    if (status_.failed == 0 && used) previous_ = current;
  }
  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;
  ~device_scope() {
    if (previous_ >= 0) static_cast<void>(cudaSetDevice(previous_));
  }
  [[nodiscard]] const abi::status& status() const noexcept { return status_; }

 private:
  abi::status status_;
  int previous_ = -1;
};

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp

// Opens the scope of device state `d` in a function that returns an abi::status.
#define DYNCP_ON_DEVICE(d)                              \
  const ::dyncp::cuda::device_scope dyncp_scope(d);     \
  if (dyncp_scope.status().failed != 0) return dyncp_scope.status()
