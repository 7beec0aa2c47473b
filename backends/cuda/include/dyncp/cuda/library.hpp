// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/core/version.hpp>
#include <dyncp/cuda/abi.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// What the compiled library that this program runs with was made from.
struct library_info {
  std::int64_t interface_version = 0;
  std::int32_t version_major = 0;
  std::int32_t version_minor = 0;
  std::int32_t version_patch = 0;
  std::int32_t cuda_version = 0;  ///< 13000: CUDA 13.0
  std::int32_t nccl_version = 0;  ///< 22809: NCCL 2.28.9; 0: without the NCCL fabric
  std::vector<std::int32_t> architectures;  ///< 900: sm_90, 901: sm_90a
  std::vector<std::int32_t> head_dims;      ///< that attention in bfloat16 and float16 has
};

[[nodiscard]] inline library_info loaded_library() {
  using abi::property;
  const auto ask = [](property p, std::int32_t index = 0) {
    return dyncp_cuda_property(static_cast<std::int32_t>(p), index);
  };
  const auto list = [&ask](property p) {
    std::vector<std::int32_t> values;
    for (std::int32_t i = 0;; ++i) {
      const std::int64_t value = ask(p, i);
      if (value <= 0) return values;
      values.push_back(static_cast<std::int32_t>(value));
    }
  };
  library_info info;
  info.interface_version = ask(property::interface_version);
  info.version_major = static_cast<std::int32_t>(ask(property::version_major));
  info.version_minor = static_cast<std::int32_t>(ask(property::version_minor));
  info.version_patch = static_cast<std::int32_t>(ask(property::version_patch));
  info.cuda_version = static_cast<std::int32_t>(ask(property::cuda_version));
  info.nccl_version = static_cast<std::int32_t>(ask(property::nccl_version));
  info.architectures = list(property::architecture);
  info.head_dims = list(property::head_dim);
  return info;
}

/// Success if the compiled library fits these headers. `device::open` asks before anything else.
///
/// Errors: mismatch, with both versions, for a library of another interface or version.
[[nodiscard]] inline result<void> check_library(const library_info& info = loaded_library()) {
  if (info.interface_version != abi::interface_version) {
    return error{errc::mismatch, "the CUDA library has interface " +
                 std::to_string(info.interface_version) + ", these headers " +
                 std::to_string(abi::interface_version), info.interface_version,
                 abi::interface_version, "compile and link one version of dyncp"};
  }
  if (info.version_major != DYNCP_VERSION_MAJOR || info.version_minor != DYNCP_VERSION_MINOR ||
      info.version_patch != DYNCP_VERSION_PATCH) {
    const auto text = [](std::int32_t a, std::int32_t b, std::int32_t c) {
      return std::to_string(a) + "." + std::to_string(b) + "." + std::to_string(c);
    };
    return make_error(errc::mismatch, "the CUDA library is version " +
                      text(info.version_major, info.version_minor, info.version_patch) +
                      ", these headers are " +
                      text(DYNCP_VERSION_MAJOR, DYNCP_VERSION_MINOR, DYNCP_VERSION_PATCH),
                      "compile and link one version of dyncp");
  }
  return {};
}

/// Whether code for `architecture` (900: sm_90, 901: sm_90a, 1002: sm_100f) runs on a GPU of
/// compute capability `capability` (90). Code with an `a` runs on that capability alone, other code
/// on later minor numbers of the same major one, too.
[[nodiscard]] constexpr bool runs_on(std::int32_t architecture, std::int32_t capability) noexcept {
  const std::int32_t made_for = architecture / 10;
  if (architecture % 10 == 1) return made_for == capability;
  return made_for / 10 == capability / 10 && made_for <= capability;
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
