// SPDX-License-Identifier: Apache-2.0
// Uses device, kernels and both fabrics, so that all of the library has to be there; where there is
// no GPU, the first call says so.
#include <dyncp/attention/ring_attention.hpp>
#include <dyncp/cuda/attention.hpp>
#include <dyncp/cuda/backend.hpp>
#include <dyncp/cuda/file_bootstrap.hpp>
#include <dyncp/cuda/library.hpp>
#include <dyncp/runtime/group_pool.hpp>

#include <cstdio>
#include <utility>

namespace {

template <class Backend>
dyncp::result<void> use(dyncp::result<Backend> backend) {
  if (!backend) return std::move(backend).error();
  auto pool = dyncp::group_pool<Backend>::create(*backend, {});
  if (!pool) return std::move(pool).error();
  using kernels = dyncp::cuda::attention<dyncp::bfloat16>;
  auto ring = dyncp::ring_attention<dyncp::bfloat16, Backend, kernels>::create(
      *pool, kernels(backend->device()), {8, 8, 128, 128, 0.1}, {64, 1, 1});
  if (!ring) return std::move(ring).error();
  return pool->synchronize(backend->device().comm_stream());
}

bool told(const char* name, const dyncp::result<void>& done) {
  if (!done && done.error().code != dyncp::errc::unsupported) {
    std::printf("%s: %s\n", name, done.error().message().c_str());
    return false;
  }
  std::printf("%s: %s\n", name, done ? "runs" : "no GPU");
  return true;
}

}  // namespace

int main() {
  const auto library = dyncp::cuda::loaded_library();
  const auto fits = dyncp::cuda::check_library(library);
  if (!fits) {
    std::printf("%s\n", fits.error().message().c_str());
    return 1;
  }
  const auto nccl_fits =
      dyncp::cuda::check_nccl(library.nccl_version, dyncp::cuda::abi::nccl_runtime_version());
  if (!nccl_fits && nccl_fits.error().code != dyncp::errc::unsupported) {
    std::printf("%s\n", nccl_fits.error().message().c_str());
    return 1;
  }
  std::printf("dyncp %d.%d.%d\n", library.version_major, library.version_minor,
              library.version_patch);
  dyncp::cuda::local_world world({.ranks = 1});
  std::printf("NCCL %d\n", library.nccl_version);
  const bool local = told("threads", use(dyncp::cuda::local_backend::create(world, {})));
  const bool nccl = told("NCCL", use(dyncp::cuda::nccl_backend::create({}, {})));
  return local && nccl ? 0 : 1;
}
