// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/cuda/abi.hpp>

#include <cuda_runtime_api.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// An error of the library, formatted as by printf. `hint` is a literal.
[[gnu::format(printf, 3, 4)]] [[nodiscard]] inline abi::status failure(errc code, const char* hint,
                                                                       const char* format, ...) {
  abi::status s;
  s.failed = 1;
  s.code = code;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(s.what, sizeof s.what, format, arguments);
  va_end(arguments);
  std::snprintf(s.hint, sizeof s.hint, "%s", hint);
  return s;
}

/// Success, or what `call` of rank `rank` returned, with CUDA's own words.
[[nodiscard]] inline abi::status cuda_status(cudaError_t code, const char* call,
                                             std::int32_t rank) {
  if (code == cudaSuccess) return {};
  // An error that is not sticky would otherwise be reported again by an innocent call.
  static_cast<void>(cudaGetLastError());
  errc kind = errc::backend_failure;
  const char* hint = "";
  switch (code) {
    case cudaErrorMemoryAllocation:
      kind = errc::out_of_memory;
      hint = "lower the tokens per rank or the size of the largest group";
      break;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNotSupported:
    case cudaErrorSystemDriverMismatch:
      kind = errc::unsupported;
      hint = "run on a machine with a GPU and a driver for this CUDA version";
      break;
    case cudaErrorNoKernelImageForDevice:
      kind = errc::unsupported;
      hint = "add the architecture of this GPU to -Dgpu_arch and build again";
      break;
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
      hint = "an earlier kernel failed; the process cannot use this GPU any more";
      break;
    default: break;
  }
  return failure(kind, hint, "rank %d: %s: %s (%s)", static_cast<int>(rank), call,
                 cudaGetErrorString(code), cudaGetErrorName(code));
}

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp

// Returns from the enclosing function with an abi::status if a call fails.
#define DYNCP_CUDA_TRY(expression)                                  \
  do {                                                              \
    if (const auto dyncp_status = (expression); dyncp_status.failed) \
      return dyncp_status;                                          \
  } while (false)

// The same for a call of the CUDA runtime, of which the text names the function.
#define DYNCP_CUDA_CALL(rank, function, ...) \
  DYNCP_CUDA_TRY(::dyncp::cuda::cuda_status(function(__VA_ARGS__), #function, rank))
