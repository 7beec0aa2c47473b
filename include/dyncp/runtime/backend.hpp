// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dyncp/runtime/device.hpp>
#include <dyncp/runtime/fabric.hpp>

#include <concepts>

namespace dyncp {
inline namespace v0 {

/// The device and the fabric of one rank, which belong together: exchanges run on the device's
/// streams. Pool, split, merge and ring attention are templates over it.
template <class B>
concept backend = device<typename B::device_type> && fabric<typename B::fabric_type> &&
    std::same_as<typename B::device_type::stream, typename B::fabric_type::stream> &&
    requires(B& b) {
  { b.device() } -> std::same_as<typename B::device_type&>;
  { b.fabric() } -> std::same_as<typename B::fabric_type&>;
};

}  // namespace v0
}  // namespace dyncp
