// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/fabric_abi.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace detail {

/// The streams on which a fabric has queued exchanges: after a failure it waits for them, since
/// callers free memory on their way out. There are few, mostly the one for communication.
class used_streams {
 public:
  void add(stream s) {
    if (std::find(streams_.begin(), streams_.end(), s) == streams_.end()) streams_.push_back(s);
  }
  /// Waits until they are idle, at most `limit_us`. A stream that fails is not waited for.
  void settle(device& d, std::int64_t limit_us) {
    const std::int64_t begin = abi::clock_us();
    for (const stream s : streams_) {
      for (std::int64_t round = 0;; ++round) {
        const auto done = d.poll(s);
        if (!done || *done || abi::clock_us() - begin >= limit_us) break;
        abi::pause(round);
      }
    }
    streams_.clear();
  }

 private:
  std::vector<stream> streams_;
};

}  // namespace detail
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
