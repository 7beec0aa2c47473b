// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/error.hpp>
#include <dyncp/core/result.hpp>
#include <dyncp/cuda/bootstrap.hpp>
#include <dyncp/cuda/device.hpp>
#include <dyncp/cuda/fabric_abi.hpp>
#include <dyncp/cuda/local_fabric.hpp>
#include <dyncp/cuda/local_world.hpp>
#include <dyncp/cuda/nccl_fabric.hpp>
#include <dyncp/runtime/backend.hpp>

#include <cstdint>
#include <memory>
#include <utility>

namespace dyncp {
inline namespace v0 {
namespace cuda {

/// A rank that is a GPU of its own, connected by NCCL. Models `backend`.
///
/// Thread safety: an object belongs to the thread of its rank. Errors: those of `device::open` and
/// `nccl_fabric::create`.
/// Example:
///   auto me = dyncp::cuda::file_bootstrap({"/shared/job-17", rank, ranks});
///   auto backend = dyncp::cuda::nccl_backend::create({.ordinal = local_rank, .rank = rank}, me);
class nccl_backend {
 public:
  using device_type = cuda::device;
  using fabric_type = nccl_fabric;

  /// Collective over the ranks of `connection`.
  [[nodiscard]] static result<nccl_backend> create(const device_options& device,
                                                   const bootstrap& connection,
                                                   const nccl_options& options = {}) {
    return make(device, [&](device_type& gpu) {
      return nccl_fabric::create(gpu, connection, options);
    });
  }
  /// On the communicator of the trainer; see nccl_fabric::adopt.
  [[nodiscard]] static result<nccl_backend> adopt(const device_options& device, nccl_handle comm,
                                                  const nccl_options& options = {},
                                                  const bootstrap& connection = {}) {
    return make(device, [&](device_type& gpu) {
      return nccl_fabric::adopt(gpu, comm, options, connection);
    });
  }

  nccl_backend(nccl_backend&&) noexcept = default;
  /// The old fabric goes with the device that it uses.
  nccl_backend& operator=(nccl_backend&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(fabric_, other.fabric_);
    return *this;
  }

  [[nodiscard]] device_type& device() noexcept { return *device_; }
  [[nodiscard]] fabric_type& fabric() noexcept { return *fabric_; }

 private:
  nccl_backend() = default;

  template <class F>
  [[nodiscard]] static result<nccl_backend> make(const device_options& device, F connect) {
    auto opened = device_type::open(device);
    if (!opened) return std::move(opened).error();
    nccl_backend out;
    out.device_ = std::make_unique<device_type>(std::move(*opened));
    auto fabric = connect(*out.device_);
    if (!fabric) return std::move(fabric).error();
    out.fabric_ = std::move(*fabric);
    return out;
  }

  std::unique_ptr<device_type> device_;
  std::unique_ptr<fabric_type> fabric_;
};

/// A rank that is a thread of this process, see local_fabric. Models `backend`.
///
/// Thread safety: an object belongs to the thread of its rank. Errors: those of `device::open`,
/// invalid_argument for a rank outside the world.
class local_backend {
 public:
  using device_type = cuda::device;
  using fabric_type = local_fabric;

  /// The rank is device.rank.
  [[nodiscard]] static result<local_backend> create(local_world& world,
                                                    const device_options& device) {
    if (device.rank < 0 || device.rank >= world.ranks()) {
      return error{errc::invalid_argument,
                   "rank " + std::to_string(device.rank) + " of a world of " +
                       std::to_string(world.ranks()),
                   device.rank, world.ranks() - 1, "give each thread a rank of its own"};
    }
    auto opened = device_type::open(device);
    if (!opened) return std::move(opened).error();
    local_backend out;
    out.device_ = std::make_unique<device_type>(std::move(*opened));
    out.fabric_ = std::make_unique<fabric_type>(world, device.rank, *out.device_);
    return out;
  }

  local_backend(local_backend&&) noexcept = default;
  /// The old fabric goes with the device that it uses.
  local_backend& operator=(local_backend&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(fabric_, other.fabric_);
    return *this;
  }

  [[nodiscard]] device_type& device() noexcept { return *device_; }
  [[nodiscard]] fabric_type& fabric() noexcept { return *fabric_; }

 private:
  local_backend() = default;
  std::unique_ptr<device_type> device_;
  std::unique_ptr<fabric_type> fabric_;
};

static_assert(dyncp::backend<nccl_backend>);
static_assert(dyncp::backend<local_backend>);

}  // namespace cuda
}  // namespace v0
}  // namespace dyncp
