// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/core/result.hpp>
#include <dyncp/cpu/device.hpp>
#include <dyncp/mpi/fabric.hpp>
#include <dyncp/runtime/backend.hpp>

#include <mpi.h>

#include <memory>
#include <utility>

namespace dyncp {
inline namespace v0 {
namespace mpi {

/// A rank that is a process: host memory and MPI. Models `backend`.
///
/// Thread safety: an object belongs to the thread that may call MPI.
/// Example: `auto backend = dyncp::mpi::backend::create(MPI_COMM_WORLD);`
class backend {
 public:
  using device_type = cpu::device;
  using fabric_type = mpi::fabric;

  /// Collective over `parent`. Errors: backend_failure.
  [[nodiscard]] static result<backend> create(MPI_Comm parent, fabric_options fabric = {},
                                              cpu::device_options device = {}) {
    backend out;
    out.device_ = std::make_unique<cpu::device>(device);
    auto made = fabric_type::create(parent, *out.device_, fabric);
    if (!made) return std::move(made).error();
    out.fabric_ = std::move(*made);
    return out;
  }

  backend(backend&&) noexcept = default;
  /// The old fabric goes with the device that it uses.
  backend& operator=(backend&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(fabric_, other.fabric_);
    return *this;
  }

  [[nodiscard]] device_type& device() noexcept { return *device_; }
  [[nodiscard]] fabric_type& fabric() noexcept { return *fabric_; }

 private:
  backend() = default;
  std::unique_ptr<cpu::device> device_;
  std::unique_ptr<fabric_type> fabric_;
};

static_assert(dyncp::backend<backend>);

}  // namespace mpi
}  // namespace v0
}  // namespace dyncp
