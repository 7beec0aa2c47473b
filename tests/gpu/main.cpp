// SPDX-License-Identifier: Apache-2.0
// The main of the programs that test on a GPU: without one they say so and are skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <dyncp/cuda/device.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  const auto gpu = dyncp::cuda::device::open({});
  if (!gpu) {
    std::printf("no GPU: %s\n", gpu.error().message().c_str());
    return gpu.error().code == dyncp::errc::unsupported ? skipped : 1;
  }
  std::printf("on %s\n", gpu->name().c_str());
  return doctest::Context(argc, argv).run();
}
