// SPDX-License-Identifier: Apache-2.0
// A library built without NCCL says so. Its version is 0, so that nobody comes further than
// `nccl_fabric::create`.
#include "status.hpp"

#include <dyncp/cuda/fabric_abi.hpp>

#include <cstdint>

namespace dyncp {
inline namespace v0 {
namespace cuda {
namespace abi {
namespace {

status absent() {
  return failure(errc::unsupported, "build dyncp with -Dnccl=enabled",
                 "the CUDA library was built without NCCL");
}

}  // namespace

std::int64_t nccl_runtime_version() noexcept { return 0; }
status nccl_make_id(device_state*, char*) { return absent(); }
status nccl_begin(device_state*, const char*, std::int32_t, std::int32_t, const nccl_request&,
                  nccl_handle*) {
  return absent();
}
status nccl_begin_split(device_state*, nccl_handle, std::int32_t, std::int32_t,
                        const nccl_request&, nccl_handle*) {
  return absent();
}
status nccl_poll(device_state*, nccl_handle, bool* done) {
  *done = true;
  return absent();
}
status nccl_describe(device_state*, nccl_handle, std::int32_t*, std::int32_t*, std::int32_t*) {
  return absent();
}
status nccl_exchange(device_state*, nccl_handle, const nccl_message*, std::int32_t, stream) {
  return absent();
}
status nccl_begin_close(device_state*, nccl_handle) { return absent(); }
void nccl_free(device_state*, nccl_handle) noexcept {}
void nccl_abort(device_state*, const nccl_handle*, std::int32_t) noexcept {}

}  // namespace abi
}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
