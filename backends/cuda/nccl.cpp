// SPDX-License-Identifier: Apache-2.0
#include "device_state.hpp"
#include "status.hpp"

#include <dyncp/cuda/fabric_abi.hpp>

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

static_assert(sizeof(ncclUniqueId) == dyncp::cuda::abi::nccl_id_bytes);
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 20, 0), "the NCCL fabric needs 2.20 or later");

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace abi {
namespace {

/// Success for a call that is done or goes on by itself; else NCCL's own words.
status nccl_status(ncclResult_t code, const char* call, const device_state& d, ncclComm_t comm) {
  if (code == ncclSuccess || code == ncclInProgress) return {};
  errc kind = errc::backend_failure;
  const char* hint = "set NCCL_DEBUG=INFO for what NCCL has to say";
  switch (code) {
    case ncclRemoteError:
      kind = errc::peer_failed;
      hint = "see the error of the other ranks";
      break;
    case ncclInvalidUsage:
      kind = errc::mismatch;
      hint = "call the same exchanges on all ranks, in one order, each rank with a GPU of its own";
      break;
    case ncclInvalidArgument: kind = errc::invalid_argument; break;
    default: break;
  }
  const char* const last = ncclGetLastError(comm);
  return failure(kind, hint, "rank %d: %s: %s (ncclResult_t %d)%s%s",
                 static_cast<int>(d.facts.rank), call, ncclGetErrorString(code),
                 static_cast<int>(code), last != nullptr && last[0] != '\0' ? ": " : "",
                 last != nullptr ? last : "");
}

ncclConfig_t config_of(const nccl_request& request) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = request.share_resources;
  if (request.max_ctas > 0) config.maxCTAs = request.max_ctas;
  return config;
}

}  // namespace

#define DYNCP_NCCL_CALL(d, comm, function, ...) \
  DYNCP_CUDA_TRY(nccl_status(function(__VA_ARGS__), #function, *(d), comm))

std::int64_t nccl_runtime_version() noexcept {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

status nccl_make_id(device_state* d, char* id) {
  DYNCP_ON_DEVICE(*d);
  ncclUniqueId made;
  DYNCP_NCCL_CALL(d, nullptr, ncclGetUniqueId, &made);
  std::memcpy(id, &made, sizeof made);
  return {};
}

status nccl_begin(device_state* d, const char* id, std::int32_t ranks, std::int32_t rank,
                  const nccl_request& request, nccl_handle* comm) {
  DYNCP_ON_DEVICE(*d);
  ncclUniqueId common;
  std::memcpy(&common, id, sizeof common);
  ncclConfig_t config = config_of(request);
  DYNCP_NCCL_CALL(d, nullptr, ncclCommInitRankConfig, comm, ranks, common, rank, &config);
  return {};
}

status nccl_begin_split(device_state* d, nccl_handle parent, std::int32_t color, std::int32_t key,
                        const nccl_request& request, nccl_handle* child) {
  DYNCP_ON_DEVICE(*d);
  ncclConfig_t config = config_of(request);
  DYNCP_NCCL_CALL(d, parent, ncclCommSplit, parent, color, key, child, &config);
  return {};
}

status nccl_poll(device_state* d, nccl_handle comm, bool* done) {
  DYNCP_ON_DEVICE(*d);
  *done = false;
  ncclResult_t state = ncclSuccess;
  DYNCP_NCCL_CALL(d, comm, ncclCommGetAsyncError, comm, &state);
  *done = state != ncclInProgress;
  return nccl_status(state, "NCCL", *d, comm);
}

status nccl_describe(device_state* d, nccl_handle comm, std::int32_t* rank, std::int32_t* ranks,
                     std::int32_t* ordinal) {
  DYNCP_ON_DEVICE(*d);
  int value = 0;
  DYNCP_NCCL_CALL(d, comm, ncclCommUserRank, comm, &value);
  *rank = value;
  DYNCP_NCCL_CALL(d, comm, ncclCommCount, comm, &value);
  *ranks = value;
  DYNCP_NCCL_CALL(d, comm, ncclCommCuDevice, comm, &value);
  *ordinal = value;
  return {};
}

status nccl_exchange(device_state* d, nccl_handle comm, const nccl_message* messages,
                     std::int32_t count, stream s) {
  DYNCP_ON_DEVICE(*d);
  DYNCP_NCCL_CALL(d, comm, ncclGroupStart);
  status first;
  for (std::int32_t i = 0; i < count && first.failed == 0; ++i) {
    const nccl_message& m = messages[i];
    const auto bytes = static_cast<std::size_t>(m.bytes);
    first = m.out != 0 ? nccl_status(ncclSend(m.data, bytes, ncclInt8, m.peer, comm, s),
                                     "ncclSend", *d, comm)
                       : nccl_status(ncclRecv(m.data, bytes, ncclInt8, m.peer, comm, s),
                                     "ncclRecv", *d, comm);
  }
  // A group that was begun has to be ended, whatever is in it.
  const status end = nccl_status(ncclGroupEnd(), "ncclGroupEnd", *d, comm);
  return first.failed != 0 ? first : end;
}

status nccl_begin_close(device_state* d, nccl_handle comm) {
  DYNCP_ON_DEVICE(*d);
  DYNCP_NCCL_CALL(d, comm, ncclCommFinalize, comm);
  return {};
}

void nccl_free(device_state* d, nccl_handle comm) noexcept {
  const device_scope scope(*d);
  static_cast<void>(ncclCommDestroy(comm));
}

void nccl_abort(device_state* d, const nccl_handle* comms, std::int32_t count) noexcept {
  const device_scope scope(*d);
  static_cast<void>(ncclGroupStart());
  for (std::int32_t i = 0; i < count; ++i) static_cast<void>(ncclCommAbort(comms[i]));
  static_cast<void>(ncclGroupEnd());
}

}  // namespace abi
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
